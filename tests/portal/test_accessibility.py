"""A desktop's accessibility tree by the portal's API: its forms, who may read it, and names that a hostile program chose."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from portal.accessibility import as_text, as_xml
from tests.portal.conftest import Portal, program
from tests.portal.fake_engine import TREE, FakeEngine

PATH = "/api/v1/workspaces/ws-1/accessibility"
NS = "{https://accessibility.ubuntu.example.org/ns/"


async def test_its_forms(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "read")
    answer = await agent.request("GET", PATH + "?showing=1&nodes=10")
    assert await answer.json() == TREE and ("accessibility", {"showing": "1", "nodes": "10"}) in engine.calls
    text = await agent.request("GET", PATH + "?form=text")
    assert (text.content_type, await text.text()) == ("text/plain", as_text(TREE))
    xml = await agent.request("GET", PATH + "?form=xml")
    assert (xml.content_type, await xml.text()) == ("application/xml", as_xml(TREE))


@pytest.mark.parametrize("query", ["form=html", "nodes=0", "nodes=5001", "nodes=x", "showing=2", "showing=1&showing=0"])
async def test_what_is_no_request(portal: Portal, engine: FakeEngine, query: str) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "read")
    assert (await agent.request("GET", f"{PATH}?{query}")).status == 400


async def test_it_is_its_owners(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    stranger = await program(portal, await portal.user(person, "other"), "control")
    assert (await stranger.request("GET", PATH)).status == 404


def test_lines_say_what_is_there_and_where() -> None:
    assert as_text(TREE) == (
        'desktop frame "main"\n'
        '  application "mousepad"\n'
        '    frame "Untitled" at 400,300 size 800x600\n'
        '      button "Save" at 50,20 size 100x40 [disabled]\n'
        '      text "first second" at 400,320 size 800x560 [focused, editable]\n'
        "      slider =0.5 at 20,595 size 40x10\n"
    )
    assert as_text({**TREE, "truncated": True}).endswith("[there is more]\n")


def test_osworlds_form() -> None:
    root = ElementTree.fromstring(as_xml(TREE))
    assert root.tag == "desktop-frame" and root.attrib["name"] == "main"
    frame = root.find("./application/frame")
    assert frame is not None and frame.attrib[NS + "component}screencoord"] == "(0, 0)" and frame.attrib[NS + "component}size"] == "(800, 600)"
    button = frame.find("./panel/button")
    assert button is not None and button.attrib[NS + "action}Click_kb"] == "<Alt>s" and button.attrib[NS + "state}showing"] == "true"
    text = frame.find("./panel/text")
    assert text is not None and text.text == "first\nsecond"
    slider = frame.find("./panel/slider")
    assert slider is not None and slider.attrib[NS + "value}value"] == "0.5"


@pytest.mark.parametrize("role", ["<script>", "", "9 lives", "émigré \x00", "a:b", "-x"])
def test_names_that_are_no_xml_stay_text(role: str) -> None:
    bad: dict[str, Any] = {"parent": 0, "role": role, "name": "\x01<&\"\ud800\uffff", "states": [], "attributes": {"a b": "1", "xmlns": "2", "ok": "<"}, "actions": [["x/y", "", ""], ["do it", "<", ""]]}
    root = ElementTree.fromstring(as_xml({"nodes": [TREE["nodes"][0], bad], "truncated": False, "silent": 0}))
    child = root[0]
    assert child.tag.replace("-", "").isalnum() and child.attrib["name"] == '<&"'
    assert child.attrib[NS + "attributes}ok"] == "<" and child.attrib[NS + "action}do-it_desc"] == "<" and not any("x/y" in name for name in child.attrib)
