"""`tclone doctor`: the engine's checks of this machine, by the running engine or, without one, here; and of one workspace."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from engine.cli import output
from engine.client import EngineClient
from engine.config import Config
from engine.errors import Unavailable


async def doctor(config: Config, as_json: bool) -> int:
    """Print each check with its remedy; status 9 when one failed."""
    checks = await _checks(config)
    if as_json:
        output.as_json({"checks": checks})
    else:
        width = max(len(check["name"]) for check in checks)
        for check in checks:
            print(f"{'ok  ' if check['ok'] else 'FAIL'}  {check['name'].ljust(width)}  {output.printable(check['detail'])}")
            if not check["ok"] and check["remedy"]:
                print(f"      {' ' * width}  -> {output.printable(check['remedy'])}")
    return 0 if all(check["ok"] for check in checks) else Unavailable.exit_status


async def examine(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Print everything that keeps a workspace from being forked, and what its branches will not have; status 1 when it cannot be forked."""
    found = await client.examine(arguments.workspace)
    if arguments.json:
        output.as_json(found)
    else:
        name, count = found["workspace"], len(found["blockers"]) + found["blockers_omitted"]
        verdict = "can be forked" if found["ok"] else f"cannot be forked: {count} {'thing is' if count == 1 else 'things are'} in the way"
        print(f"{name} {verdict} ({found['processes']} processes looked at)")
        _print_findings("BLOCKED", found["blockers"], found["blockers_omitted"])
        _print_findings("note", found["warnings"], found["warnings_omitted"])
    return 0 if found["ok"] else 1


def _print_findings(heading: str, items: list[dict[str, Any]], omitted: int) -> None:
    for item in items:
        remedy = item["remedy"]
        print(f"{heading.ljust(7)}  {output.printable(item['message'].removesuffix(f'; {remedy}'))}")
        if remedy:
            print(f"         -> {output.printable(remedy)}")
    if omitted:
        print(f"{heading.ljust(7)}  and {omitted} more of this kind")


async def _checks(config: Config) -> list[dict[str, Any]]:
    try:
        async with EngineClient(config.socket) as client:
            engine = {"name": "engine", "ok": True, "detail": f"version {(await client.health())['version']} answers on {config.socket}", "remedy": ""}
            return [engine, *await client.doctor()]
    except Unavailable:
        from engine.doctor import run_checks  # a machine that cannot start the engine needs the doctor most

        found = await asyncio.to_thread(run_checks, config)
        down = {"name": "engine", "ok": False, "detail": f"nobody answers on {config.socket}", "remedy": "run `tclone up`"}
        return [*(check.to_json() for check in found), down]
