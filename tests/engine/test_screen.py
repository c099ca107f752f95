"""Pictures of screens against X servers that behave and such that do not. Pictures of a real desktop: tests/e2e.

The fake servers listen below this process's own root, so this process stands in for a workspace's first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from PIL import Image

from engine import pixels, screen, syscalls, x11
from engine.errors import BadRequest, Conflict, Unavailable
from engine.pixels import Wanted
from engine.screen import Screens
from engine.workspace import State, Workspace

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
WIDTH, HEIGHT = 640, 400
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def greeting(width: int = WIDTH, height: int = HEIGHT, depth: int = 24, order: int = 0) -> bytes:
    vendor = b"fake"
    formats = struct.pack("<BBB5x", 24, 32, 32)
    head = struct.pack("<IIIIHHBBBBBBBB4x", 0, 1 << 21, 0, 256, len(vendor), 65535, 1, 1, order, 0, 32, 32, 8, 255)
    root = struct.pack("<IIIIIHHHHHHIBBBB", 0x123, 0, 0, 0, 0, width, height, 0, 0, 1, 1, 33, 0, 0, depth, 1)
    body = head + vendor + formats + root + bytes(8)
    return struct.pack("<BBHHH", 1, 0, 11, 0, len(body) // 4) + body


def pixel(colour: tuple[int, int, int]) -> bytes:
    return bytes((*reversed(colour), 0x77))


_QUERY_EXTENSION = 98


class FakeX:
    """A server whose left half is one colour and right half another; `grabs` counts the pictures it sent, `questions` what was asked. It has no
    extensions, and says so unless it is `mute`."""

    def __init__(self) -> None:
        self.left, self.right = RED, BLUE
        self.grabs = 0
        self.questions: list[bytes] = []
        self.delay = 0.0
        self.noise = False
        self.mute = False
        self.before_answers = b""
        self.colours: list[tuple[int, int, int]] = []  # of the left half, one for each picture

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.questions.append(await reader.readexactly(12))
        writer.write(greeting())
        asked = await reader.readexactly(4)
        if asked[0] == _QUERY_EXTENSION and not self.mute:
            await reader.readexactly(4 * int.from_bytes(asked[2:4], "little") - 4)
            writer.write(self.before_answers + struct.pack("<BBHI24x", 1, 0, 1, 0))
            await reader.read()
            return
        self.questions.append(asked + await reader.readexactly(16))
        if self.colours:
            self.left = self.colours.pop(0)
        row = pixel(self.left) * (WIDTH // 2) + pixel(self.right) * (WIDTH // 2)
        await asyncio.sleep(self.delay)
        self.grabs += 1
        writer.write(self.before_answers + struct.pack("<BBHIIIIIII", 1, 24, 1, WIDTH * HEIGHT, 33, 0, 0, 0, 0, 0) + (random.Random(1).randbytes(4 * WIDTH * HEIGHT) if self.noise else row * HEIGHT))
        await writer.drain()


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Workspace]:
    """A workspace whose X server is `serve`."""
    directory = Path("/tmp/.X11-unix")
    directory.mkdir(mode=0o1777, exist_ok=True)
    number = random.randint(20_000, 65_000)
    path = directory / f"X{number}"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, path)
    try:
        pid = os.getpid()
        yield Workspace("ws-1", "desk", "source", "image", State.READY, desktop=True, env={"DISPLAY": f":{number}"}, pid=pid, pid_start=syscalls.start_time(pid))
    finally:
        server.close()
        path.unlink()


@pytest.fixture
async def screens() -> AsyncIterator[Screens]:
    made = Screens()
    yield made
    made.close()


def opened(picture: screen.Picture) -> Image.Image:
    return Image.open(io.BytesIO(picture.content))


async def test_a_png_has_the_screens_pixels(screens: Screens) -> None:
    fake = FakeX()
    async with serving(fake) as workspace:
        picture = await screens.picture(workspace)
    image = opened(picture)
    assert (image.format, image.size, image.mode) == ("PNG", (WIDTH, HEIGHT), "RGB")
    assert [image.getpixel(place) for place in ((0, 0), (319, 399), (320, 0), (639, 399))] == [RED, RED, BLUE, BLUE]
    assert picture.screen == (WIDTH, HEIGHT)
    # ZPixmap of all of the root window, all planes.
    assert fake.questions[1] == struct.pack("<BBHIhhHHI", 73, 2, 5, 0x123, 0, 0, WIDTH, HEIGHT, 0xFFFFFFFF)


async def test_a_thumbnail_is_scaled_and_never_enlarged(screens: Screens) -> None:
    async with serving(FakeX()) as workspace:
        small = await screens.picture(workspace, Wanted(320, format="jpeg"))
        large = await screens.picture(workspace, Wanted(4000, format="jpeg"))
    image = opened(small)
    assert (image.format, image.size) == ("JPEG", (320, 200))
    assert all(abs(is_ - wanted) < 8 for is_, wanted in zip(image.getpixel((60, 100)), RED, strict=True))
    assert all(abs(is_ - wanted) < 8 for is_, wanted in zip(image.getpixel((260, 100)), BLUE, strict=True))
    assert opened(large).size == (WIDTH, HEIGHT) and small.screen == (WIDTH, HEIGHT)


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (641, 401), (1366, 768)])
def test_a_png_has_every_pixel(size: tuple[int, int]) -> None:
    noise = bytearray(random.Random(size[0]).randbytes(4 * size[0] * size[1]))
    picture = pixels.encoded(x11.Raster(*size, noise), Wanted())
    image = Image.open(io.BytesIO(picture.content))
    assert (image.mode, image.size) == ("RGB", size)
    assert image.tobytes() == Image.frombuffer("RGB", size, bytes(noise), "raw", "BGRX", 0, 1).tobytes()


async def test_a_region_is_cut_out_and_scaled_to_a_size(screens: Screens) -> None:
    async with serving(FakeX()) as workspace:
        cut = opened(await screens.picture(workspace, Wanted(region=(310, 0, 330, 10))))
        large = await screens.picture(workspace, Wanted(width=400, height=200, region=(310, 0, 330, 10)))
        assert (cut.size, cut.getpixel((9, 9)), cut.getpixel((10, 0))) == ((20, 10), RED, BLUE)
        assert opened(large).size == large.size == (400, 200) and opened(large).getpixel((399, 199)) == BLUE
        for region in ((0, 0, 641, 10), (5, 5, 5, 10), (0, 0, 10, 401)):
            with pytest.raises(BadRequest, match="inside the screen of 640x400"):
                await screens.picture(workspace, Wanted(region=region))


async def test_a_picture_that_has_to_be_small_keeps_its_size(screens: Screens) -> None:
    fake = FakeX()
    fake.noise = True
    async with serving(fake) as workspace:
        whole = await screens.picture(workspace)
        small = await screens.picture(workspace, Wanted(most_bytes=120_000))
        webp = await screens.picture(workspace, Wanted(format="webp", most_bytes=120_000))
        assert len(whole.content) > 500_000 and whole.format == "png"
        for picture, format in ((small, "JPEG"), (webp, "WEBP")):
            image = opened(picture)
            assert len(picture.content) <= 120_000 and (image.format, image.size) == (format, (WIDTH, HEIGHT))
        with pytest.raises(BadRequest, match="ask for a smaller one"):
            await screens.picture(workspace, Wanted(most_bytes=10_000))


@pytest.mark.parametrize("mute", [False, True])
async def test_who_waits_for_a_change_is_told_of_it(screens: Screens, monkeypatch: pytest.MonkeyPatch, mute: bool) -> None:
    fake = FakeX()
    fake.mute = mute
    if mute:
        monkeypatch.setattr(screen, "_GRAB_SECONDS", 2.0)
    async with serving(fake) as workspace:
        first = await screens.picture(workspace)
        assert (await screens.changed(workspace, Wanted(), first.tag, 0.3)).tag == first.tag
        waiting = asyncio.ensure_future(screens.changed(workspace, Wanted(), first.tag, 20))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        fake.left = GREEN
        assert opened(await asyncio.wait_for(waiting, 30)).getpixel((0, 0)) == GREEN


async def test_who_waits_for_rest_gets_what_comes_last(screens: Screens) -> None:
    fake = FakeX()
    fake.colours = [RED, GREEN, BLUE, GREEN, (9, 9, 9)]
    async with serving(fake) as workspace:
        assert opened(await screens.at_rest(workspace, Wanted(), 20)).getpixel((0, 0)) == (9, 9, 9)
        fake.colours = [(n, 0, 0) for n in range(200)]
        await asyncio.wait_for(screens.at_rest(workspace, Wanted(), 0.5), 30)  # one that never rests


async def test_the_tag_changes_with_the_picture_only(screens: Screens) -> None:
    fake = FakeX()
    async with serving(fake) as workspace:
        tags = [(await screens.picture(workspace, Wanted(320, format="jpeg"))).tag for _ in range(2)]
        fake.right = GREEN
        tags.append((await screens.picture(workspace, Wanted(320, format="jpeg"))).tag)
        tags.append((await screens.picture(workspace, Wanted(320, format="png"))).tag)
    assert tags[0] == tags[1] != tags[2] != tags[3]
    assert fake.grabs == 4


async def test_a_picture_is_shared_when_it_is_fresh_enough(screens: Screens) -> None:
    fake = FakeX()
    fake.delay = 0.05
    async with serving(fake) as workspace:
        await asyncio.gather(*(screens.picture(workspace, Wanted(320, format="jpeg"), 5.0) for _ in range(10)))
        assert fake.grabs == 1
        # Whoever wants what is on the screen now gets one begun after the question, however many ask.
        await screens.picture(workspace, Wanted(320, format="jpeg"), 0.0)
        assert fake.grabs == 2
        # The first of them begins at once; the others, who came after that, share the next one.
        await asyncio.gather(*(screens.picture(workspace, Wanted(320, format="jpeg"), 0.0) for _ in range(10)))
        assert fake.grabs == 4


async def test_no_question_is_asked_while_a_workspace_is_being_forked(screens: Screens) -> None:
    fake = FakeX()
    async with serving(fake) as workspace:
        await screens.picture(workspace, Wanted(320, format="jpeg"))
        workspace.state = State.FORKING
        assert (await screens.picture(workspace, Wanted(320, format="jpeg"), 60)).screen == (WIDTH, HEIGHT)
        with pytest.raises(Conflict, match="ws-1 shows no picture now: it is forking"):
            await screens.picture(workspace, Wanted(320, format="jpeg"))
    assert fake.grabs == 1


async def test_workspaces_without_a_screen(screens: Screens) -> None:
    async with serving(FakeX()) as workspace:
        workspace.desktop = False
        with pytest.raises(Conflict, match="no desktop"):
            await screens.picture(workspace)
        workspace.desktop, workspace.env = True, {"DISPLAY": ":19999"}
        with pytest.raises(Unavailable, match="No such file"):
            await screens.picture(workspace)
        workspace.env = {"DISPLAY": "elsewhere:0"}
        with pytest.raises(Unavailable, match="no local display"):
            await screens.picture(workspace)
        workspace.pid_start += 1
        with pytest.raises(Conflict, match="has ended"):
            await screens.picture(workspace)


async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes) -> None:
    await reader.readexactly(12)
    writer.write(words)
    await writer.drain()
    if words.startswith(greeting()):
        await reader.readexactly(20)


@pytest.mark.parametrize(
    "words, complaint",
    [
        (b"", "closed the connection"),
        (b"\x00\x04" + struct.pack("<HHH", 11, 0, 1) + b"nope", "without authority"),
        (struct.pack("<BBHHH", 1, 0, 11, 0, 65535) + b"x", "closed the connection"),
        (struct.pack("<BBHHH", 1, 0, 11, 0, 4) + bytes(16), "cut off"),
        (greeting(width=0), "is not one"),
        (greeting(width=65535, height=65535), "is not one"),
        (greeting(depth=16), "24 bits"),
        (greeting(order=1), "24 bits"),
        (greeting() + struct.pack("<BBHIIIIIII", 0, 8, 1, 0, 0, 0, 0, 0, 0, 0), "did not send its picture"),
        (greeting() + struct.pack("<BBHIIIIIII", 1, 24, 1, 0xFFFFFFFF, 0, 0, 0, 0, 0, 0), "did not send its picture"),
        (greeting() + struct.pack("<BBHIIIIIII", 1, 24, 1, WIDTH * HEIGHT, 0, 0, 0, 0, 0, 0) + b"few", "closed the connection"),
    ],
)
async def test_a_server_that_lies_is_an_error_not_a_picture(screens: Screens, words: bytes, complaint: str) -> None:
    async with serving(lambda reader, writer: says(reader, writer, words)) as workspace:
        with pytest.raises(Unavailable, match=complaint):
            await screens.picture(workspace)


async def test_events_that_nobody_asked_for_are_passed_over(screens: Screens) -> None:
    """Every client is told of a change of the keyboard, between any question and its answer."""
    keyboard_changed = struct.pack("<BxHBBB25x", 34, 0, 1, 8, 248)
    fake = FakeX()
    fake.before_answers = 3 * keyboard_changed
    async with serving(fake) as workspace:
        assert opened(await screens.picture(workspace)).size == (WIDTH, HEIGHT)


async def test_a_server_that_sends_events_alone_is_an_error(screens: Screens) -> None:
    async def chatters(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(reader, writer, greeting() + 2000 * struct.pack("<BxHBBB25x", 34, 0, 1, 8, 248))

    async with serving(chatters) as workspace:
        with pytest.raises(Unavailable, match="events and no answer"):
            await screens.picture(workspace)


async def test_a_screen_that_shrinks_while_it_is_asked_is_asked_again(screens: Screens) -> None:
    """The size was told by the greeting; when the picture is asked for, that is no longer on the screen."""
    calls: list[int] = []

    async def shrinks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(1)
        if len(calls) == 1:
            await reader.readexactly(12)
            writer.write(greeting(width=2 * WIDTH))
            await reader.readexactly(20)
            writer.write(struct.pack("<BBHIIIIIII", 0, 8, 1, 0, 0, 0, 0, 0, 0, 0))
            await writer.drain()
        else:
            await FakeX()(reader, writer)

    async with serving(shrinks) as workspace:
        assert (await screens.picture(workspace)).screen == (WIDTH, HEIGHT)
    assert len(calls) == 2


async def test_a_server_that_says_nothing_holds_up_nobody_else(screens: Screens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_GRAB_SECONDS", 0.5)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as stuck, serving(FakeX()) as good:
        stuck.id = "ws-2"
        asking = [asyncio.ensure_future(screens.picture(stuck)) for _ in range(4)]
        await asyncio.sleep(0.05)
        assert (await screens.picture(good, Wanted(320, format="jpeg"))).screen == (WIDTH, HEIGHT)
        assert not any(task.done() for task in asking), "the good one waited for the stuck one"
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(outcome, Unavailable) for outcome in outcomes)


async def test_a_link_out_of_the_root_is_followed_inside_it(tmp_path: Path) -> None:
    """A workspace may replace its socket's directory by a link to one of the host's."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (root / "tmp").mkdir(parents=True)
    touched: list[int] = []
    server = await asyncio.start_unix_server(lambda _, writer: (touched.append(1), writer.close()), outside / "X1")
    (root / "tmp" / ".X11-unix").symlink_to(outside)
    fd = os.open(root, os.O_PATH)
    try:
        with pytest.raises(x11.XError):
            await x11.grab(fd, ":1")
        await asyncio.sleep(0.05)
    finally:
        os.close(fd)
        server.close()
    assert touched == []


