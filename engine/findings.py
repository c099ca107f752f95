"""What keeps a workspace from being forked (blockers), and what its branches will not have (warnings)."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from engine.errors import Conflict, Internal, Unsupported
from engine.manager import Manager
from engine.text import printable
from engine.workspace import State, Workspace

Finding = dict[str, Any]

_CHECK_SECONDS = 60.0  # 4096 processes with 70 000 mappings each would take about as long
_ATTEMPTS = 50
_FORK_PASSES_SECONDS = 0.1
_GONE = 4  # exit status of tclone-livefork
_COMMAND_LIMIT = 64
_MESSAGE_LIMIT = 1024
_LINES_IN_MESSAGE = 20


def finding(message: str, remedy: str, pid: int | None = None, command: str | None = None, fd: int | None = None) -> Finding:
    """One blocker or warning. `pid` is the workspace's own numbering; `message` ends with the remedy."""
    return {"pid": pid, "command": command, "fd": fd, "message": f"{message}; {remedy}", "remedy": remedy}


def checked(raw: object) -> Finding:
    """A finding as the native program sent it, with nothing in it that a terminal would obey. Raises Internal."""
    if not isinstance(raw, dict):
        raise Internal("the fork program sent a blocker that is not an object")
    return {
        "pid": _integer(raw.get("pid")),
        "command": printable(raw["command"], _COMMAND_LIMIT) if raw.get("command") else None,
        "fd": _integer(raw.get("fd")),
        "message": printable(raw.get("message", ""), _MESSAGE_LIMIT),
        "remedy": printable(raw.get("remedy", ""), _MESSAGE_LIMIT),
    }


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def refusal(blockers: list[Finding], message: str) -> Unsupported:
    """The error of a refused fork: one line for each blocker, all of them as a list beside it. `message` stands for an empty list."""
    lines = [blocker["message"] for blocker in blockers[:_LINES_IN_MESSAGE]] or [message]
    if len(blockers) > _LINES_IN_MESSAGE:
        lines.append(f"and {len(blockers) - _LINES_IN_MESSAGE} more; `tclone doctor WS` lists them")
    return Unsupported("\n".join(lines), blockers)


async def examine(manager: Manager, workspace: Workspace) -> dict[str, Any]:
    """The answer of `GET /v1/workspaces/{ref}/doctor`. Nothing is stopped. Raises Conflict when the workspace does not run."""
    for _ in range(_ATTEMPTS):
        if not workspace.alive or not workspace.pid:
            raise Conflict(f"{workspace.id} does not run; it is {workspace.state.value}")
        begun = workspace.state is State.FORKING, manager.forks_begun[workspace.id]
        found = await asyncio.to_thread(_check, manager.tools.livefork, workspace)
        # A fork meanwhile is a debugger to whoever looks at the processes.
        if begun == (False, manager.forks_begun[workspace.id]):
            break
        await asyncio.sleep(_FORK_PASSES_SECONDS)
    else:
        raise Conflict(f"{workspace.id} is being forked all the time; try again")
    blockers = [checked(item) for item in found["blockers"]]
    warnings = [checked(item) for item in found["warnings"]]
    if manager.cgroups.frozen(workspace.id):
        blockers.insert(0, finding(f"{workspace.id} is paused: its control group is frozen", "thaw it"))
    warnings += await asyncio.to_thread(_exec_sessions, manager.executor.pids(workspace.id))
    return {
        "workspace": workspace.id,
        "ok": not blockers,
        "blockers": blockers,
        "blockers_omitted": _integer(found["blockers_omitted"]) or 0,
        "warnings": warnings,
        "warnings_omitted": _integer(found["warnings_omitted"]) or 0,
        "processes": _integer(found["processes"]) or 0,
    }


def _check(program: Path, workspace: Workspace) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [program, "check", "--source", str(workspace.pid)], stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=_CHECK_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Internal(f"looking through the processes of {workspace.id} took longer than {_CHECK_SECONDS:g} s") from None
    except OSError as error:
        raise Internal(f"cannot start {program}: {error}") from error
    if done.returncode == _GONE:
        raise Conflict(f"the first process of {workspace.id} has just ended")
    try:
        found = json.loads(done.stdout)
        if done.returncode == 0 and {"blockers", "warnings", "blockers_omitted", "warnings_omitted", "processes"} <= set(found):
            return found
    except ValueError:
        pass
    detail = printable(done.stderr.decode(errors="replace").strip(), _MESSAGE_LIMIT)
    raise Internal(f"looking through the processes of {workspace.id} failed: {detail or done.returncode}")


def _exec_sessions(pids: list[int]) -> list[Finding]:
    """Commands that `tclone exec` is attached to hang on the host's ends of their streams: no branch has them."""
    found = []
    for pid in pids:
        try:
            command = printable(Path(f"/proc/{pid}/comm").read_bytes().rpartition(b"\n")[0].decode(errors="replace"), _COMMAND_LIMIT)
            number = _number_inside(Path(f"/proc/{pid}/status").read_bytes())
        except (OSError, ValueError, IndexError):
            continue  # it has ended
        what = f"pid {number} ({command}) belongs to a `tclone exec` that is still attached, so branches do not have it"
        found.append(finding(what, "start what shall be forked in the background with `setsid`", number, command))
    return found


def _number_inside(status: bytes) -> int:
    """The pid as its own namespace counts it. The line of the name has its control characters escaped by the kernel."""
    line = next(line for line in status.splitlines() if line.startswith(b"NSpid:"))
    return int(line.split()[-1])
