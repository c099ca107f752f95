"""`tclone cp`: whole files, both ways, and nothing replaced that nobody said may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine

_BYTES = bytes(range(256)) * 4096


@pytest.fixture
def desk(engine: FakeEngine) -> FakeEngine:
    engine.add("desk")
    return engine


async def test_there_and_back(desk: FakeEngine, tclone: Tclone, tmp_path: Path) -> None:
    (tmp_path / "report").write_bytes(_BYTES)
    done = await tclone("cp", str(tmp_path / "report"), "desk:/home/user/")
    assert (done.status, done.out) == (0, ""), done.err
    assert desk.files == {"/home/user/report": _BYTES}
    (tmp_path / "here").mkdir()
    assert (await tclone("cp", "desk:/home/user/report", str(tmp_path / "here"))).status == 0
    assert (tmp_path / "here" / "report").read_bytes() == _BYTES
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["report"], "nothing of the way it came is left"


async def test_through_the_standard_streams(desk: FakeEngine, tclone: Tclone) -> None:
    assert (await tclone("cp", "-", "desk:/notes", stdin=b"two\nlines\n")).status == 0
    assert desk.files["/notes"] == b"two\nlines\n"
    assert (await tclone("cp", "desk:/notes", "-")).out == "two\nlines\n"


async def test_what_is_there_is_replaced_only_by_force(desk: FakeEngine, tclone: Tclone, tmp_path: Path) -> None:
    mine = tmp_path / "notes"
    mine.write_text("mine")
    desk.files["/notes"] = b"theirs"
    there = await tclone("cp", str(mine), "desk:/notes")
    assert there.status == 5 and "give --force" in there.err and desk.files["/notes"] == b"theirs"
    here = await tclone("cp", "desk:/notes", str(mine))
    assert here.status == 5 and "give --force" in here.err and mine.read_text() == "mine"
    assert (await tclone("cp", "-f", "desk:/notes", str(mine))).status == 0
    assert mine.read_text() == "theirs" and list(tmp_path.iterdir()) == [mine]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["here", "there"], 2, "as desk:/home/user/notes.txt"),
        (["desk:/a", "desk:/b"], 2, "as desk:/home/user/notes.txt"),
        (["/nowhere/at/all", "desk:/a"], 4, "/nowhere/at/all: no such file"),
        (["desk:/nothing", "-"], 4, "there is no /nothing"),
        (["desk:/home/", "-"], 5, "tclone exec desk -- tar"),
        (["dekc:/a", "-"], 4, "did you mean desk?"),
        (["-", "desk:/home/"], 2, "name the file"),
    ],
)
async def test_what_cannot_be_copied(desk: FakeEngine, tclone: Tclone, words: list[str], status: int, told: str) -> None:
    done = await tclone("cp", *words)
    assert done.status == status and told in done.err, done.err
