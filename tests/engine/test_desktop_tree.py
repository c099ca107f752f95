"""What a workspace tells of its desktop is checked before anybody believes it. The real thing: tests/agents/test_accessibility.py"""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.desktop.tree import MOST_NODES, parsed

ROOT = {"parent": None, "role": "desktop frame", "name": "main", "states": []}


def told(*nodes: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({"nodes": [ROOT, *nodes], "truncated": False, "silent": 0, **changes}).encode()


def node(**changes: Any) -> dict[str, Any]:
    return {"parent": 0, "role": "button", "name": "OK", "states": ["showing", "has-popup"], **changes}


def test_a_tree_is_taken_as_it_is_and_what_is_empty_left_out() -> None:
    full = node(text="x", box=[1, -2, 3, 4], attributes={"id": "ok"}, value={"CurrentValue": 1.5, "MaximumValue": 2}, actions=[["Click", "", "<Alt>o"]], image=True)
    tree = parsed(told(full, node(parent=1), surprise=1)).public()
    assert tree == {"nodes": [ROOT, full, node(parent=1)], "truncated": False, "silent": 0}


def test_control_characters_are_gone_and_other_text_stays() -> None:
    tree = parsed(told(node(name="a\x1b[31m\x00é\u200d👩\u200d💻\nb")))
    assert tree.nodes[1].name == "a[31mé\u200d👩\u200d💻\nb"


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", b"\xff", b"[" * 100_000, told(nodes=[]), told(node(parent=2)), told(node(parent=1)), told(node(parent=-1)), told(node(parent=None)), told(node(parent="0")),
        told(node(name=7)), told(node(name="x" * 2001)), told(node(box=[1, 2, 3])), told(node(box=[1, 2, 3, 1 << 40])), told(node(states=["<b>"])), told(node(states=["a"] * 65)),
        told(node(value={"CurrentValue": "1"})), told(node(value={"CurrentValue": float("nan")})), told(node(actions=[["a"]])), told(node(attributes={"a": {}})),
        told(*[node() for _ in range(MOST_NODES)]), told(*[node(parent=depth) for depth in range(65)]), told(silent=-1), told(truncated="no"),
    ],
)  # fmt: skip
def test_what_is_no_tree(text: bytes) -> None:
    with pytest.raises(ValueError):
        parsed(text)


def test_one_that_is_just_within_the_limits() -> None:
    assert len(parsed(told(*[node() for _ in range(MOST_NODES - 1)])).nodes) == MOST_NODES
    assert len(parsed(told(*[node(parent=depth) for depth in range(64)])).nodes) == 65
