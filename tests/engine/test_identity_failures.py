"""A fork's own files: where nobody can tell what a workspace has, for want of descriptors, that is told and nothing is overwritten."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import identity
from engine.errors import Internal

pytestmark = pytest.mark.root


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    for path, content in (("etc/hosts", "127.0.0.1\tlocalhost\n"), ("etc/machine-id", "0" * 32), ("var/lib/dbus/machine-id", "0" * 32)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    hooks = tmp_path / identity.HOOKS.lstrip("/")
    hooks.mkdir(parents=True)
    (hooks / "hook").write_text("#!/bin/sh\n")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def no_descriptor_left(root: int) -> Iterator[None]:
    """From now on every open fails with EMFILE."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_PATH)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("no_descriptor_left")
def test_hooks_that_cannot_be_looked_for_fail_the_branch(root: int) -> None:
    with pytest.raises(Internal, match="which programs want to hear of the fork.*Too many open files"):
        identity.wants_to_hear(root)


@pytest.mark.usefixtures("no_descriptor_left")
def test_a_hosts_file_that_cannot_be_read_is_not_taken_for_an_empty_one(root: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        identity._add_host(root, "branch")
    with pytest.raises(OSError, match="Too many open files"):
        identity._opened(root, "/etc/machine-id")


def test_what_is_not_there_is_no_error(root: int, tmp_path: Path) -> None:
    (tmp_path / "etc/hosts").unlink()
    (tmp_path / "etc/hosts").mkdir()
    (tmp_path / "var/lib/dbus/machine-id").unlink()
    assert identity._read(root, "/etc/hosts", 100) == b""
    assert identity._opened(root, "/var/lib/dbus/machine-id") is None
    assert identity.wants_to_hear(root)
    identity._write_machine_id(root)
    assert not (tmp_path / "var/lib/dbus/machine-id").exists()


def test_the_bus_hears_of_a_new_machine_id(root: int, tmp_path: Path) -> None:
    identity._write_machine_id(root)
    written = (tmp_path / "etc/machine-id").read_text()
    assert written != "0" * 32
    assert (tmp_path / "var/lib/dbus/machine-id").read_text() == written
