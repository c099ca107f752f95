"""Run by the Python of the client e2b: its desktop SDK forks a desktop and drives the branches. Arguments: the id of the source."""

import asyncio
import io
import re
import sys
import time

from e2b import AsyncSandbox, CommandExitException
from e2b import Sandbox as Plain
from e2b_desktop import Sandbox
from PIL import Image, ImageChops

TEXT = 'Grüße <b> @ ~ "q" 日'


def eventually(what, look, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


def output(sandbox, command):
    try:
        return sandbox.commands.run(command).stdout.strip()
    except Exception:
        return ""


def terminals():
    try:
        return left.get_application_windows("xfce4-terminal")
    except CommandExitException:
        return []  # there is none yet


source = Sandbox.connect(sys.argv[1])
left, right = source.fork(count=2, timeout=1800)
assert len({source.sandbox_id, left.sandbox_id, right.sandbox_id}) == 3

# What is done in one branch is in that branch.
left.commands.run("true >branch-note")
left.commands.run("setsid -f mousepad branch-note >/dev/null 2>&1", background=True).disconnect()
eventually("an editor", lambda: "branch-note" in output(left, "xdotool getactivewindow getwindowname"))
place = dict(line.split("=") for line in output(left, "xdotool getactivewindow getwindowgeometry --shell").splitlines())
x, y = int(place["X"]) + int(place["WIDTH"]) // 2, int(place["Y"]) + int(place["HEIGHT"]) // 2
left.left_click(x, y)
assert left.get_cursor_position() == (x, y), left.get_cursor_position()
left.write(TEXT, delay_in_ms=5)
left.press(["ctrl", "s"])
saved = eventually("the text was saved", lambda: left.files.read("/home/user/branch-note"))
assert saved.rstrip("\n") == TEXT, saved
assert not right.files.exists("/home/user/branch-note") and not source.files.exists("/home/user/branch-note")
pictures = [Image.open(io.BytesIO(bytes(one.screenshot()))).convert("RGB") for one in (left, right)]
assert {picture.size for picture in pictures} == {left.get_screen_size()} == {(1280, 800)}
assert pictures[0].getpixel((x, y)) != pictures[1].getpixel((x, y))
assert not right.files.exists("/tmp/screenshot") and "screenshot-" not in output(left, "ls /tmp")

# Everything that it has for the mouse, noted by a window that tells what it gets.
left.commands.run("setsid -f xev -geometry 600x500+200+150 -name watcher >events 2>&1", background=True).disconnect()
eventually("the watcher", lambda: "watcher" in output(left, "wmctrl -l"))
left.commands.run("wmctrl -a watcher")
left.right_click(400, 400)
left.middle_click(410, 410)
left.double_click(420, 420)
left.scroll("down", 2)
left.scroll("up", 1)
left.mouse_press("right")
left.mouse_release("right")
left.drag((450, 350), (500, 400))
left.wait(10)
left.press("f12")
eventually("the events were noted", lambda: "F12" in output(left, "pkill xev; while pgrep xev >/dev/null; do sleep 0.1; done; cat events"))
noted = re.findall(r"Button(Press|Release) event.*?button (\d)", left.files.read("/home/user/events"), re.DOTALL)
pressed = [button for kind, button in noted if kind == "Press"]
assert pressed == ["3", "2", "1", "1", "5", "5", "4", "3", "1"] == [button for kind, button in noted if kind == "Release"], noted
assert left.get_cursor_position() == (500, 400)
# The pointer is in its pictures, where it is.
left.move_mouse(1100, 100)
there = Image.open(io.BytesIO(bytes(left.screenshot()))).convert("RGB")
left.move_mouse(1000, 100)
moved = ImageChops.difference(there, Image.open(io.BytesIO(bytes(left.screenshot()))).convert("RGB"))
assert moved.crop((1095, 95, 1130, 135)).getbbox() and moved.crop((995, 95, 1030, 135)).getbbox() and not moved.crop((1040, 90, 1090, 140)).getbbox()

# Windows by their number, and programs by what they open.
left.files.write("/home/user/opened.txt", "opened")
left.open("/home/user/opened.txt")
eventually("it was opened", lambda: "opened.txt" in output(left, "wmctrl -l"))
left.launch("xfce4-terminal")
(terminal,) = eventually("a terminal", terminals)
assert "Terminal" in left.get_window_title(terminal), left.get_window_title(terminal)
eventually("it has the keyboard", lambda: "Terminal" in output(left, f"xdotool getwindowname {left.get_current_window_id()}"))
left.write("echo from the terminal >said", delay_in_ms=5)
left.press("enter")
eventually("the terminal's command", lambda: output(left, "cat said") == "from the terminal")

# Commands: both outputs, a status, input, and one that is ended by its number.
result = left.commands.run("echo out; echo err >&2; pwd", envs={"A": "b"})
assert (result.stdout, result.stderr) == ("out\n/home/user\n", "err\n"), result
assert left.commands.run("echo $A $DISPLAY; id -un", envs={"A": "b"}).stdout == "b :1\nuser\n"
assert left.commands.run("id -un", user="root").stdout == "root\n"
cat = left.commands.run("cat", background=True, stdin=True)
left.commands.send_stdin(cat.pid, "typed\n")
left.commands.close_stdin(cat.pid)
assert cat.wait().stdout == "typed\n"
cat = left.commands.run("cat", background=True, stdin=True)
left.commands.stream_input(cat.pid, ["one\n", b"two\n"])
left.commands.close_stdin(cat.pid)
assert cat.wait().stdout == "one\ntwo\n"
sleeper = left.commands.run("exec sleep 1000", background=True)
assert sleeper.pid in [one.pid for one in left.commands.list()]
assert output(left, f"cat /proc/{sleeper.pid}/comm") == "sleep"
assert sleeper.kill() is True and eventually("it has ended", lambda: not output(left, f"cat /proc/{sleeper.pid}/comm"))
left.files.write("/home/user/new/one.bin", bytes(range(256)) * 4000)
assert bytes(left.files.read("/home/user/new/one.bin", format="bytes")) == bytes(range(256)) * 4000
assert left.commands.run("stat -c '%U %s' new/one.bin").stdout == "user 1024000\n"
left.files.rename("/home/user/new/one.bin", "/home/user/new/two.bin")
assert [entry.name for entry in left.files.list("/home/user/new")] == ["two.bin"]

# A directory is watched, by asking or by being told, with all below it.
left.files.make_dir("/home/user/watched/sub")
watcher = left.files.watch_dir("/home/user/watched", recursive=True)
left.commands.run("echo a >watched/sub/new; mv watched/sub/new watched/moved; rm watched/moved")
events = []
eventually("the events came", lambda: events.extend(watcher.get_new_events()) or any((event.name, event.type.value) == ("moved", "remove") for event in events))
assert [(event.name, event.type.value) for event in events] == [
    ("sub/new", "create"), ("sub/new", "write"), ("sub/new", "rename"), ("moved", "create"), ("moved", "remove"),
], events
watcher.stop()

# It stands still and goes on with all it has.
left.pause()
assert not left.is_running()
left = Sandbox.connect(left.sandbox_id)
assert "Terminal" in output(left, "xdotool getactivewindow getwindowname")

# A snapshot keeps what was there: programs, windows and files, for more than one sandbox, also without the one that it was taken of.
left.files.write("/home/user/state", "before")
taken = left.create_snapshot("story")
left.files.write("/home/user/state", "after")
assert [one.snapshot_id for one in left.list_snapshots().next_items()] == [taken.snapshot_id]
first = Plain.create(taken.snapshot_id, timeout=600)
assert first.files.read("/home/user/state") == "before" and left.files.read("/home/user/state") == "after"
assert "Terminal" in output(first, "xdotool getactivewindow getwindowname")
first.files.write("/home/user/state", "of the first")
for branch in (left, right, first):
    assert branch.kill()
second = Plain.create(taken.snapshot_id, timeout=600)
assert second.files.read("/home/user/state") == "before"
assert second.kill() and Plain.delete_snapshot(taken.snapshot_id)
assert not right.is_running() and source.is_running()



async def asynchronous():
    """The same by its twin for asyncio, several branches at once."""
    sandbox = await AsyncSandbox.connect(source.sandbox_id)
    branches = await sandbox.fork(count=2, timeout=1800)
    done = await asyncio.gather(*(one.commands.run(f"sleep 0.2; echo {number} | tee mine", cwd="/home/user") for number, one in enumerate(branches)))
    assert [one.stdout for one in done] == ["0\n", "1\n"], done
    assert [await one.files.read("/home/user/mine") for one in branches] == ["0\n", "1\n"]
    cat = await branches[0].commands.run("cat", background=True, stdin=True)
    async with branches[0].commands.stream_input(cat.pid) as typed:
        for word in ("in", " this", " order\n"):
            await typed.send(word)
    await branches[0].commands.close_stdin(cat.pid)
    assert (await cat.wait()).stdout == "in this order\n"
    await branches[0].files.write("/home/user/made", b"\x00\xff")
    assert await branches[0].files.exists("/home/user/made") and not await branches[1].files.exists("/home/user/made")
    told, ended = [], asyncio.Event()
    watch = await branches[0].files.watch_dir("/home/user", lambda event: told.append((event.name, event.type.value)), on_exit=lambda error: ended.set())
    await branches[0].files.write("/home/user/seen", "x")
    for _ in range(300):
        if any(name == "seen" for name, _ in told):
            break
        await asyncio.sleep(0.1)
    assert any(name == "seen" for name, _ in told), told
    await watch.stop()
    await asyncio.wait_for(ended.wait(), 10)
    assert [await one.kill() for one in branches] == [True, True]
    assert not await branches[0].is_running()


asyncio.run(asynchronous())

# A desktop of its own. It has a display already, and its stream is the portal's.
own = Sandbox.create("desktop", timeout=600, resolution=(1024, 768))
own.stream.start()
url = own.stream.get_url()
own.move_mouse(10, 20)
assert own.get_cursor_position() == (10, 20)
own.stream.stop()
assert own.kill()
print("stream", url)
