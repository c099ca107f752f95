"""Run by the Python of the client e2b: its desktop SDK forks a desktop and drives the branches. Arguments: the id of the source."""

import io
import sys
import time

from e2b_desktop import Sandbox
from PIL import Image

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

# Commands: both outputs, a status, input, and one that is ended by its number.
result = left.commands.run("echo out; echo err >&2; pwd", envs={"A": "b"})
assert (result.stdout, result.stderr) == ("out\n/home/user\n", "err\n"), result
assert left.commands.run("echo $A $DISPLAY; id -un", envs={"A": "b"}).stdout == "b :1\nuser\n"
assert left.commands.run("id -un", user="root").stdout == "root\n"
cat = left.commands.run("cat", background=True, stdin=True)
left.commands.send_stdin(cat.pid, "typed\n")
left.commands.close_stdin(cat.pid)
assert cat.wait().stdout == "typed\n"
sleeper = left.commands.run("exec sleep 1000", background=True)
assert sleeper.pid in [one.pid for one in left.commands.list()]
assert output(left, f"cat /proc/{sleeper.pid}/comm") == "sleep"
assert sleeper.kill() is True and eventually("it has ended", lambda: not output(left, f"cat /proc/{sleeper.pid}/comm"))
left.files.write("/home/user/new/one.bin", bytes(range(256)) * 4000)
assert bytes(left.files.read("/home/user/new/one.bin", format="bytes")) == bytes(range(256)) * 4000
assert left.commands.run("stat -c '%U %s' new/one.bin").stdout == "user 1024000\n"
left.files.rename("/home/user/new/one.bin", "/home/user/new/two.bin")
assert [entry.name for entry in left.files.list("/home/user/new")] == ["two.bin"]

# It stands still and goes on with all it has.
left.pause()
assert not left.is_running()
left = Sandbox.connect(left.sandbox_id)
assert "branch-note" in output(left, "xdotool getactivewindow getwindowname")
for branch in (left, right):
    assert branch.kill()
assert not right.is_running() and source.is_running()

# A desktop of its own. It has a display already, and its stream is the portal's.
own = Sandbox.create("desktop", timeout=600, resolution=(1024, 768))
own.stream.start()
url = own.stream.get_url()
own.move_mouse(10, 20)
assert own.get_cursor_position() == (10, 20)
own.stream.stop()
assert own.kill()
print("stream", url)
