"""What a real desktop's programs say of what they show, before and after a fork, and what becomes of it when the workspace lies."""

from __future__ import annotations

from typing import Any

import pytest

from engine.client import EngineClient
from engine.errors import Internal, Unavailable, Unsupported
from tests.agents.desk import Desk, eventually

# The first of the directory waits for the image, which may have to be built.
pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(1500)]

PAGE = "data:text/html,<title>Page</title><h1>Heading</h1><button onclick=document.title='Pressed'>Press me</button><input value=abc>"


def named(tree: dict[str, Any], role: str, name: str) -> dict[str, Any] | None:
    return next((node for node in tree["nodes"] if node["role"] == role and name in node["name"]), None)


def middle(node: dict[str, Any]) -> dict[str, int]:
    left, top, width, height = node["box"]
    return {"x": left + width // 2, "y": top + height // 2}


async def test_an_editor_is_read_and_clicked_by_what_it_says_of_itself(desk: Desk, client: EngineClient) -> None:
    await desk.editor()
    await desk.act({"action": "type", "text": "first\nžluťoučký"})

    async def written() -> dict[str, Any] | None:
        tree = await client.accessibility(desk.ref, showing=True)
        return next((node for node in tree["nodes"] if node.get("text") == "first\nžluťoučký"), None)

    area = await eventually("the text is told", written)
    assert area["role"] == "text" and {"focused", "editable", "multi-line"} <= set(area["states"])
    tree = await client.accessibility(desk.ref, showing=True)
    assert tree["nodes"][0]["role"] == "desktop frame" and tree["silent"] == 0 and not tree["truncated"]
    assert all("showing" in node["states"] for node in tree["nodes"] if "box" in node)
    menu = named(tree, "menu", "File")
    assert menu is not None
    await desk.act({"action": "click", **middle(menu)})
    await eventually("its menu is open", lambda: _showing(client, desk.ref, "menu item", "Save As..."))
    await desk.act({"action": "key", "keys": "Escape"})
    hidden = await client.accessibility(desk.ref)
    assert len(hidden["nodes"]) > len(tree["nodes"])
    few = await client.accessibility(desk.ref, nodes=5)
    assert len(few["nodes"]) == 5 and few["truncated"]


async def _showing(client: EngineClient, ref: str, role: str, name: str) -> dict[str, Any] | None:
    found = named(await client.accessibility(ref, showing=True), role, name)
    return found if found is not None and "box" in found else None


async def test_a_branch_has_a_bus_of_its_own(desk: Desk, client: EngineClient) -> None:
    await desk.shell(f'setsid -f chromium "{PAGE}" >/dev/null 2>&1')
    try:
        await eventually("the page is told", lambda: _showing(client, desk.ref, "button", "Press me"))
        branch = (await client.fork(desk.ref, copies=1))["branches"][0]["id"]
        there = Desk(client, branch)
        button = await eventually("the branch tells of it, too", lambda: _showing(client, branch, "button", "Press me"))
        await there.act({"action": "click", **middle(button)})
        await eventually("the branch tells what became of it", lambda: _showing(client, branch, "frame", "Pressed"))
        assert await _showing(client, desk.ref, "frame", "Page") is not None and await _showing(client, desk.ref, "frame", "Pressed") is None
        # A program that starts in the branch finds the bus there.
        await there.editor()
        await eventually("and of a new program", lambda: _showing(client, branch, "frame", "text - Mousepad"))
        assert await _showing(client, desk.ref, "frame", "text - Mousepad") is None
        # One that does not answer takes nothing from the others.
        await there.shell("pkill -STOP mousepad")
        tree = await client.accessibility(branch, showing=True)
        assert tree["silent"] == 1 and tree["truncated"] and named(tree, "button", "Press me") is not None
        await _lies(client, branch)
    finally:
        await desk.shell("pkill chromium; while pgrep chromium; do sleep 0.05; done >/dev/null")


async def _lies(client: EngineClient, branch: str) -> None:
    """Root of a workspace puts another program in the place of the reader's interpreter."""
    await _root(client, branch, "mv /usr/bin/python3 /usr/bin/python3.kept")
    with pytest.raises(Unsupported, match="no python3"):
        await client.accessibility(branch)
    for script, error, said in (
        ("yes '[[[['", Internal, "wrote more than 1 MiB"), ("head -c 900000 /dev/zero", Internal, "makes no sense"), ("echo '{\"nodes\":[]}'", Internal, "makes no sense"),
        ("exit 1", Unavailable, "cannot be read"),
    ):  # fmt: skip
        await _root(client, branch, "printf '#!/bin/sh\\n%s\\n' \"$1\" >/usr/bin/python3; chmod 755 /usr/bin/python3", script)
        with pytest.raises(error, match=said):
            await client.accessibility(branch)


async def _root(client: EngineClient, branch: str, script: str, *words: str) -> None:
    status, _, err = await client.run(branch, ["sh", "-c", script, "sh", *words])
    assert status == 0, err
