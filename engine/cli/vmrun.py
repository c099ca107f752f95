"""`tclone vmrun`: as much of VMware's command as OSWorld's DesktopEnv asks for, with forks in place of snapshots (docs/reference/osworld.md).

DesktopEnv starts `snapshot`, `revertToSnapshot` and `stop` without waiting for them and without looking at their status. So `getGuestIPAddress` is where it
learns of them: it waits for what is under way, and fails when that did.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from engine.client import EngineClient
from engine.config import Config
from engine.errors import BadRequest, Conflict, EngineError, Internal, NotFound, Unavailable
from engine.labels import MACHINE, SNAPSHOT
from engine.workspace import CHROMIUM, check_name

PREFIX = "/branches/"
_SNAPSHOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}")
_READY_SECONDS, _LOOK_SECONDS = 120.0, 0.05
_SCRIPT = """#!/bin/sh
# vmrun for OSWorld's DesktopEnv; `tclone vmrun install` made it.
exec {python} -m engine.cli.main vmrun "$@"
"""


def main(config: Config, arguments: list[str]) -> int:
    """Carry out one command, or those that come on stdin (`session`); the exit status. Raises EngineError."""
    if arguments == ["session"]:
        from engine.cli.vmrun_session import Session

        return Session(config).serve(sys.stdin, sys.stdout)
    done = carried_out(config, arguments)
    if done.said:
        # At once: whoever reads it goes on while this command still discards what the machine was.
        print(done.said, flush=True)
    if done.leaves is not None:
        discard(config, done.leaves)
    return 0


@dataclass(frozen=True)
class Done:
    """What a command says, and the id of a workspace that is not needed any more."""

    said: str
    leaves: str | None = None


def carried_out(config: Config, arguments: list[str]) -> Done:
    """One command. Raises EngineError."""
    if arguments[:1] == ["-T"]:
        arguments = arguments[2:]
    # Of VMware's options one means something here, with the commands that can wait.
    wait = "-wait" in arguments
    words = [word for word in arguments if word not in ("nogui", "gui", "-wait", "soft", "hard")]
    match words:
        case ["install", directory]:
            return Done(str(install(Path(directory))))
        case ["list"]:
            return Done(asyncio.run(_with_engine(config, _list)))
        case [("start" | "stop" | "snapshot" | "revertToSnapshot" | "deleteSnapshot" | "getGuestIPAddress" | "listSnapshots") as verb, path, *rest]:
            return _one(config, verb, name_of(path), rest, wait)
        case _:
            raise BadRequest("vmrun: install DIR | list | session | start, stop, getGuestIPAddress, listSnapshots PATH | snapshot, revertToSnapshot, deleteSnapshot PATH NAME")


def discard(config: Config, workspace: str) -> None:
    """Raises EngineError."""
    asyncio.run(_with_engine(config, lambda engine: engine.remove(workspace)))


def name_of(path: str) -> str:
    """The machine that a path means: `desk` of /branches/desk or /branches/desk.vmx. Raises BadRequest."""
    normal = os.path.normpath(path).removesuffix(".vmx")
    if not normal.startswith(PREFIX):
        raise BadRequest(f"vmrun: {path[:200]} is no machine of TClone; their paths are {PREFIX}NAME")
    return check_name(normal[len(PREFIX) :], "the machine's name")


def install(directory: Path) -> Path:
    """Write a program `vmrun` into a directory that goes in front of PATH; its path. Raises Conflict for one that is there and not ours."""
    target = directory / "vmrun"
    directory.mkdir(parents=True, exist_ok=True)
    if target.exists() and "tclone vmrun" not in target.read_text(errors="replace"):
        raise Conflict(f"{target} is another program; choose another directory")
    target.write_text(_SCRIPT.format(python=sys.executable))
    target.chmod(0o755)
    return target


def _one(config: Config, verb: str, name: str, rest: list[str], wait: bool) -> Done:
    """A command on one machine: those that change it one after the other, those that ask after them. A revert that waits ends with the machine's address."""
    if verb == "listSnapshots":
        return Done(asyncio.run(_with_engine(config, lambda engine: _snapshots(engine, name))))
    snapshot = ""
    if verb in ("snapshot", "revertToSnapshot", "deleteSnapshot"):
        if len(rest) != 1 or not _SNAPSHOT_NAME.fullmatch(rest[0]):
            raise BadRequest(f"vmrun {verb}: give the snapshot's name, at most 31 letters, digits and _.-")
        snapshot = rest[0]
    with _turn(name) as record:
        if verb == "getGuestIPAddress":
            if failed := record.read_text():
                # Told once: what is wrong may be set right by other commands than these.
                record.write_text("")
                raise Internal(f"the last command on {name} failed: {failed}")
            return Done(asyncio.run(_with_engine(config, lambda engine: _address(engine, name))))
        try:
            done = asyncio.run(_with_engine(config, lambda engine: _changed(engine, verb, name, snapshot, wait)))
        except EngineError as error:
            record.write_text(f"vmrun {verb} {snapshot}: {error.message}")
            raise
        record.write_text("")
    return done


@contextlib.contextmanager
def _turn(name: str) -> Iterator[Path]:
    """Alone with a machine; the file that tells whether the last command failed."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tclone" / "vmrun"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = home / name
    with open(record, "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield record


async def _with_engine(config: Config, work: Any) -> Any:
    async with EngineClient(config.socket) as engine:
        return await work(engine)


# What the labels of workspaces say. Labels last as long as the workspaces, and people see them in the portal.


def _machine_label(name: str) -> str:
    return MACHINE + name


def _snapshot_label(name: str, snapshot: str) -> str:
    return f"{snapshot}{SNAPSHOT}{name}"


def _newest(found: list[dict[str, Any]]) -> dict[str, Any] | None:
    return max(found, key=lambda one: int(one["id"].partition("-")[2]), default=None)


def _machine_in(listed: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The workspace that is the machine now: the last that was forked for it, or the one of its name."""
    labelled = [one for one in listed if one["label"] == _machine_label(name)]
    return _newest(labelled) or next((one for one in listed if one["name"] == name), None)


