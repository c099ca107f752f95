"""The headless story with everything real: launch, fork, fork a branch, each goes its own way, all of it goes."""

from __future__ import annotations

import asyncio
import http.client
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Tclone

pytestmark = [pytest.mark.root, pytest.mark.slow]

_COUNTER = 'setsid sh -c "n=0; while sleep 0.2; do n=\\$((n+1)); echo \\$n > /tmp/counter; done" >/dev/null 2>&1 </dev/null &'
_SERVER = "cd /tmp && setsid python3 -m http.server 8000 >/dev/null 2>&1 </dev/null &"


async def _get(tclone: Tclone, workspace: str) -> int:
    """The counter as the workspace's own web server tells it. The first answers may come before the server listens, and one is cut off when the
    file is written anew between its size and its content."""
    port = (await tclone("port", workspace, "8000")).out.strip()

    def read() -> bytes:
        with urllib.request.urlopen(f"http://localhost:{port}/counter", timeout=30) as answer:
            return answer.read()

    deadline = time.monotonic() + 30
    while True:
        try:
            if text := (await asyncio.to_thread(read)).strip():
                return int(text)
        except (OSError, http.client.IncompleteRead):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def test_a_headless_workspace_is_forked_and_each_goes_its_own_way(tclone_up: Tclone, place: Path) -> None:
    assert (await tclone_up("up", "-d", timeout=300)).status == 0
    built = await tclone_up("image", "build", "workspace", timeout=600)
    assert built.status == 0, built.err
    launched = await tclone_up("run", "workspace", "--name", "lab", "-p", "8000", timeout=120)
    assert (launched.status, launched.out) == (0, "ws-1\n"), launched.err
    assert (await tclone_up("exec", "lab", "--", "sh", "-c", _COUNTER)).status == 0
    assert (await tclone_up("exec", "lab", "--", "sh", "-c", _SERVER)).status == 0
    before = await _get(tclone_up, "lab")

    forked = await tclone_up("fork", "lab", "--name", "try", "--copies", "2", timeout=120)
    assert (forked.status, len(forked.out.split())) == (0, 2), forked.err
    for workspace in ("lab", "try-0", "try-1"):
        assert await _get(tclone_up, workspace) >= before

    # A branch stops counting; the others go on.
    assert (await tclone_up("exec", "try-0", "--", "sh", "-c", "pkill -f 'while [s]leep' && rm /tmp/counter && touch /tmp/mine")).status == 0
    for workspace in ("lab", "try-1"):
        now = await _get(tclone_up, workspace)
        async with asyncio.timeout(60):
            while await _get(tclone_up, workspace) <= now:
                await asyncio.sleep(0.2)
        assert (await tclone_up("exec", workspace, "--", "test", "-e", "/tmp/mine")).status == 1
    assert (await tclone_up("exec", "try-0", "--", "test", "-e", "/tmp/counter")).status == 1

    again = await tclone_up("fork", "try-1", "--json", timeout=120)
    result = again.json()
    assert again.status == 0 and result["mode"] == "copy" and result["ms"]["usable"] > 0
    assert await _get(tclone_up, result["branches"][0]["id"]) >= before
    listed = {one["name"]: one for one in (await tclone_up("ls", "--json")).json()}
    assert listed["try-1-clone"]["parent"] == listed["try-1"]["id"]
    assert len({one["ports"]["8000"] for one in listed.values()}) == 4

    taken = await tclone_up("run", "workspace", "--name", "lab")
    assert taken.status == 5 and "lab" in taken.err
    missing = await tclone_up("run", "nonesuch")
    assert missing.status == 4 and "nonesuch" in missing.err

    # Workspaces outlive the engine when asked to, and go on counting.
    assert (await tclone_up("down", "--keep", timeout=90)).status == 0
    assert (await tclone_up("up", "-d", timeout=300)).status == 0
    assert await _get(tclone_up, "lab") > before
    removed = await tclone_up("rm", "--all", timeout=60)
    assert (removed.status, len(removed.out.split())) == (0, 4), removed.err
