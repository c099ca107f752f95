"""What the fork program finds out about the kernel once: where there is nothing to know, or nobody who tells, each fork does without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine import learnt
from engine.config import Config
from engine.learnt import Learnt

_SAYS_NOTHING = "#!/bin/sh\nexit 0\n"
_FAILS = "#!/bin/sh\nexit 2\n"
_HANGS = "#!/bin/sh\nexec sleep 60\n"
_TALKS_NONSENSE = """#!/usr/bin/env python3
import socket, sys
socket.socket(fileno=int(sys.argv[3])).send(b'["learnt"]')
"""
_HAS_NO_DESCRIPTOR = """#!/usr/bin/env python3
import socket, sys
socket.socket(fileno=int(sys.argv[3])).send(b'{"event":"learnt","facts":""}')
"""


@pytest.mark.root
def test_the_fork_program_tells_what_it_has_found_out() -> None:
    known = Learnt()
    known.learn(Config.from_environment().libexec / "tclone-livefork")
    option, value = known.arguments
    number, _, facts = value.partition(":")
    assert option == "--learnt" and [int(number)] == known.fds and facts
    assert os.readlink(f"/proc/self/fd/{number}") == "anon_inode:bpf-prog"
    assert not os.get_inheritable(known.fds[0])
    known.close()
    assert known.arguments == [] and known.fds == [] and not Path(f"/proc/self/fd/{number}").exists()


@pytest.mark.parametrize("script", [_SAYS_NOTHING, _FAILS, _HANGS, _TALKS_NONSENSE, _HAS_NO_DESCRIPTOR])
def test_a_program_that_tells_nothing_is_no_error(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt, "_SECONDS", 2.0)
    program = tmp_path / "tclone-livefork"
    program.write_text(script)
    program.chmod(0o755)
    before = len(os.listdir("/proc/self/fd"))
    known = Learnt()
    known.learn(program)
    assert known.arguments == [] and known.fds == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_program_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    known = Learnt()
    known.learn(tmp_path / "tclone-livefork")
    assert known.arguments == []
