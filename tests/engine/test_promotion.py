"""Chosen files of a branch become its parent's: contents, owners, links, removals; what the parent changed meanwhile is not lost by mistake."""

from __future__ import annotations

from typing import Any

import pytest

from engine.client import EngineClient
from engine.errors import BadRequest, Conflict, LimitReached, NotFound
from tests.engine.support import IMAGE


async def sh(client: EngineClient, ref: str, script: str) -> str:
    status, out, err = await client.run(ref, ["sh", "-c", script])
    assert status == 0, err
    return out.decode()


async def pair(client: EngineClient, before: str) -> tuple[str, str]:
    """A source in which `before` ran, and a branch of it."""
    source = (await client.launch(IMAGE, wait=True))["id"]
    await sh(client, source, before)
    return source, (await client.fork(source))["branches"][0]["id"]


def outcomes(answer: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {item["path"]: (item["change"], item["outcome"]) for item in answer["paths"]}


async def test_what_was_chosen_and_no_more(client: EngineClient) -> None:
    source, branch = await pair(client, "mkdir -p /work/old; echo 1 > /work/a; echo 1 > /work/b; echo 1 > /work/gone; echo 1 > /work/old/x; chown 7:8 /work/a; ln -s a /work/l")
    await sh(client, branch, "cd /work; echo 22 > a; chmod 750 a; echo 22 > b; rm gone; rm -r old; ln -sfn b l; mkdir -p new/deep; chown 5 new; echo n > new/deep/f; echo no > /other")
    planned = await client.promote(branch, ["/work/a", "/work/gone", "/work/old", "/work/l", "/work/new/deep/f"], dry_run=True)
    expected = {
        "/work/a": "changed", "/work/gone": "deleted", "/work/old": "deleted", "/work/l": "changed",
        "/work/new": "added", "/work/new/deep": "added", "/work/new/deep/f": "added",
    }  # fmt: skip
    assert outcomes(planned) == {path: (change, "planned") for path, change in expected.items()}
    assert await sh(client, source, "cat /work/a; ls /work") == "1\na\nb\ngone\nl\nold\n"

    done = await client.promote(branch, ["/work/a", "/work/gone", "/work/old", "/work/l", "/work/new/deep/f"])
    assert (done["workspace"], done["into"], done["dry_run"]) == (branch, source, False)
    assert outcomes(done) == {path: (change, "done") for path, change in expected.items()}
    assert await sh(client, source, "cd /work; cat a b new/deep/f; ls; readlink l; stat -c '%u:%g %a' a new") == "22\n1\nn\na\nb\nl\nnew\nb\n7:8 750\n5:0 755\n"
    assert await sh(client, source, "test -e /other || echo none") == "none\n"
    # What follows changes one side alone.
    await sh(client, source, "echo 3 > /work/a")
    assert await sh(client, branch, "cat /work/a") == "22\n"


async def test_a_directory_becomes_as_it_is_in_the_branch(client: EngineClient) -> None:
    source, branch = await pair(client, "mkdir /p; echo 1 > /p/keep; echo 1 > /p/gone; mkdir /p/kind; echo 1 > /p/kind/x")
    await sh(client, branch, "cd /p; rm gone; rm -r kind; echo file > kind; mkdir sub; echo s > sub/s")
    assert outcomes(await client.promote(branch, ["/p/"])) == {
        "/p/gone": ("deleted", "done"), "/p/kind": ("changed", "done"), "/p/sub": ("added", "done"), "/p/sub/s": ("added", "done"),
    }  # fmt: skip
    assert await sh(client, source, "cd /p; ls; cat kind sub/s keep") == "keep\nkind\nsub\nfile\ns\n1\n"
    assert (await client.promote(branch, ["/p"]))["paths"] == []


async def test_what_the_parent_changed_since_is_kept_until_it_is_asked_for(client: EngineClient) -> None:
    source, branch = await pair(client, "mkdir -p /d/sub; echo 1 > /a; echo 1 > /b; echo 1 > /c; echo 1 > /d/sub/x")
    await sh(client, branch, "echo branch > /a; echo branch > /b; rm /c; rm -r /d")
    await sh(client, source, "echo source > /a; touch -d 2001-01-01 /a; echo source > /c; echo source > /d/sub/x")
    planned = await client.promote(branch, ["/a", "/b", "/c", "/d"], dry_run=True)
    assert outcomes(planned) == {"/a": ("changed", "conflict"), "/b": ("changed", "planned"), "/c": ("deleted", "conflict"), "/d": ("deleted", "conflict")}
    with pytest.raises(Conflict, match=f"nothing was promoted into {source}: /a: {source} changed it, too.*`force`"):
        await client.promote(branch, ["/a", "/b", "/c", "/d"])
    assert await sh(client, source, "cat /a /b /c /d/sub/x") == "source\n1\nsource\nsource\n"
    await client.promote(branch, ["/a", "/b", "/c", "/d"], force=True)
    assert await sh(client, source, "cat /a /b; ls -d /c /d 2>/dev/null || true") == "branch\nbranch\n"


async def test_between_siblings_and_strangers(client: EngineClient) -> None:
    source, one = await pair(client, "echo 1 > /a; echo 1 > /b")
    two = (await client.fork(source))["branches"][0]["id"]
    await sh(client, one, "echo one > /a; echo one > /b")
    await sh(client, two, "echo two > /b")
    assert outcomes(await client.promote(one, ["/a", "/b"], into=two, dry_run=True)) == {"/a": ("changed", "planned"), "/b": ("changed", "conflict")}
    stranger = (await client.launch(IMAGE, wait=True))["id"]
    await sh(client, stranger, "echo own > /a")
    assert outcomes(await client.promote(one, ["/a", "/b"], into=stranger, dry_run=True)) == {"/a": ("changed", "conflict"), "/b": ("added", "planned")}


async def test_a_grandchild_whose_parent_has_gone(client: EngineClient) -> None:
    source, branch = await pair(client, "echo 1 > /a; echo 1 > /b")
    grandchild = (await client.fork(branch))["branches"][0]["id"]
    await client.remove(branch)
    await sh(client, grandchild, "echo 2 > /a; echo 2 > /b")
    await sh(client, source, "echo 3 > /b")
    assert outcomes(await client.promote(grandchild, ["/a", "/b"], into=source, dry_run=True)) == {"/a": ("changed", "planned"), "/b": ("changed", "conflict")}


async def test_what_was_not_chosen_is_not_looked_at(client: EngineClient) -> None:
    """However much of the rest differs; and a name that begins like a chosen one is another."""
    source, branch = await pair(client, "mkdir -p /work/p /work/pp; echo 1 > /work/p/a; echo 1 > /work/pp/a; ln -s p /work/l")
    await sh(client, branch, "mkdir /work/many; cd /work/many; i=0; while [ $i -lt 21000 ]; do : > $i; i=$((i+1)); done")
    await sh(client, branch, "cd /work; echo 2 > p/a; echo 2 > pp/a; ln -sfn pp l; mkdir -p new/deep; echo 2 > new/deep/f; echo 2 > new/no")
    assert outcomes(await client.promote(branch, ["/work/p", "/work/l", "/work/new/deep/f"])) == {
        "/work/p/a": ("changed", "done"), "/work/l": ("changed", "done"), "/work/new": ("added", "done"), "/work/new/deep": ("added", "done"),
        "/work/new/deep/f": ("added", "done"),
    }  # fmt: skip
    assert await sh(client, source, "cd /work; cat p/a pp/a new/deep/f; readlink l; ls -A . new") == "2\n1\n2\npp\n.:\nl\nnew\np\npp\n\nnew:\ndeep\n"
    with pytest.raises(LimitReached, match="choose less"):
        await client.promote(branch, ["/work"])


async def test_links_of_either_side_lead_nowhere_outside(client: EngineClient) -> None:
    source, branch = await pair(client, "mkdir /w /elsewhere; echo 1 > /w/f; ln -s /proc/1/root/etc /trap")
    await sh(client, branch, "rm -r /w/f; ln -s /etc/shadow /w/f; mkdir /t; echo x > /t/x; mkfifo /w/pipe")
    # The link itself is carried over, not what it leads to.
    await client.promote(branch, ["/w/f"])
    assert await sh(client, source, "readlink /w/f") == "/etc/shadow\n"
    planned = await client.promote(branch, ["/w/pipe"], dry_run=True)
    assert outcomes(planned) == {"/w/pipe": ("added", "refused")}
    with pytest.raises(Conflict, match="/w/pipe: it is a fifo"):
        await client.promote(branch, ["/w/pipe"], force=True)
    # A directory of the branch where the source has a link that leads outside by magic: refused, nothing written.
    await sh(client, branch, "rm /trap; mkdir /trap; echo evil > /trap/hostname")
    await sh(client, source, "true")
    done = await client.promote(branch, ["/trap"], force=True)
    assert outcomes(done) == {"/trap": ("changed", "done"), "/trap/hostname": ("added", "done")}
    assert await sh(client, source, "test ! -L /trap && cat /trap/hostname") == "evil\n"


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "paths"), ({"paths": []}, "paths"), ({"paths": [1]}, "paths"), ({"paths": ["a"]}, "paths"),
     ({"paths": ["/a"], "into": 3}, "into"), ({"paths": ["/a"], "force": 1}, "force"), ({"paths": ["/a"], "more": 1}, None), ({"paths": ["/a"] * 1001}, "paths")],
)  # fmt: skip
async def test_bad_requests_are_refused(client: EngineClient, body: dict[str, Any], field: str | None) -> None:
    source = (await client.launch(IMAGE, wait=True))["id"]
    with pytest.raises(BadRequest) as refused:
        await client._json("POST", f"/v1/workspaces/{source}/promote", body)
    assert refused.value.field == field


