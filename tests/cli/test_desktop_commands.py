"""screenshot, click, type, key, events: what reaches the engine, and what comes out. On a real desktop: tests/agents/test_sdk.py."""

from __future__ import annotations

import asyncio
import json
import os
import pty
from pathlib import Path
from typing import Any

from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine


def _acted(engine: FakeEngine) -> list[dict[str, Any]]:
    return [action for _, path, body in engine.requests if path.endswith("/actions") for action in body["actions"]]


async def test_a_picture_goes_to_a_file_or_stdout_but_to_no_terminal(engine: FakeEngine, tclone: Tclone, tmp_path: Path) -> None:
    engine.add("desk")
    file = tmp_path / "desk.jpg"
    assert (await tclone("screenshot", "desk", "-o", str(file), "--width", "640", "--region", "0,0,100,100", "--settle", "1.5")).status == 0
    assert file.read_bytes() == b"\x89PNG picture"
    (asked,) = [path for _, path, _ in engine.requests if "/screenshot" in path]
    assert "format=jpeg" in asked and "width=640" in asked and "region=0%2C0%2C100%2C100" in asked and "settle_ms=1500" in asked
    process = await asyncio.create_subprocess_exec(*tclone.argv("screenshot", "desk"), stdout=asyncio.subprocess.PIPE, env=tclone.environment)
    out, _ = await process.communicate()
    assert out == b"\x89PNG picture"
    ours, its = pty.openpty()
    process = await asyncio.create_subprocess_exec(*tclone.argv("screenshot", "desk"), stdout=its, stderr=asyncio.subprocess.PIPE, env=tclone.environment)
    _, err = await process.communicate()
    os.close(its)
    os.close(ours)
    assert process.returncode == 2 and b"-o FILE" in err


async def test_actions_reach_the_engine_and_a_failure_is_told(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    assert (await tclone(*"click desk 640 400 --button right --count 2 --modifiers ctrl+shift".split())).status == 0
    assert (await tclone("key", "desk", "ctrl+a", "Delete")).status == 0
    assert (await tclone("type", "desk", "-", stdin="é\n".encode() + b"x" * 10_000)).status == 0
    acted = _acted(engine)
    assert acted[0] == {"action": "click", "x": 640, "y": 400, "button": "right", "count": 2, "modifiers": "ctrl+shift"}
    assert [action["keys"] for action in acted[1:3]] == ["ctrl+a", "Delete"]
    assert [len(action["text"]) for action in acted[3:]] == [10_000, 2] and acted[3]["text"].startswith("é\n")
    done = await tclone("type", "desk", "fail")
    assert (done.status, done.err) == (5, "tclone: a person took control\n")
    assert (await tclone("type", "desk", "-", stdin=b"\xff")).status == 2
    for wrong in (["click", "desk", "-1", "2"], ["screenshot", "desk", "--region", "1,2,3"], ["attach", "desk", "--session", "a:b"]):
        assert (await tclone(*wrong)).status == 2


async def test_events_are_told_for_people_and_for_programs(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    engine.kept = [
        {"seq": 1, "time": 0.0, "type": "workspace", "workspace": "ws-1", "data": {"state": "ready", "name": "desk\x1b[31m"}},
        {"seq": 2, "time": 1.5, "type": "progress", "workspace": "ws-1", "data": {"operation": "fork", "phase": "frozen", "elapsed_ms": 21.93, "detail": None}},
        {"seq": 3, "time": 2.0, "type": "fork", "workspace": "ws-1", "data": {"branches": [{"id": "ws-2", "error": None}, {"id": "", "error": "no"}]}},
        {"seq": 4, "time": 2.5, "type": "workspace", "workspace": "ws-1", "data": {"state": "ready", "paused": True, "name": "desk"}},
        {"seq": 5, "time": 3.0, "type": "gone", "workspace": "ws-9", "data": {"name": "old"}},
    ]
    lines = [line.split(maxsplit=1)[1] for line in (await tclone("events")).out.splitlines()]
    assert lines == ["ws-1      ready  desk�[31m", "ws-1      fork: frozen  21.9 ms", "ws-1      forked into ws-2; 1 failed", "ws-1      paused  desk", "ws-9      gone  old"]
    done = await tclone("events", "--json", "-n", "2", "desk")
    assert [json.loads(line)["seq"] for line in done.out.splitlines()] == [3, 4]
    assert (await tclone("events", "ws-9")).out.split()[1:] == ["ws-9", "gone", "old"]


async def test_events_go_on_until_told_to_stop(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    process = await asyncio.create_subprocess_exec(*tclone.argv("events", "-f", "--json"), stdout=asyncio.subprocess.PIPE, env=tclone.environment)
    assert process.stdout is not None
    while not engine._watchers:
        await asyncio.sleep(0.02)
    await engine._tell({"type": "gone", "workspace": "ws-1", "data": {"name": "desk"}})
    assert json.loads(await asyncio.wait_for(process.stdout.readline(), 30))["type"] == "gone"
    process.send_signal(2)
    assert await asyncio.wait_for(process.wait(), 30) == 130


async def test_attach_wants_a_terminal(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    done = await tclone("attach", "desk")
    assert done.status == 2 and "not a terminal" in done.err
