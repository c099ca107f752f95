"""Cgroups that a workspace made inside and that cannot be made again are refused by name; the others: programs/cgroups.c."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.refusal import refusal

pytestmark = [pytest.mark.root]


def test_a_threaded_group_is_refused(tmp_path: Path) -> None:
    message = refusal("cgroup_inside", "threaded", tmp_path / "harness")
    assert 'the cgroup /inside is of the type "threaded", which cannot be forked; remove it' in message


def test_a_group_too_deep_to_be_named_is_refused(tmp_path: Path) -> None:
    message = refusal("cgroup_inside", "deep", tmp_path / "harness")
    assert "has a path of more than 999 bytes; remove it" in message
