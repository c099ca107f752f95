"""The Python SDK and the command line on a real desktop, through TLS and the portal; and the examples of the documentation, as they are."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import select
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat

import tclone
from engine.client import EngineClient
from engine.config import REPO
from tclone import aio
from tests.agents.desk import PATIENCE, Desk, eventually
from tests.engine.support import Engine
from tests.portal.conftest import Portal, token_of
from tests.portal.front import Front

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
async def environment(portal: Portal) -> AsyncIterator[dict[str, str]]:
    """What a program finds: the portal's address, a token and the authority."""
    async with Front(portal.places) as front:
        token = await token_of(await portal.login(), "control", "fork")
        yield {"TCLONE_URL": f"https://tclone.localhost:{front.port}", "TCLONE_TOKEN": token, "TCLONE_CA": str(portal.places.ca_certificate)}


@pytest.fixture
async def agent(environment: dict[str, str]) -> AsyncIterator[aio.Client]:
    async with aio.Client(environment["TCLONE_URL"], token=environment["TCLONE_TOKEN"], ca=environment["TCLONE_CA"]) as client:
        yield client


async def test_a_program_acts_and_looks_over_one_connection(agent: aio.Client, desk: Desk) -> None:
    source = await agent.workspace(desk.ref)
    await desk.editor()
    async with source.control() as control, contextlib.aclosing(control.frames(format="png")) as frames:
        first = await anext(frames)
        assert first.image().size == first.screen == (1280, 800)
        await control.type("over <one> connection €")
        # The picture shows it without being asked for.
        seen = await asyncio.wait_for(anext(frames), PATIENCE)
        assert seen.tag != first.tag
        await control.move(1279, 799)
        assert await control.cursor() == (1279, 799)
    assert await desk.saved() == "over <one> connection €"
    async with source.control() as control:
        await control.key_down("shift")
        await control.mouse_down(640, 300)
        await desk.holds([50], [1])
    await desk.nothing_is_pressed()


async def test_a_program_hears_when_what_it_looked_at_changes(agent: aio.Client, desk: Desk) -> None:
    """However it asked for the picture, and of that part only: elsewhere there is a clock."""
    source = await agent.workspace(desk.ref)
    part = (60, 60, 700, 700)
    ways: tuple[dict[str, Any], ...] = ({}, {"width": 320}, {"format": "jpeg", "width": 300, "height": 400}, {"max_bytes": 40_000}, {"format": "webp"})
    seen = [await source.screenshot(region=part, settle=5, **way) for way in ways]
    assert [shot.size for shot in seen] == [(640, 640), (320, 320), (300, 400), (640, 640), (640, 640)] and {shot.screen for shot in seen} == {(1280, 800)}
    assert seen[3].content_type == "image/jpeg" and len(seen[3].content) <= 40_000
    async with source.control() as control, contextlib.aclosing(control.frames(region=part)) as frames:
        seen.append(await anext(frames))
    for shot in seen:
        with pytest.raises(tclone.TimedOut, match=r"did not change within 0\.3 s"):
            await source.wait_for_change(shot, 0.3)
    waiting = [asyncio.ensure_future(source.wait_for_change(shot, PATIENCE)) for shot in seen]
    await desk.shell("setsid -f xev -geometry 200x100+900+300 -name elsewhere >/dev/null 2>&1")
    await desk.window("elsewhere")
    assert not any(task.done() for task in waiting)
    await desk.shell("setsid -f xev -geometry 200x100+300+300 -name here >/dev/null 2>&1")
    for shot, changed in zip(seen, await asyncio.gather(*waiting), strict=True):
        assert changed.tag != shot.tag and (changed.size, changed.content_type) == (shot.size, shot.content_type)
    before, after = (shot.image().convert("RGB") for shot in (seen[0], await source.screenshot(region=part, settle=5)))
    box = ImageChops.difference(before, after).getbbox()
    # The window and its frame, and nothing of the other one.
    assert box is not None and 0 < box[0] <= 240 and 440 <= box[2] < 500 and 0 < box[1] <= 240 and 340 <= box[3] < 400