async def test_a_file_in_place_of_the_socket(tmp_path: Path) -> None:
    (tmp_path / "tmp/.X11-unix").mkdir(parents=True)
    (tmp_path / "tmp/.X11-unix/X1").write_text("")
    fd = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(x11.XError, match="not a socket"):
            await x11.grab(fd, ":1")
    finally:
        os.close(fd)


def idle_server(idle_ms: int, present: int = 1) -> Serve:
    """A server with MIT-SCREEN-SAVER as extension 140, when `present`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(12)
        writer.write(greeting())
        assert await reader.readexactly(24) == struct.pack("<BBHHH", 98, 0, 6, 16, 0) + b"MIT-SCREEN-SAVER"
        writer.write(struct.pack("<BBHIBB22x", 1, 0, 1, 0, present, 140))
        assert await reader.readexactly(8) == struct.pack("<BBHI", 140, 1, 2, 0x123)
        writer.write(struct.pack("<BBHIIII12x", 1, 0, 2, 0, 0, 0xFFFFFFFF, idle_ms))
        await writer.drain()

    return serve


async def test_how_long_nobody_used_a_desktop(screens: Screens) -> None:
    async with serving(idle_server(754_321)) as workspace:
        assert await screens.idle(workspace) == 754.321
        workspace.desktop = False
        assert await screens.idle(workspace) is None


async def test_a_server_that_does_not_count_idle_time(screens: Screens) -> None:
    async with serving(idle_server(0, present=0)) as workspace:
        with pytest.raises(Unavailable, match="MIT-SCREEN-SAVER"):
            await screens.idle(workspace)
