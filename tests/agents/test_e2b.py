"""E2B's desktop SDK, as its users have it, drives real desktops through the portal's real processes."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests import client
from tests.agents.desk import Desk
from tests.stream.stack import Stack

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "clients/e2b_story.py"


async def test_the_desktop_sdk_as_it_is(stack: Stack, desk: Desk) -> None:
    url, source = f"https://127.0.0.1:{stack.port}/e2b", (await desk.client.get(desk.ref))["id"]
    async with stack.login() as person:
        made = await person.request("POST", "/api/v1/tokens", {"name": "sdk", "scopes": ["fork", "control"], "form": "e2b"})
        said = await client.run(
            "e2b", SCRIPT, source, seconds=500, E2B_API_URL=url, E2B_SANDBOX_URL=url, E2B_API_KEY=(await made.json())["token"],
            SSL_CERT_FILE=str(stack.places.ca_certificate),
        )  # fmt: skip
        entries = await (await person.request("GET", "/api/v1/audit?limit=1000&event=action")).json()
    told = [entry["action"] for entry in entries if entry["outcome"] == "ok" and entry.get("token")]
    assert {"click", "type", "key", "move", "cursor"} <= set(told)
    # The address that it gives for its stream leads a person to the desktop's page.
    host, _, path = said.partition("stream https://")[2].strip().partition("/")
    async with aiohttp.ClientSession() as session:
        async with session.get(f"https://127.0.0.1:{stack.port}/{path}", ssl=False, headers={"Host": host}, allow_redirects=False) as answer:
            assert answer.status == 302 and answer.headers["Location"].startswith(f"https://tclone.localhost:{stack.port}/w/ws-")
