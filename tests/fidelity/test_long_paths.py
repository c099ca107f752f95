"""A path that the kernel cannot tell (more than 4096 bytes) is refused before anything stops, with its holder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.refusal import refusal

pytestmark = [pytest.mark.root]


@pytest.mark.parametrize(("mode", "place"), [("stand", "cwd"), ("open", "fd/3")])
def test_a_directory_too_deep_to_be_named_is_refused(mode: str, place: str, tmp_path: Path) -> None:
    message = refusal("long_path", mode, tmp_path / "harness")
    assert f"(long_path) uses a file whose path has more than 4096 bytes (its {place})" in message
