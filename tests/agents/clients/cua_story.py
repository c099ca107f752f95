"""Run by the Python of the client cua: it drives two branches at once, each at its own address. Arguments: the two addresses."""

import asyncio
import io
import re
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


async def watched(one):
    """Everything that it has for mouse and keys, noted by a window that tells what it gets."""
    await one.run_command("cd; setsid -f xev -geometry 600x500+200+150 -name watcher >events 2>&1")

    async def there():
        return "watcher" in (await one.run_command("wmctrl -l; wmctrl -a watcher")).stdout

    await eventually("the watcher", there)
    await one.right_click(400, 400)
    await one.double_click(420, 420)
    await one.mouse_down(430, 430)
    await one.drag_to(450, 440)
    await one.scroll_down(2)
    await one.scroll_up(1)
    await one.drag([(450, 350), (470, 360), (500, 400)])
    await one.key_down("shift")
    await one.press("a")
    await one.key_up("shift")
    await one.hotkey("ctrl", "shift", "x")
    await one.press("f12")

    async def noted():
        await one.run_command("pkill xev; while pgrep xev >/dev/null; do sleep 0.1; done")
        text = await one.read_text("/home/user/events")
        return text if "F12" in text else None

    text = await eventually("the events were noted", noted)
    buttons = re.findall(r"Button(Press|Release) event.*?button (\d)", text, re.DOTALL)
    # Pressed once and let go of once, though the second of them drags what is held already.
    assert [button for kind, button in buttons if kind == "Press"] == ["3", "1", "1", "1", "5", "5", "4", "1"], buttons
    assert [button for kind, button in buttons if kind == "Release"] == ["3", "1", "1", "1", "5", "5", "4", "1"], buttons
    keys = [key for key in re.findall(r"KeyPress event.*?keysym 0x[0-9a-f]+, (\w+)", text, re.DOTALL)]
    assert keys == ["Shift_L", "A", "Control_L", "Shift_L", "X", "F12"], keys
    assert await one.get_cursor_position() == {"x": 500, "y": 400}
    await one.set_clipboard("its own ☃")
    assert await one.copy_to_clipboard() == "its own ☃"
    names = {node["name"] for node in (await one.get_accessibility_tree())["tree"]["nodes"]}
    assert any("xfce4-panel" in name for name in names), names


async def main():
    both = [LinuxComputerInterface(address) for address in sys.argv[1:3]]
    for one in both:
        await one.wait_for_ready(timeout=20)
        assert await one.get_screen_size() == {"width": 1280, "height": 800}
    await asyncio.gather(*(written(one, text) for one, text in zip(both, TEXTS)))
    for one, text in zip(both, TEXTS):
        assert (await one.read_text("/home/user/branch-note")).rstrip("\n") == text
        assert Image.open(io.BytesIO(await one.screenshot())).size == (1280, 800)
    await watched(both[0])
    await both[1].set_clipboard("another")
    assert await both[0].copy_to_clipboard() == "its own ☃"
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
