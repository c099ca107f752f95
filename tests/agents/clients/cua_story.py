"""Run by the Python of the client cua: it drives two branches at once, each at its own address. Arguments: the two addresses."""

import asyncio
import io
import sys
import time

from computer.interface.linux import LinuxComputerInterface
from PIL import Image

TEXTS = ("plain <b> @ ~", "Grüße 日")


async def eventually(what, look, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.2)
    return found


async def saved(one):
    return await one.file_exists("/home/user/branch-note") and await one.read_text("/home/user/branch-note")


async def written(one, text):
    await one.run_command("cd; : >branch-note; setsid -f mousepad branch-note >/dev/null 2>&1")

    async def opened():
        return "branch-note" in (await one.run_command("xdotool getactivewindow getwindowname")).stdout

    await eventually("an editor", opened)
    bounds = await one.get_active_window_bounds()
    x, y = bounds["x"] + bounds["width"] // 2, bounds["y"] + bounds["height"] // 2
    await one.left_click(x, y)
    assert await one.get_cursor_position() == {"x": x, "y": y}
    await one.type_text(text)
    await one.hotkey("ctrl", "s")
    assert (await eventually("the text was saved", lambda: saved(one))).rstrip("\n") == text


async def main():
    both = [LinuxComputerInterface(address) for address in sys.argv[1:3]]
    for one in both:
        await one.wait_for_ready(timeout=20)
        assert await one.get_screen_size() == {"width": 1280, "height": 800}
    await asyncio.gather(*(written(one, text) for one, text in zip(both, TEXTS)))
    for one, text in zip(both, TEXTS):
        assert (await one.read_text("/home/user/branch-note")).rstrip("\n") == text
        assert Image.open(io.BytesIO(await one.screenshot())).size == (1280, 800)
    await both[0].write_bytes("/home/user/blob", bytes(range(256)) * 100)
    await both[0].write_bytes("/home/user/blob", b"more", append=True)
    assert await both[0].read_bytes("/home/user/blob") == bytes(range(256)) * 100 + b"more"
    assert await both[0].read_bytes("/home/user/blob", offset=25600, length=2) == b"mo"
    await both[0].write_bytes("/home/user/blob", b"x" * 5_000_000, append=True)
    assert await both[0].get_file_size("/home/user/blob") == 25604 + 5_000_000
    assert not await both[1].file_exists("/home/user/blob")
    for one in both:
        one.close()
    print("ok")


asyncio.run(main())
