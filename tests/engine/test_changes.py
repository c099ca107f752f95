"""What a workspace changed: against its image, its parent and its siblings, whatever it made of its files."""

from __future__ import annotations

import time
from urllib.parse import unquote

import pytest

from engine.client import EngineClient
from engine.errors import Conflict, LimitReached, NotFound
from engine.own_files import is_own
from tests.engine.support import IMAGE


@pytest.fixture
async def workspace(client: EngineClient) -> str:
    return (await client.launch(IMAGE, wait=True))["id"]


async def sh(client: EngineClient, ref: str, script: str) -> None:
    status, _, err = await client.run(ref, ["sh", "-c", script])
    assert status == 0, err


async def changes(client: EngineClient, ref: str, base: str = "parent", below: str = "/") -> dict[str, str]:
    """Path to what became of it; the last line must be there and whole."""
    found, done = {}, None
    async for item in client.changes(ref, base):
        assert done is None
        done = item.get("done")
        if done is None:
            found[item["path"]] = item["change"]
    assert done is not None and done["truncated"] is False
    return {path: change for path, change in found.items() if path.startswith(below)}


async def test_against_the_image(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "echo user2:x:2:2::/:/bin/sh >> /etc/passwd; rm /etc/group; mkdir -p /opt/a; echo x > /opt/a/b; touch /bin/ls; ln -s x /opt/l; mkfifo /opt/p")
    found = await changes(client, workspace)
    expected = {
        "/etc/passwd": "changed", "/etc/group": "deleted", "/opt": "added", "/opt/a": "added", "/opt/a/b": "added", "/opt/l": "added", "/opt/p": "added",
    }  # fmt: skip
    assert {path: found.get(path) for path in expected} == expected
    assert not any(path.startswith(("/bin", "/run/tclone")) for path in found), found
    assert await changes(client, workspace, "image") == found


async def test_a_directory_made_anew_hides_what_the_image_had(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "cp -r /etc /etc2; rm -r /etc; mkdir /etc; echo new > /etc/only; rm -r /etc2")
    found = await changes(client, workspace, below="/etc")
    assert found["/etc/only"] == "added" and found["/etc/passwd"] == "deleted" and "/etc" not in found
    await sh(client, workspace, "rm -r /root; echo file > /root")
    assert await changes(client, workspace, below="/root") == {"/root": "changed"}


async def test_a_branch_against_its_parent_and_its_sibling(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "mkdir /work; for i in 1 2 3 4; do echo $i > /work/$i; done; echo keep > /work/keep")
    result = await client.fork(workspace, copies=2)
    one, two = (branch["id"] for branch in result["branches"])
    assert await changes(client, one, below="/work") == {}
    await sh(client, one, "echo changed > /work/1; rm /work/2; echo 33 > /work/3; chmod 600 /work/4; echo new > /work/new; echo keep > /work/keep")
    expected = {"/work/1": "changed", "/work/2": "deleted", "/work/3": "changed", "/work/4": "changed", "/work/new": "added"}
    assert await changes(client, one, below="/work") == expected
    assert await changes(client, one, workspace, below="/work") == expected
    assert await changes(client, one, two, below="/work") == expected
    assert await changes(client, two, below="/work") == {}
    opposite = {"/work/2": "added", "/work/new": "deleted"}
    assert await changes(client, two, one, below="/work") == expected | opposite
    # Against the image the parent's own work counts, too; without its parent it is compared with the image.
    against_image = await changes(client, one, "image", below="/work")
    assert against_image["/work/keep"] == against_image["/work/1"] == "added" and "/work/2" not in against_image
    await client.remove(workspace)
    assert await changes(client, one, below="/work") == against_image


async def test_what_the_desktop_writes_by_itself_is_told_when_asked_for(client: EngineClient, workspace: str) -> None:
    branch = (await client.fork(workspace))["branches"][0]["id"]
    own = ["/home/u/.cache/a", "/tmp/selkies_web1/a", "/var/log/a", "/root/.xsession-errors"]
    made = ["/home/u/.cached", "/tmp/selkies.txt", "/var/logs", "/root/xsession-errors", "/tmp/a\n/var/log/a"]
    for path in own + made:
        await sh(client, branch, f"mkdir -p \"$(dirname '{path}')\"; echo x > '{path}'")
    told = [item async for item in client.changes(branch)]
    everything = [item async for item in client.changes(branch, own=True)]
    paths = {unquote(item["encoded"]) for item in told[:-1]}
    assert paths >= set(made) and not paths & set(own) and not any(item["own"] for item in told[:-1])
    assert {unquote(item["encoded"]) for item in everything[:-1] if item["own"]} >= set(own)
    assert [item for item in everything[:-1] if not item["own"]] == told[:-1]
    hidden = len(everything) - len(told)
    assert hidden >= len(own)
    assert told[-1]["done"] == {"base": workspace, "changes": len(told) - 1, "own": hidden, "truncated": False}
    assert everything[-1]["done"] == {"base": workspace, "changes": len(everything) - 1, "own": hidden, "truncated": False}


