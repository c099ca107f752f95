"""Kernel objects that no branch can have are refused by name: the process, what it holds, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.refusal import NotRefusedError, refusal

pytestmark = [pytest.mark.root, pytest.mark.slow]

_NEVER_MADE = "it was forked"

_OBJECTS = {
    "secret memory": ("secret memory", "end the program"),
    "mapped secret memory": ("maps secret memory", "end the program"),
    "aio poll": ("IOCB_CMD_POLL", "let it use epoll"),
    "io_uring": ("io_uring", "switched off"),
    "userfaultfd": ("userfaultfd", "end the program"),
    "perf event": ("perf event", "stop the profiler"),
    "BPF object": ("BPF object", "end the program"),
    "landlock ruleset": ("landlock ruleset", "once the program has closed it"),
    "landlock domain": ("has confined itself (Landlock)", "end it"),
    "mount under construction": ("mount under construction", "once the mount is done"),
    "mq_notify": ("mq_notify", "end it"),
    "kernel log": ("the kernel's log", "end the program"),
    "tunnel device": ("a tunnel device", "VPN"),
}


# What a workspace's rights or its system call filter do not let it make on most hosts; then there is nothing to refuse.
_OUT_OF_REACH = {"io_uring", "BPF object", "mount under construction", "kernel log"}


@pytest.mark.parametrize("name", _OBJECTS)
def test_object_is_refused_by_name(name: str, tmp_path: Path) -> None:
    what, remedy = _OBJECTS[name]
    try:
        message = refusal("kernel_object", name, tmp_path / "harness")
    except NotRefusedError as error:
        assert name in _OUT_OF_REACH, error
        assert _NEVER_MADE in str(error) and "(made)" not in str(error), error
        return
    assert "(kernel_object)" in message
    assert what in message
    assert remedy in message.split(what, 1)[1]
