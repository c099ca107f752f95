"""`tclone doctor`: the engine's checks of this machine, by the running engine or, without one, here."""

from __future__ import annotations

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
