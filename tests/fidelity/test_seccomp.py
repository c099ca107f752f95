"""A seccomp filter under which a branch could not be finished is refused; the source goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.refusal import refusal

pytestmark = [pytest.mark.root]


def test_a_filter_that_kills_what_has_to_follow_it_is_refused(tmp_path: Path) -> None:
    message = refusal("seccomp_futex", "-", tmp_path / "harness")
    assert "(seccomp_futex) has a seccomp filter that kills it on futex, which a fork has to make in it" in message