async def test_a_noisy_screen_fits_into_a_megabyte(agent: aio.Client, desk: Desk) -> None:
    noise = Image.frombytes("RGB", (1280, 800), random.Random(1).randbytes(1280 * 800 * 3))
    file = io.BytesIO()
    noise.save(file, "PNG", compress_level=0)
    source = await agent.workspace(desk.ref)
    await source.files.write("/home/user/noise.png", file.getvalue())
    await desk.shell("setsid -f ristretto --fullscreen noise.png >/dev/null 2>&1")
    try:

        async def shown() -> bool:
            return len((await source.screenshot(settle=1)).content) > 2_000_000

        await eventually("the noise is shown", shown)
        for format, kind in (("png", "JPEG"), ("jpeg", "JPEG"), ("webp", "WEBP")):
            shot = await source.screenshot(format=format, max_bytes=1_000_000)
            image = shot.image()
            assert len(shot.content) <= 1_000_000 and (image.format, image.size, shot.size) == (kind, (1280, 800), (1280, 800)), format
            assert shot.content_type == f"image/{kind.lower()}"
            # It is what is shown, not a grey that is easy to compress.
            assert ImageStat.Stat(image.convert("L")).stddev[0] > 15, format
        with pytest.raises(tclone.BadRequest, match="ask for a smaller one"):
            await source.screenshot(max_bytes=10_000)
    finally:
        await desk.shell("pkill -9 ristretto; rm -f noise.png; true")


async def test_a_blocking_program_forks_acts_and_carries_a_file_over(environment: dict[str, str], desk: Desk) -> None:
    await desk.shell("rm -rf result notes; echo source >notes")

    def work() -> list[str]:
        reach = environment["TCLONE_URL"]
        with tclone.Client(reach, token=environment["TCLONE_TOKEN"], ca=environment["TCLONE_CA"]) as client:
            source = client.workspace(desk.ref)
            left, right = source.fork(2, labels=["left", "right"])
            assert isinstance(left, tclone.Workspace) and isinstance(right, tclone.Workspace)
            with left, right:
                for branch in (left, right):
                    branch.exec(f"mkdir -p result; printf %s {branch.info.label} | tee result/a b+c >notes", cwd="/home/user", check=True)
                    branch.clipboard.set(branch.id)
                assert [branch.clipboard.get() for branch in (left, right)] == [left.id, right.id]
                changed = {change.path: change.change for change in left.files.diff()}
                assert changed[b"/home/user/notes"] == "changed" and changed[b"/home/user/result"] == "added"
                left.files.promote(source, ["/home/user/result/a", "/home/user/notes"])
                assert right.files.read_text("/home/user/notes") == "right"
                with left.start("echo one; echo two >&2; sleep 100") as process:
                    output = process.output()
                    got = {next(output).stream, next(output).stream}
                assert got == {1, 2}
                told = [left.id, right.id]
            assert {found.id for found in client.workspaces()}.isdisjoint(told)
            with pytest.raises(tclone.NotFound):
                left.click(1, 1)
            return told

    await asyncio.to_thread(work)
    assert await desk.shell("cat notes result/a; ls result; rm -r notes result") == "leftlefta\n"


async def test_a_paused_branch_stands_still(agent: aio.Client, desk: Desk) -> None:
    source = await agent.workspace(desk.ref)
    (branch,) = await source.fork()
    assert isinstance(branch, aio.Workspace)
    async with branch:
        await branch.exec("setsid -f sh -c 'while :; do date +%s%N >/tmp/now; sleep 0.05; done' >/dev/null 2>&1", check=True)
        await eventually("it counts", lambda: _read(branch))
        await branch.pause()
        first = await branch.files.read("/tmp/now")
        await asyncio.sleep(0.5)  # nothing may happen meanwhile
        assert await branch.files.read("/tmp/now") == first
        await branch.resume()

        async def went_on() -> bool:
            return await branch.files.read("/tmp/now") != first

        await eventually("it goes on", went_on)