async def test_whom_files_cannot_go_to(client: EngineClient) -> None:
    source, branch = await pair(client, "echo 1 > /a")
    with pytest.raises(Conflict, match="has no parent"):
        await client.promote(source, ["/a"])
    with pytest.raises(NotFound):
        await client.promote(branch, ["/a"], into="nobody")
    with pytest.raises(Conflict, match="has these files already"):
        await client.promote(branch, ["/a"], into=branch)
    for nothing in ("/nothing", "/a/../nothing", "/a\0", "/" + "a" * 5000):
        with pytest.raises(NotFound, match="there is no /"):
            await client.promote(branch, [nothing])
    # What is on another mount is compared with nothing: it is not the same on both sides, and not missing.
    await sh(client, branch, "echo 1 > /dev/shm/mine; mkdir -p /up; ln -s /dev/shm /up/shm")
    for elsewhere in ("/proc", "/dev", "/dev/null", "/dev/shm/mine", "/sys/kernel", "/opt/../proc/1/environ"):
        for force in (False, True):
            with pytest.raises(BadRequest, match="another mount"):
                await client.promote(branch, [elsewhere, "/a"], force=force, dry_run=force)
    # A link to such a place is a file like others.
    assert outcomes(await client.promote(branch, ["/up/shm"])) == {"/up": ("added", "done"), "/up/shm": ("added", "done")}
    assert (await client.promote(branch, ["/opt/..//a/"]))["paths"] == []
