"""`tclone user` and `tclone token`: who may use the portal."""

from __future__ import annotations

import argparse
import time
from typing import Any

from engine.cli import host, output, services
from engine.config import Config
from engine.errors import NotFound


def dispatch(config: Config, arguments: argparse.Namespace) -> int:
    """Run the action that `arguments.command` and `arguments.action` name; the exit status. Raises EngineError."""
    host.require_root(arguments.command)
    return _ACTIONS[arguments.command, arguments.action](config, arguments)


def _user_add(config: Config, arguments: argparse.Namespace) -> int:
    made = services.portal(config, "user-add", user=arguments.user, role=arguments.role)
    output.note(f"one-time password of {arguments.user}, good for choosing another one within 7 days:")
    print(made["password"])
    return 0


def _user_ls(config: Config, arguments: argparse.Namespace) -> int:
    users = services.portal(config, "user-ls")
    if arguments.json:
        output.as_json(users)
    else:
        output.table(("USER", "ROLE", "STATE", "SECOND FACTOR"), [(one["user"], one["role"], _state(one), "yes" if one["second_factor"] else "no") for one in users])
    return 0


def _state(user: dict[str, Any]) -> str:
    if user["disabled"]:
        return "disabled"
    if user["one_time_until"] is not None:
        return f"one-time password until {_when(user['one_time_until'])}"
    return "by identity provider" if user["external"] else "enabled"


def _user_rm(config: Config, arguments: argparse.Namespace) -> int:
    services.portal(config, "user-rm", user=arguments.user)
    return 0


def _user_passwd(config: Config, arguments: argparse.Namespace) -> int:
    print(services.portal(config, "user-passwd", user=arguments.user)["password"])
    return 0


def _user_no_factor(config: Config, arguments: argparse.Namespace) -> int:
    services.portal(config, "user-factor-rm", user=arguments.user)
    return 0


def _user_change(config: Config, arguments: argparse.Namespace) -> int:
    disabled = {"disable": True, "enable": False}.get(arguments.action)
    services.portal(config, "user-change", user=arguments.user, role=getattr(arguments, "role", None), disabled=disabled)
    return 0


def _token_create(config: Config, arguments: argparse.Namespace) -> int:
    days = None if arguments.never else arguments.days
    made = services.portal(config, "token-create", user=arguments.user, name=arguments.name, scopes=arguments.scopes, days=days, e2b=arguments.form == "e2b")
    if arguments.json:
        output.as_json(made)
        return 0
    output.note(f"{made['id']}, expires {_when(made['expires'])}; this is shown once:")
    print(made["token"])
    return 0


def _token_ls(config: Config, arguments: argparse.Namespace) -> int:
    tokens = services.portal(config, "token-ls")
    if arguments.json:
        output.as_json(tokens)
        return 0
    rows = [(one["id"], one["name"], one["user"], ",".join(one["scopes"]), _when(one["expires"]), _when(one["used"])) for one in tokens]
    output.table(("ID", "NAME", "USER", "SCOPES", "EXPIRES", "LAST USED"), rows)
    return 0


def _token_revoke(config: Config, arguments: argparse.Namespace) -> int:
    known = {one["id"] for one in services.portal(config, "token-ls")}
    if missing := [token for token in arguments.tokens if token not in known]:
        raise NotFound(f"no token {', '.join(missing)}; `tclone token ls` lists them")
    for token in arguments.tokens:
        services.portal(config, "token-revoke", token=token)
    return 0


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


_ACTIONS = {
    ("user", "add"): _user_add,
    ("user", "ls"): _user_ls,
    ("user", "rm"): _user_rm,
    ("user", "passwd"): _user_passwd,
    ("user", "no-factor"): _user_no_factor,
    ("user", "role"): _user_change,
    ("user", "disable"): _user_change,
    ("user", "enable"): _user_change,
    ("token", "create"): _token_create,
    ("token", "ls"): _token_ls,
    ("token", "revoke"): _token_revoke,
}
