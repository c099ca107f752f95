"""Cgroups that a workspace made inside are refused, whether a process lives in one or a mount shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.refusal import refusal

pytestmark = [pytest.mark.root]


def test_a_process_in_a_group_made_inside_is_refused(tmp_path: Path) -> None:
    message = refusal("cgroup_inside", "member", tmp_path / "harness")
    assert "(cgroup_inside) is in the cgroup /inside, which was made inside; move it back" in message


def test_a_mount_that_shows_a_group_made_inside_is_refused(tmp_path: Path) -> None:
    message = refusal("cgroup_inside", "group", tmp_path / "harness")
    assert "/tmp/cgroups shows the cgroup inside, which was made inside; remove it" in message
