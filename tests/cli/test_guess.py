"""A slip of the fingers: the command line says what may have been meant, and does nothing."""

from __future__ import annotations

import pytest

from engine.cli import main
from engine.cli.guess import nearest
from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["fokr", "desk"], "there is no command 'fokr'; did you mean `fork`?"),
        (["image", "biuld", "x"], "there is no action 'biuld'; did you mean `build`?"),
        (["token", "creat"], "there is no action 'creat'; did you mean `create`?"),
        (["run", "workspace", "--network", "nine"], "did you mean `none`?"),
    ],
)
def test_a_word_that_is_none_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str], words: list[str], meant: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert ended.value.code == 2
    assert meant in capsys.readouterr().err


def test_a_word_like_none_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["xyzzy"])
    told = capsys.readouterr().err
    assert "did you mean" not in told and "fork, ls, inspect" in told


async def test_a_workspace_or_image_that_is_not_there(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    engine.add("lab")
    for words in (["inspect", "dekc"], ["fork", "dekc"], ["logs", "dekc"], ["port", "dekc"], ["rm", "dekc"], ["stats", "dekc"]):
        done = await tclone(*words)
        assert done.status == 4 and "no workspace dekc; did you mean desk?" in done.err, words
    assert len(engine.workspaces) == 2
    done = await tclone("inspect", "nothing-like-it")
    assert done.status == 4 and "did you mean" not in done.err and "`tclone ls` lists them" in done.err


def test_what_is_near() -> None:
    assert nearest("WS-2", ["ws-1", "ws-2"]) == "ws-2"
    assert nearest("desk2", ["desk", "lab"]) == "desk"
    assert nearest("lab", ["stranger", "another"]) is None
