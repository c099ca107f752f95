"""The program that reads a desktop inside a workspace, before programs that lie, loop and keep silent. The real thing: tests/agents/test_accessibility.py"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.desktop.guest import tree as reader
from engine.desktop.tree import parsed

SHOWN, HIDDEN = 1 << reader.SHOWING, 0
Answer = Callable[[tuple[str, str], str, tuple[Any, ...]], Any]


class Bus:
    """A bus whose programs answer by `said(target, question, arguments)`; `SILENT` is no answer at all."""

    SILENT = object()

    def __init__(self, said: Answer) -> None:
        self._said = said
        self.socket, self.other = socket.socketpair()
        self.received, self.sending = bytearray(), bytearray()
        self._serial = 0
        self._answers: list[tuple[int, Any]] = []
        self.asked: list[str] = []

    def call(self, target: tuple[str, str], interface: str, member: str, signature: str = "", *values: Any) -> int:
        self._serial += 1
        question = values[1] if member == "Get" else member
        self.asked.append(question)
        answer = self._said(target, question, values)
        if answer is not self.SILENT:
            self._answers.append((self._serial, None if answer is None else [answer]))
            self.other.send(b"!")
        return self._serial

    def messages(self) -> Iterator[tuple[int, Any]]:
        answers, self._answers = self._answers, []
        yield from answers


def read(said: Answer, showing: int = 0, most_nodes: int = 100, most_text: int = 50, seconds: float = 20.0) -> tuple[Any, Bus]:
    bus = Bus(said)
    tree = reader.Tree(bus, showing, most_nodes, most_text, seconds)
    with bus.socket, bus.other:
        tree.walk()
    return tree, bus


def program(**facts: Any) -> dict[str, Any]:
    return {"Name": "", "Description": "", "ChildCount": 0, "GetRoleName": "panel", "GetState": [SHOWN, 0], "GetInterfaces": [], "GetAttributes": {}, "GetChildren": [], **facts}


def world(nodes: dict[str, dict[str, Any]]) -> Answer:
    """Nodes by path; those below one are its `below`."""

    def said(target: tuple[str, str], question: str, _: tuple[Any, ...]) -> Any:
        node = nodes[target[1]]
        below = node.get("below", [])
        facts = {"ChildCount": len(below), "GetChildren": [("app", path) for path in below], **node}
        return program(**facts).get(question)

    return said


ROOT = reader.ROOT[1]


def test_nodes_are_in_order_with_what_they_say_and_fit_what_the_engine_takes() -> None:
    nodes = {
        ROOT: {"below": ["/a", "/b"], "GetRoleName": "desktop frame", "Name": "main"},
        "/a": {"below": ["/c"], "Name": "one"},
        "/b": {"Name": "two", "GetInterfaces": ["org.a11y.atspi.Value", "org.a11y.atspi.Image"], "CurrentValue": 0.5, "MaximumValue": float("inf")},
        "/c": {
            "GetInterfaces": ["org.a11y.atspi.Component", "org.a11y.atspi.Text", "org.a11y.atspi.Action"], "GetExtents": (1, 2, 3, 4), "GetText": "é￼" + "x" * 99,
            "GetActions": [("Click", "", ""), ("", "", "")], "GetAttributes": {"id": "c"},
        },
    }  # fmt: skip
    tree, _ = read(world(nodes))
    assert [(node["parent"], node["name"]) for node in tree.kept()] == [(None, "main"), (0, "one"), (0, "two"), (1, "")]
    assert tree.nodes[3]["box"] == [1, 2, 3, 4] and tree.nodes[3]["text"] == "é" + "x" * 49 and tree.nodes[3]["actions"] == [["Click", "", ""]]
    assert tree.nodes[2]["value"] == {"CurrentValue": 0.5} and not tree.truncated
    assert len(parsed(json.dumps({"nodes": tree.kept(), "truncated": False, "silent": 0}).encode()).nodes) == 4


def test_circles_end() -> None:
    tree, _ = read(world({ROOT: {"below": ["/a", ROOT]}, "/a": {"below": ["/a", "/b", ROOT]}, "/b": {"below": ["/a"]}}))
    # The program's own node of that path is another one than the registry's.
    assert len(tree.nodes) == 4 and not tree.truncated


def test_what_has_no_end_has_one_here() -> None:
    def endless(target: tuple[str, str], question: str, _: tuple[Any, ...]) -> Any:
        return program(ChildCount=3, GetChildren=[("app", f"{target[1]}/{number}") for number in range(3)]).get(question)

    tree, _ = read(endless, most_nodes=50)
    assert len(tree.nodes) == 50 and tree.truncated

    def deep(target: tuple[str, str], question: str, _: tuple[Any, ...]) -> Any:
        return program(ChildCount=1, GetChildren=[("app", target[1] + "/x")]).get(question)

    tree, _ = read(deep, most_nodes=500)
    assert len(tree.nodes) == reader.MOST_DEPTH + 1 and tree.truncated and tree.nodes[-1]["children"] == 1


def test_a_million_cells_are_told_and_not_asked_for() -> None:
    tree, bus = read(_table)
    assert tree.nodes[1]["children"] == 1_000_000 and tree.truncated and bus.asked.count("GetChildren") == 1


def _table(target: tuple[str, str], question: str, _: tuple[Any, ...]) -> Any:
    if target == reader.ROOT:
        return program(ChildCount=1, GetChildren=[("app", "/table")]).get(question)
    return program(ChildCount=1_000_000).get(question)


def test_what_is_hidden_is_left_out_with_all_that_is_in_it() -> None:
    nodes = {ROOT: {"below": ["/app"]}, "/app": {"GetState": [HIDDEN, 0], "below": ["/shut", "/open"]}, "/shut": {"GetState": [HIDDEN, 0], "below": ["/item"]}, "/item": {}, "/open": {"Name": "here"}}
    tree, bus = read(world(nodes), showing=1)
    # Programs themselves have no states.
    assert [(node["parent"], node["name"]) for node in tree.kept()] == [(None, ""), (0, ""), (1, "here")]
    assert len(read(world(nodes))[0].kept()) == 5


def test_a_program_that_keeps_silent_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SILENCE", 0.2)

    def said(target: tuple[str, str], question: str, _: tuple[Any, ...]) -> Any:
        if target[0] == "mute":
            return Bus.SILENT
        if target == reader.ROOT:
            return program(ChildCount=2, GetChildren=[("mute", "/m"), ("app", "/a")]).get(question)
        return program(Name="speaks").get(question)

    tree, _ = read(said)
    assert tree.silent == {"mute"} and tree.truncated and tree.nodes[2]["name"] == "speaks"


def test_it_ends_in_time() -> None:
    began = time.monotonic()

    def slow(target: tuple[str, str], question: str, _: tuple[Any, ...]) -> Any:
        time.sleep(0.01)
        return program(ChildCount=3, GetChildren=[("app", f"{target[1]}/{number}") for number in range(3)]).get(question)

    tree, _ = read(slow, most_nodes=5000, seconds=0.5)
    assert tree.truncated and time.monotonic() - began < 20


def test_answers_that_make_no_sense_are_none() -> None:
    wrong = {"Name": 7, "Description": [], "ChildCount": "many", "GetRoleName": None, "GetState": None, "GetInterfaces": None, "GetAttributes": None}
    tree, _ = read(world({ROOT: wrong}))
    assert tree.kept() == [{"parent": None, "role": "", "name": "", "states": []}]
    for wrong in ({"GetState": "ab"}, {"GetInterfaces": 7}, {"ChildCount": 1, "GetChildren": [7]}, {"GetInterfaces": ["org.a11y.atspi.Action"], "GetActions": [7]}):
        tree, _ = read(world({ROOT: {"below": ["/a", "/b"]}, "/a": wrong, "/b": {"Name": "sound"}}))
        assert tree.truncated and tree.nodes[2]["name"] == "sound", wrong


def test_values_of_the_wire() -> None:
    for signature, message, value in (
        ("u", struct.pack("<I", 7), 7), ("s", struct.pack("<I", 2) + "é".encode() + b"\0", "é"), ("(iiii)", struct.pack("<iiii", 1, -2, 3, 4), (1, -2, 3, 4)),
        ("as", struct.pack("<I", 6) + struct.pack("<I", 1) + b"a\0", ["a"]), ("v", b"\1d\0" + bytes(5) + struct.pack("<d", 0.5), 0.5),
        ("a{ss}", struct.pack("<I", 14) + bytes(4) + struct.pack("<I", 1) + b"k\0\0\0" + struct.pack("<I", 1) + b"v\0", {"k": "v"}),
    ):  # fmt: skip
        assert reader.read(message, 0, signature, "<")[0] == value, signature
    assert list(reader.split("a(so)ua{sv}(i(ss))")) == ["a(so)", "u", "a{sv}", "(i(ss))"]
