"""A FUSE server inside that never answers: the fork is refused by name and in time, and nothing waits for the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.refusal import refusal

pytestmark = [pytest.mark.root]


def test_a_mounted_server_is_refused_with_place_and_remedy(tmp_path: Path) -> None:
    message = refusal("fuse_silent", "mounted", tmp_path / "harness")
    assert "(fuse_silent) sees the FUSE file system silent at /tmp/fuse-mount; unmount it" in message
    assert "(fuse_silent) serves a FUSE file system (fd 3)" in message


def test_a_detached_mount_is_found_by_the_open_file(tmp_path: Path) -> None:
    message = refusal("fuse_silent", "detached", tmp_path / "harness")
    assert "which a FUSE server serves; close it" in message


def test_a_mount_point_with_a_newline_is_told_in_one_line(tmp_path: Path) -> None:
    message = refusal("fuse_silent", "newline", tmp_path / "harness")
    assert "sees the FUSE file system silent at /tmp/fuse?mount; unmount it" in message
    assert message.rstrip("\n").isprintable()


@pytest.mark.parametrize("mode", ["mounted", "detached"])
def test_what_comes_about_between_the_look_and_the_freeze_is_refused_in_time(mode: str, tmp_path: Path) -> None:
    message = refusal("fuse_silent", mode, tmp_path / "harness", late=True)
    assert "FUSE" in message
