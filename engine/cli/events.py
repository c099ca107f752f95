"""`tclone events`: what happened to workspaces, a line each."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime
from typing import Any

from engine.cli.output import printable, state
from engine.client import EngineClient

Event = dict[str, Any]


async def events(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Print what the engine remembers and, with `--follow`, what comes."""
    wanted = None
    if arguments.workspace is not None:
        # One that is gone is known by its id alone.
        known = next((one for one in await client.list() if arguments.workspace in (one["id"], one["name"])), None)
        wanted = known["id"] if known is not None else arguments.workspace
    kept = await client.kept_events()
    for event in [event for event in kept["events"] if _is_of(event, wanted)][-(arguments.tail or 0) :]:
        _show(event, arguments.json)
    if not arguments.follow:
        return 0
    async for event in client.events(kept["seq"]):
        if event["type"] not in ("snapshot", "disconnected") and _is_of(event, wanted):
            _show(event, arguments.json)
    return 0


def _is_of(event: Event, wanted: str | None) -> bool:
    return wanted is None or event.get("workspace") == wanted


def _show(event: Event, as_json: bool) -> None:
    if as_json:
        print(json.dumps(event))
    else:
        when = datetime.fromtimestamp(event["time"]).strftime("%H:%M:%S.%f")[:-3]
        print(f"{when}  {printable(event.get('workspace') or '-'):<8}  {_words(event)}")
    # Whoever reads a pipe of this wants each line when it comes.
    sys.stdout.flush()


def _words(event: Event) -> str:
    data = event.get("data") or {}
    match event["type"]:
        case "workspace":
            words = f"{state(data)}  {data.get('name')}" + (f"  {data['error']}" if data.get("error") else "")
        case "progress":
            elapsed = f"  {data['elapsed_ms']:.1f} ms" if isinstance(data.get("elapsed_ms"), int | float) else ""
            words = f"{data.get('operation')}: {data.get('phase')} {data.get('detail') or ''}".rstrip() + elapsed
        case "fork":
            made = ", ".join(str(branch["id"]) for branch in data.get("branches", []) if not branch.get("error"))
            failed = sum(1 for branch in data.get("branches", []) if branch.get("error"))
            words = f"forked into {made or 'nothing'}" + (f"; {failed} failed" if failed else "")
        case kind:
            words = f"{kind}  {data.get('name', '')}".rstrip() if isinstance(data, dict) else str(kind)
    return printable(words)
