"""Chromium by the name that OSWorld's tasks and evaluators look for: `google-chrome` is Chromium in these desktops."""

from __future__ import annotations

from typing import Any

_OURS, _THEIRS = "Chromium", "Google Chrome"
_CLASS = "Google-chrome"


def title_of(title: str) -> str:
    """A window's title as Chrome would have it: `News - Chromium` is `News - Google Chrome`. Any other stays."""
    if title == _OURS or title.endswith(f" - {_OURS}"):
        return title.removesuffix(_OURS) + _THEIRS
    return title


def class_of(program: str) -> str:
    """A window's class as Chrome would have it."""
    return _CLASS if program.lower() == _OURS.lower() else program


def renamed(tree: dict[str, Any]) -> dict[str, Any]:
    """An accessibility tree in which Chromium and its windows are called Google Chrome."""
    return {**tree, "nodes": [_node(node) for node in tree["nodes"]]}


def _node(node: dict[str, Any]) -> dict[str, Any]:
    name = node.get("name")
    if node.get("role") not in ("application", "frame") or not isinstance(name, str):
        return node
    return {**node, "name": title_of(name)}
