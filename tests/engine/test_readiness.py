"""When a desktop counts as ready: against a stream server that shows what a session draws one after the other. A real one: tests/e2e.

The server listens in this process's own network namespace, so this process stands in for a workspace's first one.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import AsyncIterator, Iterator
from itertools import chain, count, repeat

import pytest
from aiohttp import web
from PIL import Image

from engine import readiness, syscalls
from engine.errors import Unavailable
from engine.workspace import State, Workspace

BLACK, BACKGROUND, COMPLETE = 0, 1, 2


def png(number: int) -> bytes:
    """A picture like no other one; that of BLACK has one colour only."""
    image = Image.new("RGB", (64, 40))
    if number:
        image.putpixel((number % 64, 20 + number // 64), (200, 40, 40))
    made = io.BytesIO()
    image.save(made, "png")
    return made.getvalue()


class Session:
    """`drawn` yields the number of each picture that is asked for; `shown` are those that were sent."""

    def __init__(self) -> None:
        self.drawn: Iterator[int] = repeat(COMPLETE)
        self.shown: list[int] = []
        self.tokens: dict[str, object] = {}

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def set_tokens(self, request: web.Request) -> web.Response:
        self.tokens = await request.json()
        return web.Response()

    async def screenshot(self, _: web.Request) -> web.Response:
        self.shown.append(next(self.drawn))
        return web.Response(body=png(self.shown[-1]), content_type="image/png")


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
async def workspace(session: Session) -> AsyncIterator[Workspace]:
    app = web.Application()
    app.add_routes([web.get("/api/health", session.health), web.post("/api/tokens", session.set_tokens), web.get("/api/screenshot", session.screenshot)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    pid = os.getpid()
    yield Workspace(
        "ws-1", "desk", "source", "image", State.STARTING, desktop=True, stream_port=port, pid=pid, pid_start=syscalls.start_time(pid), master_token="master"
    )
    await runner.cleanup()


async def ready(workspace: Workspace, at_rest: bool, seconds: float = 30.0) -> float:
    """How many seconds it took."""
    began = time.monotonic()
    await readiness.desktop_ready(workspace, "token", seconds, lambda _: None, at_rest)
    return time.monotonic() - began


async def test_a_new_session_is_complete_before_it_is_ready(session: Session, workspace: Workspace) -> None:
    session.drawn = chain([BLACK, BLACK, BACKGROUND, BACKGROUND, BACKGROUND], repeat(COMPLETE))
    assert await ready(workspace, at_rest=True) >= readiness._REST_SECONDS
    assert session.shown[-2:] == [COMPLETE, COMPLETE]
    assert set(session.tokens) == {"token", readiness.viewer_token("token")}


async def test_a_branch_is_ready_with_its_first_picture(session: Session, workspace: Workspace) -> None:
    session.drawn = chain([BLACK, BACKGROUND], repeat(COMPLETE))
    await ready(workspace, at_rest=False)
    assert session.shown == [BLACK, BACKGROUND]


async def test_a_session_that_never_rests_is_ready_all_the_same(session: Session, workspace: Workspace) -> None:
    session.drawn = count(1)
    assert await ready(workspace, at_rest=True) >= readiness._RESTLESS_SECONDS


async def test_a_screen_of_one_colour_is_never_ready(session: Session, workspace: Workspace) -> None:
    session.drawn = repeat(BLACK)
    with pytest.raises(Unavailable, match="did not get past `first picture` within 1 s"):
        await ready(workspace, at_rest=True, seconds=1.0)