@pytest.mark.parametrize(
    ("path", "own"),
    [(b"/var/log", True), (b"/var/log/x/y", True), (b"/var/logs", False), (b"/srv/var/log", False), (b"/run", True), (b"/runner", False), (b"/tmp", True),
     (b"/tmp/.X11-unix/X1", True), (b"/tmp/.X1-lock", True), (b"/tmp/.X-lock", False), (b"/tmp/notes", False), (b"/home/a/.cache", True), (b"/home/a/b/.cache", False),
     (b"/home/a/.config/chromium/Default", True), (b"/home/a/.config/code", False), (b"/home/a/.Xauthority", True), (b"/home/a/.Xauthority/b", False),
     (b"/home/\xff\n/.cache/x\n", True), (b"/tmp/x\n", False), (b"/tmp\n", False), (b"/root/.local/share/recently-used.xbel.TMP1", True)],
)  # fmt: skip
def test_which_files_are_the_desktops(path: bytes, own: bool) -> None:
    assert is_own(path) is own


async def test_one_file_as_a_unified_difference(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "mkdir /work; printf 'a\\nb\\nc\\n' > /work/text; printf 'x\\0y' > /work/bin")
    branch = (await client.fork(workspace))["branches"][0]["id"]
    await sh(client, branch, "printf 'a\\nB\\033[2J\\nc\\n' > /work/text; printf 'x\\0z' > /work/bin; echo new > '/work/n w'; rm /etc/group")
    found = await client.compare_file(branch, "/work/text")
    assert found["base"] == workspace and not found["binary"] and not found["same"]
    assert found["diff"] == "--- a/work/text\n+++ b/work/text\n@@ -1,3 +1,3 @@\n a\n-b\n+B\N{REPLACEMENT CHARACTER}[2J\n c\n"
    assert (await client.compare_file(branch, "/work/bin"))["binary"]
    added = await client.compare_file(branch, "/work/n w")
    assert added["before"] is None and added["size"] == 4 and added["diff"].endswith("@@ -0,0 +1 @@\n+new\n")
    deleted = await client.compare_file(branch, "/etc/group", "image")
    assert deleted["size"] is None and "-root:x:0:" in deleted["diff"]
    assert (await client.compare_file(branch, "/etc/passwd"))["same"]
    with pytest.raises(NotFound):
        await client.compare_file(branch, "/work/none")
    await sh(client, branch, "rm -r /work/text /work/bin; mkdir /work/text; mkfifo /work/bin; dd if=/dev/zero of=/work/large bs=1 count=0 seek=3M 2>/dev/null")
    for path in ("/work/text", "/work/bin"):
        with pytest.raises(Conflict, match="only regular files"):
            await client.compare_file(branch, path)
    with pytest.raises(LimitReached, match="MiB"):
        await client.compare_file(branch, "/work/large")


async def test_hostile_trees_are_walked_in_bounded_time(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "mkdir /tmp/deep; cd /tmp/deep; i=0; while [ $i -lt 1500 ]; do mkdir ddd; cd ddd; i=$((i+1)); done; : > bottom")
    await sh(client, workspace, "mkdir /tmp/many; cd /tmp/many; i=0; while [ $i -lt 25000 ]; do : > $i; i=$((i+1)); done")
    await sh(client, workspace, "ln -s / /tmp/out; ln -s /proc/self/root /tmp/magic; mkfifo /tmp/p; dd if=/dev/zero of=/tmp/sparse bs=1 count=0 seek=900G 2>/dev/null")
    started = time.monotonic()
    last = {}
    count = 0
    async for item in client.changes(workspace):
        last = item
        count += 1
    assert last["done"]["truncated"] and count <= 20_001
    assert time.monotonic() - started < 30
