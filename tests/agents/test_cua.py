"""cua's computer client, as its users have it, drives two branches of a real desktop, each at an address of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import client
from tests.agents.desk import Desk
from tests.stream.stack import Stack

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "clients/cua_story.py"


async def test_the_client_as_it_is(stack: Stack, desk: Desk) -> None:
    source = (await desk.client.get(desk.ref))["id"]
    addresses = [f"127.0.0.{number}" for number in (31, 32)]
    async with stack.login() as person:
        made = await person.request("POST", f"/api/v1/workspaces/{source}/fork", {"count": 2})
        assert made.status == 201, await made.text()
        branches = [child["workspace"]["id"] for child in (await made.json())["results"]]
        for branch, address in zip(branches, addresses, strict=True):
            opened = await person.request("POST", f"/api/v1/workspaces/{branch}/cua", {"address": address})
            assert opened.status == 201, await opened.text()
        assert "ok" in await client.run("cua", SCRIPT, *addresses)
    assert await desk.shell("test ! -e branch-note && echo none") == "none\n"
