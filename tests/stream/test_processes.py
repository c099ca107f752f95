"""The two real processes with two workers, engine and desktop played: what a viewer sees of a killed control and of a killed worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.stream.stack import PATIENCE, Stack, running, until, viewer_session

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running() as made:
        yield made


async def _next(viewer: aiohttp.ClientWebSocketResponse) -> int:
    """The number of the next picture."""
    message = await viewer.receive(timeout=PATIENCE)
    assert message.type is aiohttp.WSMsgType.BINARY, message
    return int.from_bytes(message.data, "big")


async def test_a_stream_goes_on_while_control_is_killed_and_what_ended_meanwhile_ends_with_its_return(stack: Stack) -> None:
    async with viewer_session(stack) as http, stack.login() as staying, stack.login() as leaving:
        cookies = [await stack.enter(http, browser) for browser in (staying, leaving)]
        async with stack.view(http, cookies[0]) as kept, stack.view(http, cookies[1]) as ended:
            first = await _next(kept)
            control = stack.processes["control"]
            control.kill()
            await control.wait()
            numbers = [await _next(kept) for _ in range(50)]
            # Not one picture is missing, and none was held back.
            assert numbers == list(range(first + 1, first + 51))
            await until(lambda: stack.control_is(False))
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await stack.view(http, cookies[0])
            assert refused.value.status == 503
            again = await stack.start("control")
            await until(stack.watching)
            # The session that stayed is let in again with the cookie it has.
            async with stack.view(http, cookies[0]) as another:
                await _next(another)
            assert (await leaving.request("POST", "/api/v1/logout", {})).status == 204
            async with asyncio.timeout(PATIENCE):
                while (message := await ended.receive()).type is aiohttp.WSMsgType.BINARY:
                    pass
            assert message.type is aiohttp.WSMsgType.CLOSE and ended.close_code == 1008
            await _next(kept)
            assert again.returncode is None


async def _goes_on(viewer: aiohttp.ClientWebSocketResponse) -> bool:
    """Whether pictures still come after what a worker had sent before it was killed has been read; that takes far less than these two seconds."""
    end = asyncio.get_running_loop().time() + 2
    while asyncio.get_running_loop().time() < end:
        if (await viewer.receive(timeout=PATIENCE)).type is not aiohttp.WSMsgType.BINARY:
            return False
    return True


async def test_a_killed_worker_takes_only_its_own_streams_along_and_is_replaced(stack: Stack) -> None:
    workers = {int((await stack.health(name))["pid"]): name for name in ("stream", "stream-1")}
    assert len(workers) == 2
    async with viewer_session(stack) as http, stack.login() as browser, contextlib.AsyncExitStack() as viewers:
        cookie = await stack.enter(http, browser)
        opened = [await viewers.enter_async_context(stack.view(http, cookie)) for _ in range(10)]
        counts = {name: int((await stack.health(name))["websockets"]) for name in workers.values()}
        assert sum(counts.values()) == 10
        victim = next(pid for pid, name in workers.items() if name == "stream-1")
        os.kill(victim, signal.SIGKILL)
        await until(lambda: stack.replaced("stream-1", victim))
        assert sum(await asyncio.gather(*map(_goes_on, opened))) == counts["stream"]
        await until(stack.watching)
        async with stack.view(http, cookie) as viewer:
            await _next(viewer)