async def _read(branch: aio.Workspace) -> bytes | None:
    with contextlib.suppress(tclone.NotFound):
        return await branch.files.read("/tmp/now")
    return None


async def test_the_command_line_attaches_looks_and_types(engine: Engine, desk: Desk, tmp_path: Path) -> None:
    environment = {
        **os.environ, "TCLONE_DATA": str(engine.config.data), "TCLONE_RUN": str(engine.config.run), "PYTHONPATH": str(REPO), "TERM": "xterm",
    }  # fmt: skip
    tclone_ = [sys.executable, "-m", "engine.cli.main"]

    async def run(*words: str) -> None:
        process = await asyncio.create_subprocess_exec(*tclone_, *words, env=environment, stdin=asyncio.subprocess.DEVNULL)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0

    ours, its = os.openpty()
    process = await asyncio.create_subprocess_exec(*tclone_, "attach", desk.ref, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True)
    os.close(its)
    try:
        # What is typed before the multiplexer has the terminal it throws away.
        await asyncio.to_thread(_read_until, ours, b"$ ")
        os.write(ours, b"echo in-$((40+2)) >attached; echo rea''dy\n")
        await asyncio.to_thread(_read_until, ours, b"ready")
        # Leaving is no end: the session lives on.
        os.write(ours, b"\x02d")
        await asyncio.to_thread(_read_until, ours, b"detached")
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    finally:
        os.close(ours)
    assert (await desk.shell("cat attached; rm attached; tmux list-sessions -F '#S'; tmux kill-server")) == "in-42\nmain\n"
    await desk.editor()
    await run("type", desk.ref, "by command ☃")
    await run("key", desk.ref, "shift+Home", "ctrl+c")
    assert await desk.saved() == "by command ☃"
    await run("screenshot", desk.ref, "-o", str(tmp_path / "desk.png"))
    assert (tmp_path / "desk.png").read_bytes().startswith(b"\x89PNG")
    await run("click", desk.ref, "5", "7")
    assert await desk.cursor() == [5, 7]


def _read_until(terminal: int, mark: bytes) -> None:
    seen, deadline = b"", time.monotonic() + PATIENCE
    while mark not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"no {mark!r} came:\n{seen.decode(errors='replace')}"
        seen += os.read(terminal, 65536)


async def _example(name: str, environment: dict[str, str]) -> list[str]:
    """The lines that an example of the documentation prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(REPO / "examples" / name), env={**os.environ, **environment, "PYTHONPATH": str(REPO)}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 300)
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        pytest.fail(f"{name} did not end; it printed:\n{out.decode()}")
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


async def test_best_of_n(environment: dict[str, str], client: EngineClient) -> None:
    lines = await _example("best_of_n.py", environment)
    points = {line.split()[3].rstrip(":"): float(line.split()[-1]) for line in lines if line.startswith("step")}
    assert points["save"] == 2.0 and points["write_right"] > max(points["write_half"], points["write_in_capitals"])
    assert lines[-2].endswith("in generation 2, by save") and lines[-1] == "the source has: The <quick> fox costs 3 € & jumps"
    assert [one["name"] for one in await client.list()] == ["source"]


async def test_parallel_browsing(environment: dict[str, str], client: EngineClient) -> None:
    lines = await _example("parallel_browsing.py", environment)
    assert [line.rpartition(": ")[2] for line in lines[:3]] == ["(192, 16, 32)", "(16, 128, 48)", "(16, 48, 192)"]
    assert all(f"All about {topic}" in line for topic, line in zip(("red", "green", "blue"), lines, strict=False))
    assert lines[3].startswith("the source: Topics")
    assert [one["name"] for one in await client.list()] == ["source"]


async def test_a_coding_race(environment: dict[str, str], client: EngineClient) -> None:
    async for _ in client.build("workspace"):
        pass
    lines = await _example("coding_race.py", environment)
    assert "the half: passed" in lines and lines[-1] == "the source, with the winner's 1 file: PASSED"
    assert [one["name"] for one in await client.list()] == ["source"]
