"""A program with a token drives a real desktop through the portal, in its own terms and in models'; a person takes it out of its hands."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import pytest
from PIL import Image

from tests.agents.desk import Desk, eventually
from tests.portal.conftest import Client, Portal, program

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(600)]


async def identity_of(desk: Desk) -> str:
    return f"/api/v1/workspaces/{(await desk.client.get(desk.ref))['id']}"


async def posted(client: Client, path: str, body: dict[str, Any], **headers: str | None) -> dict[str, Any]:
    answer = await client.request("POST", path, body, headers=headers)
    assert answer.status == 200, await answer.text()
    return await answer.json()


def picture(data: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data, validate=True)))


async def test_a_program_writes_a_text_and_copies_it(portal: Portal, desk: Desk) -> None:
    agent = await program(portal, await portal.login(), "control")
    one = await identity_of(desk)
    await desk.editor()
    batch = [{"action": "type", "text": "héllo <日本>"}, {"action": "key", "keys": "ctrl+a"}, {"action": "key", "keys": "ctrl+c"}]
    for _ in range(3):
        assert all(result["ok"] for result in (await posted(agent, one + "/actions", {"actions": batch}, **{"Idempotency-Key": "write"}))["results"])
    assert await desk.saved() == "héllo <日本>"
    clipboard = await agent.request("GET", one + "/clipboard")
    assert await clipboard.json() == {"text": "héllo <日本>"}
    titles = [window["title"] for window in (await (await agent.request("GET", one + "/windows")).json())["windows"]]
    assert any("Mousepad" in title for title in titles)


async def test_models_click_and_type_in_their_own_terms(portal: Portal, desk: Desk) -> None:
    agent = await program(portal, await portal.login(), "control")
    computer = await identity_of(desk) + "/computer/"
    # The same pixel of the screen in the three of them: the last one.
    for path, call in (
        ("anthropic?version=computer_20241022&display=1024x768", {"type": "tool_use", "id": "t", "name": "computer", "input": {"action": "mouse_move", "coordinate": [1023, 767]}}),
        ("openai?display=1366x768", {"type": "computer_call", "call_id": "c", "action": {"type": "move", "x": 1365, "y": 767}}),
        ("gemini", {"name": "hover_at", "args": {"x": 1000, "y": 1000}}),
    ):
        await desk.act({"action": "move", "x": 3, "y": 3})
        answer = await posted(agent, computer + path, call)
        assert await desk.cursor() == [1279, 799], path
        if path.startswith("anthropic"):
            assert picture(answer["content"][0]["source"]["data"]).size == (1024, 768)
    await desk.editor()
    typed = {"type": "tool_use", "id": "t2", "toolset_name": "computer", "name": "type", "input": {"text": "<b> ~ @ 日\n"}}
    await posted(agent, computer + "anthropic", typed)
    batch = {"type": "computer_call", "call_id": "c", "actions": [{"type": "type", "text": "ab"}, {"type": "keypress", "keys": ["SHIFT", "LEFT"]}, {"type": "keypress", "keys": ["CTRL", "C"]}]}
    answer = await posted(agent, computer + "openai", batch)
    assert picture(answer["output"]["image_url"].partition(",")[2]).size == (1280, 800)
    await posted(agent, computer + "gemini", {"name": "key_combination", "args": {"keys": "control+v"}})
    assert await desk.saved() == "<b> ~ @ 日\nab"


async def test_a_person_takes_the_desktop_out_of_a_programs_hands(portal: Portal, desk: Desk) -> None:
    person = await portal.login()
    agent = await program(portal, person, "control")
    one = await identity_of(desk)
    await desk.editor()
    typing = asyncio.ensure_future(agent.request("POST", one + "/actions", {"actions": [{"action": "key_down", "keys": "alt"}, {"action": "wait", "seconds": 60}, {"action": "type", "text": "x"}]}))
    await eventually("the key is down", lambda: _pressed(desk))
    began = asyncio.get_running_loop().time()
    assert (await person.request("POST", one + "/lease", {})).status == 200
    results = (await (await typing).json())["results"]
    assert asyncio.get_running_loop().time() - began < 20
    assert [result["ok"] for result in results] == [True, False, False] and "changed hands" in results[1]["error"]["message"]
    await desk.nothing_is_pressed()
    refused = await agent.request("POST", one + "/actions", {"actions": [{"action": "cursor"}]})
    assert refused.status == 423 and (await refused.json())["error"]["lease"]["holder"] == "admin"
    assert (await agent.request("GET", one + "/screenshot?format=jpeg&width=320")).status == 200
    assert (await person.request("DELETE", one + "/lease")).status == 204
    assert (await agent.request("POST", one + "/actions", {"actions": [{"action": "cursor"}]})).status == 200


async def _pressed(desk: Desk) -> bool:
    return bool((await desk.pressed())["keys"])
