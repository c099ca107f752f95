"""Models' own actions as tables: what each call becomes, what is refused, what comes back."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image

from portal.errors import Malformed
from portal.models import anthropic, gemini, openai
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.test_actions import ONE, acted, program

FIRST, SECOND, THIRD, TOOLSET = anthropic.VERSIONS
CTRL = {"modifiers": "ctrl"}


def plain(plan: Any) -> list[dict[str, Any]]:
    """Only what was said: defaults left out."""
    return [action.model_dump(exclude_defaults=True, exclude_none=True) for action in plan.actions]


def at(name: str, x: int, y: int, **more: Any) -> dict[str, Any]:
    return {"action": name, "x": x, "y": y, **more}


ANTHROPIC = [
    ("left_click", {"coordinate": [40, 60]}, [at("click", 40, 60)], FIRST),
    ("left_click", {}, [{"action": "click"}], FIRST),
    ("left_click", {"coordinate": [0, 0], "text": "ctrl"}, [at("click", 0, 0, **CTRL)], SECOND),
    ("left_click", {"coordinate": [1, 2], "key": "ctrl"}, [at("click", 1, 2, **CTRL)], SECOND),
    ("right_click", {"coordinate": [1, 2]}, [at("click", 1, 2, button="right")], FIRST),
    ("middle_click", {"coordinate": [1, 2]}, [at("click", 1, 2, button="middle")], FIRST),
    ("double_click", {"coordinate": [1, 2]}, [at("click", 1, 2, count=2)], FIRST),
    ("triple_click", {"coordinate": [1, 2]}, [at("click", 1, 2, count=3)], SECOND),
    ("mouse_move", {"coordinate": [1, 2]}, [at("move", 1, 2)], FIRST),
    ("left_click_drag", {"start_coordinate": [1, 2], "coordinate": [3, 4]}, [{"action": "drag", "path": [[1, 2], [3, 4]]}], FIRST),
    ("left_click_drag", {"coordinate": [3, 4]}, [{"action": "mouse_down"}, at("move", 3, 4), {"action": "mouse_up"}], FIRST),
    ("key", {"text": "ctrl+l"}, [{"action": "key", "keys": "ctrl+l"}], FIRST),
    ("key", {"text": "Down Down"}, [{"action": "key", "keys": "Down"}] * 2, FIRST),
    ("key", {"text": "Tab", "repeat": 3}, [{"action": "key", "keys": "Tab", "repeat": 3}], TOOLSET),
    ("type", {"text": "héllo <b> 😀"}, [{"action": "type", "text": "héllo <b> 😀"}], FIRST),
    ("scroll", {"coordinate": [1, 2], "scroll_direction": "down", "scroll_amount": 5}, [at("scroll", 1, 2, dy=5)], SECOND),
    ("scroll", {"scroll_direction": "left", "scroll_amount": 2, "text": "ctrl"}, [{"action": "scroll", "dx": -2, **CTRL}], SECOND),
    ("left_mouse_down", {}, [{"action": "mouse_down"}], SECOND),
    ("left_mouse_up", {}, [{"action": "mouse_up"}], SECOND),
    ("hold_key", {"text": "shift", "duration": 2}, [{"action": "hold_key", "keys": "shift", "seconds": 2.0}], SECOND),
    ("wait", {"duration": 0.5}, [{"action": "wait", "seconds": 0.5}], SECOND),
    ("screenshot", {}, [], FIRST),
    ("cursor_position", {}, [{"action": "cursor"}], FIRST),
    ("zoom", {"region": [10, 20, 110, 120]}, [], THIRD),
]


@pytest.mark.parametrize("name, given, expected, since", ANTHROPIC)
def test_anthropic_in_every_version_and_shape(name: str, given: dict[str, Any], expected: list[dict[str, Any]], since: str) -> None:
    versions = list(anthropic.VERSIONS)
    shapes = [
        {"type": "tool_use", "id": "x", "name": "computer", "input": {"action": name, **given}},
        {"action": name, **given},
        {"type": "tool_use", "id": "x", "toolset_name": "computer", "name": name, "input": given},
    ]
    for index, version in enumerate(versions):
        for shape in shapes:
            if index < versions.index(since):
                # A version that has not the field of the row may have the action.
                if name not in anthropic.VERSIONS[version]:
                    with pytest.raises(Malformed, match="has no action"):
                        anthropic.plan(shape, version, None)
            else:
                assert plain(anthropic.plan(shape, version, (1024, 768))) == expected


def test_how_many_actions_each_version_has() -> None:
    assert [len(actions) for actions in anthropic.VERSIONS.values()] == [10, 16, 17, 17]


@pytest.mark.parametrize(
    "call",
    [
        {}, {"action": 5}, {"action": "fly"}, {"input": "left_click"}, {"action": "left_click", "coordinate": "1,2"}, {"action": "left_click", "coordinate": [1]}, {"action": "left_click", "coordinate": [1.5, 2]},
        {"action": "left_click", "coordinate": [-1, 2]}, {"action": "left_click", "coordinate": [True, 2]}, {"action": "left_click", "surprise": 1}, {"action": "mouse_move"}, {"action": "key"},
        {"action": "key", "text": "nokey"}, {"action": "key", "text": ""}, {"action": "type", "text": 5}, {"action": "scroll", "scroll_direction": "in", "scroll_amount": 1},
        {"action": "scroll", "scroll_direction": "up", "scroll_amount": -1}, {"action": "scroll", "scroll_direction": "up", "scroll_amount": 500}, {"action": "wait", "duration": 101},
        {"action": "hold_key", "text": "a", "duration": "1"}, {"action": "zoom", "region": [1, 2, 3]}, {"action": "zoom", "region": [5, 5, 5, 9]}, {"action": "left_click_drag", "start_coordinate": [1, 1]},
        {"toolset_name": "browser", "name": "left_click", "input": {}},
    ],
)  # fmt: skip
def test_what_is_none_of_anthropics(call: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        anthropic.plan(call, THIRD, None)


OPENAI = [
    ({"type": "click", "button": "left", "x": 0, "y": 5}, [at("click", 0, 5)]),
    ({"type": "click", "button": "wheel", "x": 1, "y": 2}, [at("click", 1, 2, button="middle")]),
    ({"type": "click", "button": "back", "x": 1, "y": 2, "keys": ["CTRL", "SHIFT"]}, [at("click", 1, 2, button="back", modifiers="CTRL+SHIFT")]),
    ({"type": "double_click", "x": 1, "y": 2}, [at("click", 1, 2, count=2)]),
    ({"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}, {"x": 5, "y": 6}]}, [{"action": "drag", "path": [[1, 2], [3, 4], [5, 6]]}]),
    ({"type": "keypress", "keys": ["CTRL", "C"]}, [{"action": "key", "keys": "CTRL+C"}]),
    ({"type": "keypress", "keys": ["ENTER"]}, [{"action": "key", "keys": "ENTER"}]),
    ({"type": "keypress", "keys": ["CTRL", "+"]}, [{"action": "key", "keys": "CTRL++"}]),
    ({"type": "move", "x": 1, "y": 2}, [at("move", 1, 2)]),
    # Distances are pixels: 500 are five notches, not 500, and a million is not ten thousand.
    ({"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 500}, [at("scroll", 1, 2, dy=5)]),
    ({"type": "scroll", "x": 1, "y": 2, "scroll_x": -30, "scroll_y": 0}, [at("scroll", 1, 2, dx=-1)]),
    ({"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": -1_000_000}, [at("scroll", 1, 2, dy=-50)]),
    ({"type": "type", "text": "hé"}, [{"action": "type", "text": "hé"}]),
    ({"type": "wait"}, [{"action": "wait", "seconds": 1.0}]),
    ({"type": "screenshot"}, []),
]


@pytest.mark.parametrize("said, expected", OPENAI)
def test_openai_single_and_batched(said: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert plain(openai.plan(said, None)) == expected
    assert plain(openai.plan({"type": "computer_call", "call_id": "c", "action": said, "pending_safety_checks": []}, None)) == expected
    assert plain(openai.plan({"type": "computer_call", "call_id": "c", "actions": [said, {"type": "wait"}, said]}, None)) == [
        *expected, {"action": "wait", "seconds": 1.0}, *expected,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        {}, {"type": "fly"}, {"type": "computer_call"}, {"type": "computer_call", "actions": []}, {"type": "computer_call", "actions": [{"type": "wait"}] * 65}, {"type": "computer_call", "action": "wait"},
        {"type": "click", "button": "left", "x": 1}, {"type": "click", "button": "nose", "x": 1, "y": 1}, {"type": "click", "button": "left", "x": 1.5, "y": 1}, {"type": "drag", "path": [{"x": 1, "y": 1}]},
        {"type": "drag", "path": [1, 2]}, {"type": "keypress", "keys": []}, {"type": "keypress", "keys": "a"}, {"type": "keypress", "keys": ["NOKEY"]}, {"type": "wait", "seconds": 5},
        {"type": "scroll", "x": 1, "y": 1, "scroll_y": "far"}, {"type": "type"},
    ],
)  # fmt: skip
def test_what_is_none_of_openais(call: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        openai.plan(call, None)


GEMINI = [
    ("click_at", {"x": 500, "y": 1000}, [at("click", 500, 1000)]),
    ("click_at", {"x": 1001, "y": -3}, [at("click", 1000, 0)]),
    ("hover_at", {"x": 0, "y": 0}, [at("move", 0, 0)]),
    (
        "type_text_at", {"x": 1, "y": 2, "text": "hé", "press_enter": True},
        [at("click", 1, 2), {"action": "key", "keys": "ctrl+a"}, {"action": "key", "keys": "BackSpace"}, {"action": "type", "text": "hé"}, {"action": "key", "keys": "Return"}],
    ),
    ("type_text_at", {"x": 1, "y": 2, "text": "a", "clear_before_typing": False}, [at("click", 1, 2), {"action": "type", "text": "a"}]),
    ("scroll_document", {"direction": "up"}, [{"action": "scroll", "dy": -8}]),
    ("scroll_at", {"x": 1, "y": 2, "direction": "right", "magnitude": 300}, [at("scroll", 1, 2, dx=3)]),
    ("key_combination", {"keys": "control+c"}, [{"action": "key", "keys": "control+c"}]),
    ("drag_and_drop", {"x": 1, "y": 2, "destination_x": 1000, "destination_y": 4}, [{"action": "drag", "path": [[1, 2], [1000, 4]]}]),
    ("go_back", {"safety_decision": {"decision": "require_confirmation"}}, [{"action": "key", "keys": "alt+Left"}]),
    ("wait_5_seconds", {}, [{"action": "wait", "seconds": 5.0}]),
]  # fmt: skip


@pytest.mark.parametrize("name, given, expected", GEMINI)
def test_gemini(name: str, given: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    plan = gemini.plan({"name": name, "args": given})
    assert plain(plan) == expected and plan.size == (1001, 1001)


@pytest.mark.parametrize(
    "call",
    [
        {}, {"name": "fly"}, {"name": "navigate", "args": {"url": "https://example.org"}}, {"name": "click_at", "args": {"x": 1}}, {"name": "click_at", "args": {"x": 5000, "y": 1}}, {"name": "click_at", "args": []},
        {"name": "scroll_document", "args": {"direction": "in"}}, {"name": "key_combination", "args": {}}, {"name": "type_text_at", "args": {"x": 1, "y": 1, "text": "a", "press_enter": 1}},
        {"name": "click_at", "args": {"x": float("nan"), "y": 1}},
    ],
)  # fmt: skip
def test_what_is_none_of_geminis(call: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        gemini.plan(call)


def opened(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text, validate=True)))


async def test_what_anthropic_gets(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    path = ONE + "/computer/anthropic?version=computer_20250124&display=1024x768"
    call = {"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {"action": "left_click", "coordinate": [40, 60]}}
    answer = await (await agent.request("POST", path, call)).json()
    assert (answer["type"], answer["tool_use_id"], answer["is_error"]) == ("tool_result", "toolu_1", False)
    source = answer["content"][0]["source"]
    assert (source["type"], source["media_type"]) == ("base64", "image/png") and opened(source["data"]).format == "PNG"
    acts = [body for verb, body in engine.calls if verb == "act"]
    assert acts[0]["size"] == [1024, 768]
    shot = next(query for verb, query in engine.calls if verb == "screenshot")
    assert (shot["width"], shot["height"], shot["pointer"]) == ("1024", "768", "1")
    asked = {"type": "tool_use", "id": "toolu_2", "name": "computer", "input": {"action": "cursor_position"}}
    assert (await (await agent.request("POST", path, asked)).json())["content"] == [{"type": "text", "text": "X=3,Y=4"}]
    # What the model got wrong is told to the model.
    wrong = {"type": "tool_use", "id": "toolu_3", "name": "computer", "input": {"action": "zoom", "region": [0, 0, 9, 9]}}
    answer = await (await agent.request("POST", path, wrong)).json()
    assert answer["is_error"] is True and "has no action 'zoom'" in answer["content"][0]["text"]
    engine.action_fails = "click"
    answer = await (await agent.request("POST", path, call)).json()
    assert answer["is_error"] is True and answer["content"][0]["text"] == "no window 7"
    for query in ("version=computer_1", "display=1x1", "display=wide"):
        assert (await agent.request("POST", f"{ONE}/computer/anthropic?{query}", call)).status == 400


async def test_a_region_is_enlarged_in_its_proportions(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    await agent.request("POST", ONE + "/computer/anthropic?display=640x400", {"action": "zoom", "region": [10, 20, 110, 70]})
    shot = [query for verb, query in engine.calls if verb == "screenshot"][-1]
    assert (shot["region"], shot["width"], shot["height"]) == ("20,40,220,140", "640", "320")
    refused = await agent.request("POST", ONE + "/computer/anthropic?display=640x400", {"action": "zoom", "region": [10, 20, 641, 70]})
    assert refused.status == 400


async def test_what_openai_gets(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    call = {"type": "computer_call", "call_id": "call_1", "actions": [{"type": "move", "x": 1, "y": 2}, {"type": "wait"}], "pending_safety_checks": []}
    answer = await (await agent.request("POST", ONE + "/computer/openai", call)).json()
    assert (answer["type"], answer["call_id"], answer["output"]["type"]) == ("computer_call_output", "call_1", "computer_screenshot")
    head, _, data = answer["output"]["image_url"].partition(",")
    assert head == "data:image/png;base64" and opened(data).size == (1280, 800)
    assert acted(engine) == [["move", "wait"]]
    assert (await agent.request("POST", ONE + "/computer/openai", {"type": "fly"})).status == 400


async def test_what_gemini_gets(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    answer = await (await agent.request("POST", ONE + "/computer/gemini", {"name": "click_at", "args": {"x": 1000, "y": 0}})).json()
    response = answer["function_response"]
    assert response["name"] == "click_at" and response["response"] == {}
    assert opened(response["parts"][0]["inline_data"]["data"]).size == (1280, 800)
    assert [body["size"] for verb, body in engine.calls if verb == "act"] == [[1001, 1001]]
    answer = await (await agent.request("POST", ONE + "/computer/gemini", {"name": "fly"})).json()
    assert "no function" in answer["function_response"]["response"]["error"]


async def test_a_repeated_call_clicks_once(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    for _ in range(3):
        answer = await agent.request("POST", ONE + "/computer/openai", {"type": "click", "button": "left", "x": 1, "y": 1}, headers={"Idempotency-Key": "c1"})
        assert answer.status == 200
    assert len(acted(engine)) == 1
