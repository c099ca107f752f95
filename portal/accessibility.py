"""What a desktop's programs say of what they show, in other forms than JSON: lines for models, and the XML that OSWorld's agents read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

_OSWORLD = "https://accessibility.ubuntu.example.org/ns/"
_SPACES = {"st": "state", "attr": "attributes", "cp": "component", "val": "value", "act": "action"}
_FIGURES = {"CurrentValue": "value", "MinimumValue": "min", "MaximumValue": "max", "MinimumIncrement": "step"}
_TOLD_STATES = ("focused", "checked", "selected", "pressed", "expanded", "active", "editable", "modal", "busy")
_NO_NAME = re.compile(r"[^a-z0-9-]+")
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,59}")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST = 160

for _prefix, _word in _SPACES.items():
    ElementTree.register_namespace(_prefix, _OSWORLD + _word)


def as_text(tree: dict[str, Any]) -> str:
    """One line for each node that has a name, a text or a value: its role, what it says, where its middle is and its size, what state it is in.

    Indented by what it is in; nodes that say nothing are left out. Places are pixels of the screen.
    """
    nodes = tree["nodes"]
    depths, lines = [0] * len(nodes), []
    for number, below in _in_order(nodes):
        line = _line(nodes[number])
        if line:
            lines.append("  " * depths[number] + line)
        for child in below:
            depths[child] = depths[number] + bool(line)
    if tree.get("truncated"):
        lines.append("[there is more]")
    return "\n".join(lines) + "\n"


def as_xml(tree: dict[str, Any]) -> str:
    """A `desktop-frame` with the programs in it, as OSWorld's server answers: elements are roles, attributes in its namespaces."""
    elements: list[ElementTree.Element] = []
    for node in tree["nodes"]:
        role = _NO_NAME.sub("-", node["role"].lower()).strip("-")
        attributes = _attributes(node)
        tag = role if role and role[0].isalpha() else "unknown"
        if node["parent"] is None:
            elements.append(ElementTree.Element("desktop-frame", attributes))
        else:
            elements.append(ElementTree.SubElement(elements[node["parent"]], tag, attributes))
        elements[-1].text = _xml(node.get("text", "")) or None
    return ElementTree.tostring(elements[0], encoding="unicode")


def _attributes(node: dict[str, Any]) -> dict[str, str]:
    found = {"name": node.get("name", "")}
    found |= {_in("st", state): "true" for state in node.get("states", ())}
    found |= {_in("attr", name): value for name, value in node.get("attributes", {}).items() if _ATTRIBUTE.fullmatch(name)}
    if box := node.get("box"):
        found |= {_in("cp", "screencoord"): f"({box[0]}, {box[1]})", _in("cp", "size"): f"({box[2]}, {box[3]})"}
    found |= {_in("val", _FIGURES[name]): str(value) for name, value in node.get("value", {}).items() if name in _FIGURES}
    for action, description, keys in node.get("actions", ()):
        name = action.replace(" ", "-")
        if _ATTRIBUTE.fullmatch(name):
            found |= {_in("act", name + "_desc"): description, _in("act", name + "_kb"): keys}
    found |= {name: "true" for name in ("image", "selection") if node.get(name)}
    return {name: _xml(value) for name, value in found.items()}


def _in(space: str, name: str) -> str:
    return f"{{{_OSWORLD}{_SPACES[space]}}}{name}"


def _xml(text: str) -> str:
    return _NO_XML.sub("", text)


def _in_order(nodes: list[dict[str, Any]]) -> Iterator[tuple[int, list[int]]]:
    """Each node's place and those of its children, a parent right before all that is in it."""
    below: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node["parent"] is not None:
            below[node["parent"]].append(number)
    waiting = [0]
    while waiting:
        number = waiting.pop()
        yield number, below[number]
        waiting += reversed(below[number])


def _line(node: dict[str, Any]) -> str:
    said = [part for part in (node.get("name", ""), node.get("text", "")) if part.strip()]
    said = list(dict.fromkeys(_short(part) for part in said))
    value = node.get("value", {}).get("CurrentValue")
    more = [state for state in _TOLD_STATES if state in node.get("states", ())]
    if not said and value is None and "focused" not in more:
        return ""
    parts = [node["role"] or "unknown", *said]
    if value is not None:
        parts.append(f"={value:g}")
    if box := node.get("box"):
        parts.append(f"at {box[0] + box[2] // 2},{box[1] + box[3] // 2} size {box[2]}x{box[3]}")
    if "sensitive" not in node.get("states", ()) and node.get("box"):
        more.append("disabled")
    return " ".join(parts + ([f"[{', '.join(more)}]"] if more else []))


def _short(text: str) -> str:
    """On one line, in quotes."""
    flat = " ".join(text.split())
    return '"' + (flat if len(flat) <= _LONGEST else flat[:_LONGEST] + "…") + '"'
