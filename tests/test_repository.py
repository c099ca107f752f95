"""What holds for the repository as a whole: files stay short enough to be read, the parts depend on each other one way, documentation names what there is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import REPO

_LONGEST = 500
_SOURCE = {".py", ".c", ".h", ".js", ".css", ".html", ".sh"}
_PAGES = [REPO / "README.md", REPO / "CHANGELOG.md", *sorted((REPO / "docs").rglob("*.md"))]
# In backquotes: a path from one of the directories at the top, or the bare name of a source file. NAME is for the reader to put in; what is built is not kept.
_PATH = re.compile(r"`((?:portal|engine|native|tclone|tests|bench|images|scripts|static|templates|examples|docs)/[\w./*-]*|[\w-]+\.(?:py|c|h|js|css))`")
_NOT_KEPT = re.compile(r"NAME|native/build")
_DIRECTORIES = ("bench", "engine", "examples", "images", "native", "portal", "scripts", "static", "tclone", "templates", "tests")
# What others wrote, and what is built.
_OTHERS = re.compile(r"/(?:vendor|node_modules|build[\w-]*|__pycache__)/")


def _sources() -> list[Path]:
    found = (path for top in _DIRECTORIES for path in (REPO / top).rglob("*") if path.suffix in _SOURCE)
    return [path for path in found if not _OTHERS.search(str(path))]


def test_no_file_is_too_long_to_be_read() -> None:
    lengths = {str(path.relative_to(REPO)): len(path.read_text().splitlines()) for path in _sources()}
    assert len(lengths) > 900
    assert {name: length for name, length in lengths.items() if length >= _LONGEST} == {}


def _imports(package: str) -> Iterator[tuple[str, str]]:
    """Each module of a package that is imported anywhere in it: (file, module)."""
    for path in sorted((REPO / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((str(path.relative_to(REPO)), name.name) for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield str(path.relative_to(REPO)), node.module


@pytest.mark.parametrize(("package", "forbidden"), [("engine", {"portal", "tclone"}), ("tclone", {"portal", "engine"})])
def test_dependencies_point_one_way(package: str, forbidden: set[str]) -> None:
    """`engine/cli` starts the portal's programs (docs/explanation/architecture.md)."""
    found = [(path, module) for path, module in _imports(package) if module.split(".")[0] in forbidden]
    assert [item for item in found if not item[0].startswith("engine/cli/")] == []


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_documentation_names_files_that_there_are(page: Path) -> None:
    names = {path.name for path in _sources()}
    for named in _PATH.findall(page.read_text()):
        if _NOT_KEPT.search(named):
            continue
        assert named in names if "/" not in named else list(REPO.glob(named.rstrip("/"))), f"{named} in {page}"


def test_the_table_of_states_names_tests_that_there_are() -> None:
    """Each program of tests/fidelity stands in the table of what a fork keeps, each test named there is one, no state stands there twice."""
    programs = {path.stem for path in (REPO / "tests/fidelity/programs").glob("*.c")}
    states: list[str] = []
    named: set[str] = set()
    for line in (REPO / "docs/reference/state.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or cells[0] == "state":
            continue
        assert len(cells) == 3, f"not three columns: {line}"
        states.append(cells[0])
        named |= set(re.findall(r"`([\w./]+)`", cells[2]))
    assert len(states) > 200
    assert {state for state in states if states.count(state) > 1} == set()
    # What they hold is no kernel's state but a means: a value that all can see, and the start of the others.
    unnamed = programs - named - {"counter", "launch"}
    assert unnamed == set()
    missing = {name for name in named - programs if "_" in name or "/" in name if not (REPO / name).exists()}
    assert missing == set()
