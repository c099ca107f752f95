"""git in the middle of a rebase that stopped at a conflict."""

from __future__ import annotations

import subprocess

from application import HOME, expect, main, output

_TREE = HOME / "tree"
_IDENTITY = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "core.editor=true")


def _git(*words: str) -> str:
    return output("git", "-C", str(_TREE), *_IDENTITY, *words)


def _commit(text: str, message: str) -> None:
    (_TREE / "file").write_text(text)
    _git("add", "file")
    _git("commit", "-q", "-m", message)


def start() -> None:
    _TREE.mkdir(parents=True)
    _git("init", "-q", "-b", "main")
    _commit("base\n", "base")
    _git("checkout", "-q", "-b", "topic")
    _commit("topic one\n", "topic one")
    for number in range(3):
        (_TREE / f"extra{number}").write_text("x")
        _git("add", ".")
        _git("commit", "-q", "-m", f"extra {number}")
    _git("checkout", "-q", "main")
    _commit("main one\n", "main one")
    _git("checkout", "-q", "topic")
    stopped = subprocess.run(["git", "-C", str(_TREE), *_IDENTITY, "rebase", "-q", "main"], capture_output=True, check=False)
    expect(stopped.returncode != 0, "the rebase met no conflict")


def check(side: str) -> None:
    status = _git("status")
    expect("rebase in progress" in status and "both modified:   file" in status, status)
    (_TREE / "file").write_text(f"resolved by {side}\n")
    _git("add", "file")
    _git("rebase", "--continue")
    expect("nothing to commit" in _git("status"), _git("status"))


def verify(side: str) -> None:
    expect((_TREE / "file").read_text() == f"resolved by {side}\n", (_TREE / "file").read_text())
    expect(_git("log", "--format=%s").split("\n")[:-1] == ["extra 2", "extra 1", "extra 0", "topic one", "main one", "base"], _git("log"))
    _git("fsck", "--strict")


if __name__ == "__main__":
    main(start, check, verify)
