"""Places on real screens of several sizes: a picture has the screen's pixels, and a click lands on just the one that was meant, by pixels."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator

import pytest
from PIL import Image

from engine.client import EngineClient
from engine.desktop import xdesktop
from engine.desktop.connection import Connection
from engine.desktop.held import Held
from engine.errors import BadRequest
from tests.agents.conftest import IMAGE
from tests.agents.desk import GUEST, Desk, eventually
from tests.engine.support import Engine, pids_of

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(900)]

_GET_GEOMETRY = 14
GROUND, CLICKED = (0x20, 0x40, 0x60), (0xFF, 0xFF, 0xFF)
Place = tuple[int, int]


async def picture(desk: Desk, **options: int) -> Image.Image:
    shot = await desk.client.screenshot(desk.ref, **options)
    assert shot is not None
    image = Image.open(io.BytesIO(shot.content)).convert("RGB")
    assert image.size == shot.screen == shot.size
    return image


def clicked(image: Image.Image) -> set[Place]:
    """Pixels that the board shows as clicked. There is nothing else on the screen but its ground."""
    colours = {colour for _, colour in image.getcolors(image.width * image.height) or []}
    assert colours <= {GROUND, CLICKED}, f"{len(colours)} colours are on the screen"
    data = image.tobytes()
    found, at = set(), data.find(bytes(CLICKED))
    while at >= 0:
        if at % 3 == 0:
            found.add((at // 3 % image.width, at // 3 // image.width))
        at = data.find(bytes(CLICKED), at + 1)
    return found


async def board(desk: Desk) -> None:
    await desk.shell("cat >board.py; setsid -f python3 board.py >board.log 2>&1", stdin=(GUEST / "board.py").read_bytes())

    async def shown() -> bool:
        image = await picture(desk)
        return image.getcolors(4) == [(image.width * image.height, GROUND)]

    await eventually("the board covers the screen", shown)


async def lands(desk: Desk, size: Place, places: set[Place], before: set[Place] = frozenset()) -> None:
    """Clicks at `places` of the screen of `size` are on just those pixels, and the pointer too."""
    for x, y in sorted(places):
        answer = await desk.act({"action": "click", "x": x, "y": y})
        assert (answer["cursor"], answer["screen"]) == ([x, y], list(size))

    async def there() -> bool:
        image = await picture(desk)
        assert image.size == size
        return clicked(image) >= places

    await eventually("the clicks were painted", there, 10)
    assert clicked(await picture(desk)) == places | set(before)


def corners(size: Place, inset: int = 0) -> set[Place]:
    near, right, bottom = inset, size[0] - 1 - inset, size[1] - 1 - inset
    return {(near, near), (right, near), (near, bottom), (right, bottom), (size[0] // 2 + inset, size[1] // 3)}


@contextlib.asynccontextmanager
async def of_size(client: EngineClient, size: Place) -> AsyncIterator[Desk]:
    launched = await client.launch(IMAGE, env={"DESKTOP_RES": f"{size[0]}x{size[1]}"}, wait=True)
    try:
        yield Desk(client, launched["id"])
    finally:
        await client.remove(launched["id"])


@pytest.mark.parametrize("size", [(1024, 768), (1280, 800), (1920, 1080), (1367, 769), (801, 1201)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_corners_are_exact_on_screens_of_every_size(client: EngineClient, size: Place) -> None:
    async with of_size(client, size) as desk:
        await board(desk)
        await lands(desk, size, corners(size))
        for x, y in ((size[0], 5), (5, size[1])):
            with pytest.raises(BadRequest, match=f"outside the picture of {size[0]}x{size[1]}: nothing was done"):
                await client.act(desk.ref, [{"action": "click", "x": x, "y": y}])
        result = await client.fork(desk.ref)
        branch = Desk(client, result["branches"][0]["id"])
        # What was there, and on it clicks of its own, of which the source has none.
        await lands(branch, size, corners(size, 1), corners(size))
        assert clicked(await picture(desk)) == corners(size)
        # A picture that is scaled: corners meet corners.
        known = (640, 400)
        await branch.act({"action": "click", "x": 639, "y": 399}, {"action": "click", "x": 0, "y": 399}, size=known)
        assert await branch.cursor() == [0, size[1] - 1]
        # A viewer of its stream leaves it as it is.
        told = await branch.viewer(3)
        assert told["frames"] and told["sizes"][-1] == [size[0] // 2 * 2, size[1] // 2 * 2]
        assert (await picture(branch)).size == size


_RESIZE = """
mode={0}x{1}
xrandr | grep -q "$mode " || {{ xrandr --newmode $mode 60 {0} {0} {0} {0} {1} {1} {1} {1} && xrandr --addmode screen $mode; }}
xrandr --output screen --mode $mode
"""


async def resized(desk: Desk, size: Place) -> None:
    """As a program in the workspace does it; the screen cannot become larger than it began."""
    await desk.shell(_RESIZE.format(*size))


async def test_a_resize_is_followed_at_once(client: EngineClient) -> None:
    full, small, odd = (1280, 800), (1024, 768), (901, 607)
    async with of_size(client, full) as desk:
        await board(desk)
        for size in (small, odd, full):
            await resized(desk, size)
            # No pause: the next picture and the next click know it.
            assert (await picture(desk)).size == size
            answer = await desk.act({"action": "move", "x": size[0] - 1, "y": size[1] - 1})
            assert (answer["cursor"], answer["screen"]) == ([size[0] - 1, size[1] - 1], list(size))
            await desk.act({"action": "move", "x": 639, "y": 0}, size=(640, 400))
            assert await desk.cursor() == [size[0] - 1, 0]
            await board_again(desk)
            await lands(desk, size, corners(size))
            if size != full:
                with pytest.raises(BadRequest, match="outside the picture"):
                    await client.act(desk.ref, [{"action": "click", "x": size[0], "y": 3}])
        await resized(desk, small)
        branch = Desk(client, (await client.fork(desk.ref))["branches"][0]["id"])
        await board_again(branch)
        await lands(branch, small, corners(small))
        await resized(branch, odd)
        assert (await picture(branch)).size == odd and (await picture(desk)).size == small


async def board_again(desk: Desk) -> None:
    await desk.shell("pkill -f [b]oard.py; while pgrep -f [b]oard.py; do sleep 0.05; done >/dev/null")
    await board(desk)


async def test_a_resize_amid_a_batch_and_amid_waiting(client: EngineClient) -> None:
    async with of_size(client, (1280, 800)) as desk:
        shot = await client.screenshot(desk.ref, settle_ms=5000)
        assert shot is not None
        waiting = asyncio.ensure_future(client.screenshot(desk.ref, tag=shot.tag, wait_change_ms=20_000))
        to_corner = [{"action": "wait", "seconds": 3}, {"action": "move", "x": 639, "y": 399}]
        scaled = asyncio.ensure_future(client.act(desk.ref, to_corner, size=(640, 400)))
        await asyncio.sleep(1)
        await resized(desk, (1024, 768))
        changed = await asyncio.wait_for(waiting, 10)
        assert changed is not None and changed.screen == (1024, 768)
        answer = await scaled
        assert (answer["results"][1]["ok"], answer["screen"], answer["cursor"]) == (True, [1024, 768], [639, 399])
        assert await desk.cursor() == [1023, 767]
        # A place that was on the screen when the batch began, and is not when its turn comes.
        late = asyncio.ensure_future(client.act(desk.ref, [{"action": "wait", "seconds": 3}, {"action": "move", "x": 1000, "y": 5}]))
        await asyncio.sleep(1)
        await resized(desk, (801, 601))
        refused = (await late)["results"][1]
        assert not refused["ok"] and "outside the picture of 801x601: the screen became smaller meanwhile" in refused["error"]["message"]


async def test_a_viewer_follows_a_resize(client: EngineClient) -> None:
    async with of_size(client, (1280, 800)) as desk:
        watching = asyncio.ensure_future(desk.viewer(14))
        await asyncio.sleep(4)
        await resized(desk, (1024, 768))
        await asyncio.sleep(4)
        await resized(desk, (901, 607))
        told = await watching
        assert told["sizes"][0] == [1280, 800] and [1024, 768] in told["sizes"] and told["sizes"][-1] == [900, 606]
        assert told["came"], "no picture came after the resize"


async def test_the_size_is_asked_for_once_and_followed(engine: Engine, client: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one connection: the server is asked once, and still every resize is known when it has been made."""
    asked: list[int] = []
    ask = Connection.ask

    async def counted(self: Connection, request: bytes, most: int = 1 << 20) -> bytes:
        asked.append(request[0])
        return await ask(self, request, most)

    monkeypatch.setattr(Connection, "ask", counted)
    async with of_size(client, (1280, 800)) as desk:
        root = os.open(f"/proc/{pids_of(engine, desk.ref)[0]}/root", os.O_PATH | os.O_DIRECTORY)
        try:
            async with xdesktop.opened(root, ":1", Held()) as desktop:
                for size in ((1280, 800), (1024, 768), (901, 607), (1280, 800)):
                    await resized(desk, size)
                    await eventually("the resize is told", lambda size=size: _is(desktop, size), 5)
                    for _ in range(5):
                        await desktop.move(size[0] - 1, size[1] - 1)
                        assert (await desktop.size(), await desktop.cursor()) == (size, (size[0] - 1, size[1] - 1))
        finally:
            os.close(root)
    assert asked.count(_GET_GEOMETRY) == 1


async def _is(desktop: xdesktop.XDesktop, size: Place) -> bool:
    return await desktop.size() == size