def _snapshot_in(listed: list[dict[str, Any]], name: str, snapshot: str) -> dict[str, Any]:
    found = _newest([one for one in listed if one["label"] == _snapshot_label(name, snapshot)])
    if found is None:
        raise NotFound(f"{name} has no snapshot {snapshot}; `vmrun snapshot {PREFIX}{name} {snapshot}` makes one")
    return found


async def _list(engine: EngineClient) -> str:
    names = set()
    for one in await engine.list():
        if one["desktop"] and one["state"] in ("ready", "forking", "starting"):
            if one["label"].startswith(MACHINE):
                names.add(one["label"].removeprefix(MACHINE))
            elif one["osworld"] is not None and SNAPSHOT not in one["label"]:
                names.add(one["name"])
    return "\n".join([f"Total running VMs: {len(names)}", *(PREFIX + name for name in sorted(names))])


async def _snapshots(engine: EngineClient, name: str) -> str:
    end = SNAPSHOT + name
    names = sorted({one["label"].removesuffix(end) for one in await engine.list() if one["label"].endswith(end)})
    return "\n".join([f"Total snapshots: {len(names)}", *names])


async def _changed(engine: EngineClient, verb: str, name: str, snapshot: str, wait: bool) -> Done:
    """Carry out a command that changes the machine."""
    listed = await engine.list()
    machine = _machine_in(listed, name)
    match verb:
        case "snapshot":
            return Done("", await _snap(engine, listed, _there(machine, name), name, snapshot))
        case "revertToSnapshot":
            await _fork_machine(engine, _snapshot_in(listed, name, snapshot), name)
            address = await _address(engine, name) if wait else ""
            return Done(address, machine["id"] if machine is not None else None)
        case "deleteSnapshot":
            return Done("", _snapshot_in(listed, name, snapshot)["id"])
        case "start":
            if machine is None:
                await _fork_machine(engine, _any_snapshot(listed, name), name)
            elif machine["osworld"] is None:
                await engine.open_osworld(machine["id"])
            return Done("")
        case _:
            # What cannot be started again is not stopped.
            found = _there(machine, name)
            _any_snapshot(listed, name)
            return Done("", found["id"])


def _there(machine: dict[str, Any] | None, name: str) -> dict[str, Any]:
    if machine is None:
        raise NotFound(f"no machine {name}: launch a desktop of that name (`tclone run webtop-xfce --osworld --name {name}`)")
    return machine


def _any_snapshot(listed: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The newest snapshot. Raises Conflict."""
    found = _newest([one for one in listed if one["label"].endswith(SNAPSHOT + name)])
    if found is None:
        raise Conflict(f"{name} has no snapshot to be started from; `vmrun snapshot {PREFIX}{name} init_state` makes one")
    return found


async def _snap(engine: EngineClient, listed: list[dict[str, Any]], machine: dict[str, Any], name: str, snapshot: str) -> str | None:
    label = _snapshot_label(name, snapshot)
    before = _newest([one for one in listed if one["label"] == label])
    made = await _forked(engine, machine, label)
    # Nobody is to act in a snapshot by mistake, and it does not go on by itself either.
    await engine.close_osworld(made)
    await engine.pause(made)
    return before["id"] if before is not None else None


async def _fork_machine(engine: EngineClient, snapshot: dict[str, Any], name: str) -> None:
    """The snapshot's programs run for as long as the fork needs them to."""
    await engine.resume(snapshot["id"])
    try:
        # The portal begins to listen while the snapshot is paused.
        await engine.open_osworld(await _forked(engine, snapshot, _machine_label(name)))
    finally:
        await engine.pause(snapshot["id"])


async def _forked(engine: EngineClient, source: dict[str, Any], label: str) -> str:
    """The id of one branch. Raises EngineError."""
    branch = (await engine.fork(source["id"], labels=[label]))["branches"][0]
    if branch["error"]:
        await engine.remove(branch["id"])
        raise Internal(f"the fork of {source['id']} failed: {branch['error']}")
    return str(branch["id"])


async def _address(engine: EngineClient, name: str) -> str:
    """Wait until the machine can be used: `host:server:chromium:vnc:vlc`. There are no ports of the last two kinds: 0."""
    async for machine in _looks(engine, name):
        if machine["state"] in ("failed", "stopped"):
            raise Conflict(f"{machine['id']}, which is {name}, is {machine['state']}: {machine['error']}")
        if machine["state"] in ("ready", "forking") and machine["osworld"] is None:
            raise Conflict(f"{machine['id']}, which is {name}, has no OSWorld server; `vmrun start {PREFIX}{name}` gives it one")
        if machine["state"] == "ready" and await _answers(machine["osworld"]):
            return f"127.0.0.1:{machine['osworld']}:{machine['ports'].get(str(CHROMIUM), 0)}:0:0"
    raise Unavailable(f"the OSWorld server of {name} does not answer; `tclone up` starts the portal, which serves it")


async def _looks(engine: EngineClient, name: str) -> AsyncIterator[dict[str, Any]]:
    deadline = asyncio.get_running_loop().time() + _READY_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        yield _there(_machine_in(await engine.list(), name), name)
        await asyncio.sleep(_LOOK_SECONDS)


async def _answers(port: int) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5), trust_env=False) as session, session.get(f"http://127.0.0.1:{port}/platform") as answer:
            return answer.status == 200
    return False
