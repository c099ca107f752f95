"""Run by the Python of the client e2b: what its SDK makes of the portal's answers. The arguments: the API key of another."""

import os
import sys

from e2b import Sandbox
from e2b.exceptions import AuthenticationException, FileNotFoundException, InvalidArgumentException, NotFoundException, RateLimitException, SandboxException
from e2b.sandbox.commands.command_handle import CommandExitException

made = Sandbox.create("webtop-xfce", timeout=120, metadata={"run": "7"}, envs={"A": "b"}, idempotency_key="key-1")
again = Sandbox.create("webtop-xfce", timeout=120, metadata={"run": "7"}, envs={"A": "b"}, idempotency_key="key-1")
assert made.sandbox_id == again.sandbox_id, "one for each key"
assert made.is_running()
info = made.get_info()
assert (info.template_id, info.metadata, info.state.value) == ("webtop-xfce", {"run": "7"}, "running"), info
assert 100 < (info.end_at - info.started_at).total_seconds() < 200, info
made.set_timeout(600)
assert (made.get_info().end_at - info.end_at).total_seconds() > 400
listed = Sandbox.list()
assert [one.sandbox_id for one in listed.next_items()] == [made.sandbox_id]

# Room for three: one is there, so two of the three children come, and the third is told as an error of its own.
children = made.fork(count=3)
assert [type(child).__name__ for child in children] == ["Sandbox", "Sandbox", "RateLimitException"], children
assert isinstance(children[2], RateLimitException) and "workspaces" in str(children[2])
first = children[0]
assert first.get_info().metadata == {"run": "7"}
try:
    made.fork()
    raise SystemExit("nothing could be made")
except RateLimitException as error:
    assert "429" in str(error)

# A key opens its own sandbox and no other.
assert first._envd_access_token != made._envd_access_token
headers = made.connection_config.sandbox_headers
headers["E2b-Sandbox-Id"] = first.sandbox_id
assert made._envd_api.get("/health", headers=headers).status_code == 401
try:
    Sandbox.connect(made.sandbox_id, api_key=sys.argv[1])
    raise SystemExit("another user's key opened it")
except NotFoundException:
    pass
try:
    Sandbox.connect(made.sandbox_id, api_key="e2b_" + "0" * 40)
    raise SystemExit("a key that is none opened it")
except AuthenticationException:
    pass

result = first.commands.run("printf x")
assert (result.stdout, result.stderr, result.exit_code) == ("hello\n", "", 0), result
seen = []
try:
    first.commands.run("false", on_stdout=seen.append)
    raise SystemExit("a status other than 0 is an exception")
except CommandExitException as error:
    assert error.exit_code == 3 and error.stderr == "oh\n" and seen == ["out\n"], (error, seen)

first.files.write("deep/er/notes.txt", "caf\u00e9\n")
assert first.files.read("/home/user/deep/er/notes.txt") == "caf\u00e9\n"
first.files.write_files([{"path": "/home/user/a", "data": b"\x00\xff"}, {"path": "/home/user/b", "data": "b"}])
assert bytes(first.files.read("/home/user/a", format="bytes")) == b"\x00\xff"
assert {entry.name for entry in first.files.list("/home/user")} >= {"deep", "a", "b"}
assert first.files.exists("/home/user/a") and not first.files.exists("/home/user/nothing")
assert first.files.make_dir("/home/user/new") is True and first.files.make_dir("/home/user/new") is False
first.files.remove("/home/user/a")
assert not first.files.exists("/home/user/a")
try:
    first.files.read("/home/user/a")
    raise SystemExit("it was removed")
except FileNotFoundException:
    pass

first.files.make_dir("/home/user/watched")
watcher = first.files.watch_dir("/home/user/watched", recursive=True)
events = []
while len(events) < 3:
    events += watcher.get_new_events()
assert [(event.name, event.type.value) for event in events] == [("one", "create"), ("sub/one", "write"), (".", "remove")], events
watcher.stop()
try:
    first.files.watch_dir("/home/user/b")
    raise SystemExit("it is a file")
except InvalidArgumentException as error:
    assert "is not a directory" in str(error), error
try:
    first.files.watch_dir("/home/user/nothing")
    raise SystemExit("it is not there")
except FileNotFoundException:
    pass

(measured,) = first.get_metrics()
assert measured.cpu_used_pct >= 0 and measured.cpu_count >= 1 and (measured.mem_used, measured.disk_used) == (500 << 20, 30 << 20), measured
try:
    first.create_snapshot()
    raise SystemExit("a snapshot takes the room of a sandbox")
except RateLimitException:
    pass

assert first.pause() and first.get_info().state.value == "paused" and not first.is_running()
connected = Sandbox.connect(first.sandbox_id)
assert connected.is_running() and connected.commands.run("x").exit_code == 0
assert first.kill() is True and first.kill() is False
assert not first.is_running()
# A snapshot is no sandbox, and as many can be made from it as there is room for.
taken = made.create_snapshot("base")
assert taken.names == ["base"], taken
assert [(one.snapshot_id, one.names) for one in made.list_snapshots().next_items()] == [(taken.snapshot_id, ["base"])]
assert [len(Sandbox.list_snapshots(**which).next_items()) for which in ({}, {"name": "base"}, {"name": "other"}, {"sandbox_id": children[1].sandbox_id})] == [1, 1, 0, 0]
assert taken.snapshot_id not in [one.sandbox_id for one in Sandbox.list().next_items()]
for refused in (lambda: Sandbox.connect(taken.snapshot_id), lambda: Sandbox.create(taken.snapshot_id, api_key=sys.argv[1])):
    try:
        refused()
        raise SystemExit("it was opened")
    except SandboxException as error:
        assert "404" in str(error) or "not found" in str(error), error
assert Sandbox.list_snapshots(api_key=sys.argv[1]).next_items() == []
try:
    Sandbox.create(taken.snapshot_id)
    raise SystemExit("there is no room")
except RateLimitException:
    pass
children[1].kill()
try:
    Sandbox.create(taken.snapshot_id, envs={"A": "b"})
    raise SystemExit("its programs run already")
except SandboxException as error:
    assert "envs cannot be given" in str(error), error
try:
    made.create_snapshot(mode="filesystem")
    raise SystemExit("files alone are no snapshot")
except SandboxException as error:
    assert "has its programs in it" in str(error), error
restored = Sandbox.create(taken.snapshot_id, timeout=60, metadata={"b": "c"})
ran = restored.commands.run("printf x")
assert restored.get_info().metadata == {"run": "7", "b": "c"} and ran.stdout == "hello\n", (ran, restored.get_info())
assert restored.kill() and made.kill()
again = Sandbox.create(taken.snapshot_id)
assert again.kill()
assert Sandbox.delete_snapshot(taken.snapshot_id, api_key=sys.argv[1]) is False
assert Sandbox.delete_snapshot(taken.snapshot_id) is True and Sandbox.delete_snapshot(taken.snapshot_id) is False
assert Sandbox.list_snapshots().next_items() == []

try:
    first.commands.run("x")
    raise SystemExit("it is gone")
except SandboxException as error:
    print("gone:", type(error).__name__)
print("ok", os.getpid())
