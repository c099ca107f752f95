"""`tclone promote`: chosen files of a workspace become those of its parent, or of another."""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli import output
from engine.client import EngineClient
from engine.errors import Conflict

_SIGNS = {"added": "+", "changed": "~", "deleted": "-"}
_FAILED = 1


async def promote(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Print each path with what became of it. Raises BadRequest, Conflict, LimitReached, NoSpace, NotFound; the status is 1 when a path failed."""
    try:
        done = await client.promote(arguments.workspace, arguments.paths, into=arguments.to, force=arguments.force, dry_run=arguments.dry_run)
    except Conflict as error:
        raise Conflict(error.message.replace("ask for `force`", "give --force")) from error
    paths: list[dict[str, Any]] = done["paths"]
    if arguments.json:
        output.as_json(done)
    else:
        for one in paths:
            reason = f"  {one['outcome']}: {one['reason']}" if one["reason"] else ""
            print(output.printable(f"{_SIGNS.get(one['change'], '?')} {one['path']}{reason}"))
        if not paths:
            output.note(f"{done['into']} has it all already")
        elif done["dry_run"]:
            output.note(f"nothing was done; without --dry-run these become {done['into']}'s")
    return _FAILED if any(one["outcome"] == "failed" for one in paths) else 0
