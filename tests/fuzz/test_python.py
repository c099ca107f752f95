"""Parsers of the engine and the portal that read what a workspace or a client wrote, over mutated inputs: only the errors they promise may come.

`TCLONE_FUZZ_SECONDS` (default 1) each, `TCLONE_FUZZ_SEED` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from engine import account, api, syscalls
from engine.desktop import tree
from engine.errors import EngineError
from engine.network import dns, fdserver
from portal.accessibility import as_text, as_xml
from portal.stream.frames import FrameTracker

_SECONDS = float(os.environ.get("TCLONE_FUZZ_SECONDS", "1"))
_SEED = int(os.environ.get("TCLONE_FUZZ_SEED", str(random.SystemRandom().randrange(1 << 32))))
_MOST_BYTES = 8192
_SLOWEST = 2.0
_WORDS = (
    b"0", b"-1", b"4294967296", b"99999999999999999999999999", b"9" * 5000, b"1e999", b"NaN", b"null", b"true", b'"', b"{}", b"[]", b"[" * 3000,
    b":", b"::", b"\n", b"\0", b"\xff", b"\xc3\x28", "٣".encode(), "²".encode(), b"\\ud800", b"\xc0\x0c", b"root", b"\x7f", b"\x7e",
)  # fmt: skip


def _mutated(generator: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(generator.choice(seeds))
    for _ in range(generator.randint(1, 5)):
        at = generator.randint(0, len(data))
        match generator.randrange(5):
            case 0 if data:
                data[min(at, len(data) - 1)] = generator.randrange(256)
            case 1:
                del data[at : at + generator.randint(1, 8)]
            case 2:
                data[at:at] = generator.choice(_WORDS)
            case 3:
                data[at : at + generator.randint(0, 8)] = generator.choice(_WORDS)
            case _:
                other = generator.choice(seeds)
                data[at:] = other[generator.randint(0, len(other)) :]
    return bytes(data[:_MOST_BYTES])


def _json_object(data: bytes) -> dict | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _dns(data: bytes) -> None:
    name, end = dns.parse_question(data)
    assert end <= len(data) and len(name) <= 4 * 255
    dns.error_answer(data, dns.SERVFAIL)


def _fd_request(data: bytes) -> None:
    request = fdserver._parse(data)
    fdserver._request_id(request)
    _, port = fdserver._fields(request)
    assert 1 <= port <= 65535


def _launch(data: bytes) -> None:
    body = _json_object(data)
    if body is not None:
        launch = api._launch_of(body)
        for text in [*launch.env.values(), *(launch.command or [])]:
            assert b"\0" not in os.fsencode(text)


def _fork(data: bytes) -> None:
    body = _json_object(data)
    if body is not None:
        assert api._fork_options(body).copies >= 1


def _frames(data: bytes) -> None:
    whole, parts = FrameTracker(), FrameTracker()
    assert whole.feed(data) == len(data)
    for at in range(0, len(data), 3):
        parts.feed(data[at : at + 3])
    assert whole.at_boundary == parts.at_boundary and whole.saw_close == parts.saw_close


def _desktop(data: bytes) -> None:
    told = tree.parsed(data).public()
    assert ElementTree.fromstring(as_xml(told)).tag == "desktop-frame"
    assert as_text(told).endswith("\n")


_QUESTION = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01"
_LAUNCH = {"image": "webtop", "name": "a-name", "ports": [{"container": 80, "host": 8080}], "env": {"A": "b"}, "memory": 1 << 30, "pids": 100, "command": ["sleep", "1"]}
_FORK = {"copies": 2, "name": "b", "tcp_close": True, "ghost_limit": 100, "hostname": "h", "new_machine_id": False}
_NODE = {"role": "push button", "name": "OK", "text": "t", "states": ["showing"], "box": [1, 2, 3, 4], "attributes": {"id": "x"}, "value": {"CurrentValue": 1.5}, "actions": [["Click", "d", "k"]]}
_DESKTOP = {"nodes": [{"parent": None, "role": "desktop frame", "name": "", "states": []}, _NODE | {"parent": 0}, _NODE | {"parent": 1}], "truncated": False, "silent": 0}

_TARGETS: dict[str, tuple[Callable[[bytes], None], list[bytes], tuple[type[Exception], ...]]] = {
    "dns": (_dns, [_QUESTION], (dns.Malformed,)),
    "fd request": (_fd_request, [b'{"op":"connect","workspace":"ws-3","port":8080,"id":7}'], (EngineError,)),
    "launch": (_launch, [json.dumps(_LAUNCH).encode()], (EngineError,)),
    "fork": (_fork, [json.dumps(_FORK).encode()], (EngineError,)),
    "desktop": (_desktop, [json.dumps(_DESKTOP).encode()], (ValueError,)),
    "frames": (_frames, [b"\x81\x05hello\x88\x02\x03\xe8", b"\x82\xfe\x01\x00" + bytes(300), b"\x82\x7f" + bytes(7) + b"\x09123456789"], ()),
}  # fmt: skip


def _fuzz(run: Callable[[bytes], None], seeds: list[bytes], promised: tuple[type[Exception], ...]) -> int:
    generator = random.Random(_SEED)
    deadline = time.monotonic() + _SECONDS
    runs = 0
    while time.monotonic() < deadline:
        data = seeds[runs] if runs < len(seeds) else _mutated(generator, seeds)
        began = time.monotonic()
        try:
            run(data)
        except promised:
            pass
        except Exception as error:
            pytest.fail(f"seed {_SEED}: {error!r} for {data!r}")
        assert time.monotonic() - began < _SLOWEST, f"too slow for {data!r}"
        runs += 1
    return runs


@pytest.mark.parametrize("target", _TARGETS)
def test_only_promised_errors(target: str) -> None:
    run, seeds, promised = _TARGETS[target]
    for seed in seeds:
        run(seed)       # the seeds themselves are in order
    assert _fuzz(run, seeds, promised) > 50


def test_accounts_of_a_hostile_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"/etc/passwd": b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", "/etc/group": b"root:x:0:\naudio:x:29:user\n"}
    given: dict[str, bytes] = dict(tables)

    def table(_: int, path: str) -> list[list[str]]:
        return [line.split(":") for line in given[path].decode(errors="replace").splitlines()]

    monkeypatch.setattr(account, "_table", table)

    workspace = SimpleNamespace(id="ws-1", pid=os.getpid(), pid_start=syscalls.start_time(os.getpid()))

    def run(data: bytes) -> None:
        given["/etc/passwd"], _, given["/etc/group"] = data.partition(b"\n\n")
        for user in ("root", "user", "1000", "user:7", "9" * 5000, "user:" + "9" * 5000):
            try:
                found = account.find_account(workspace, user)
            except EngineError:
                continue
            assert 0 <= found.uid < 1 << 32 and 0 <= found.gid < 1 << 32 and all(0 <= group < 1 << 32 for group in found.groups)

    assert _fuzz(run, [tables["/etc/passwd"] + b"\n" + tables["/etc/group"]], (EngineError,)) > 50
