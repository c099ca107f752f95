"""docs/SECURITY-MODEL.md, the ASVS table and that of others' bug reports name tests: each of them is there, and each promise has one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from engine.config import REPO

_PAGES = [REPO / "docs" / "SECURITY-MODEL.md", REPO / "docs" / "reference" / "asvs.md", REPO / "docs" / "reference" / "reports.md"]
_NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def _tests(path: Path) -> set[str]:
    """Names of the test functions in a file, those in classes, too."""
    found = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_every_named_test_exists(page: Path) -> None:
    named = _NAME.findall(page.read_text())
    assert len(named) > 20
    for file, name in named:
        assert (REPO / file).exists(), file
        assert name in _tests(REPO / file), f"{file}::{name}"


def test_every_promise_names_a_test() -> None:
    text = _PAGES[0].read_text()
    promises = text[text.index("## Promises") : text.index("## Not promised")]
    rows = [row for row in promises.splitlines() if row.startswith("| ") and not row.startswith("| promise")]
    assert len(rows) > 40
    for row in rows:
        assert _NAME.search(row) or "`tests/security`" in row, row


def test_every_attempt_to_get_out_is_a_promise() -> None:
    text = _PAGES[0].read_text()
    for name in _tests(REPO / "tests" / "security" / "test_escape.py"):
        assert f"::{name}`" in text, name
