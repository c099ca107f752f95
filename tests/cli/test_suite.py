"""The two runs of `make test`: which tests each has, that a failure of either is one of both, and that nothing left on the host goes unseen."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.sharing import rank, unit

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "scripts" / "suite.py"
_ALONE = "import pytest, os\n@pytest.mark.alone\ndef test_alone():\n    assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
_BESIDE = "import os\ndef test_beside():\n    assert 'PYTEST_XDIST_WORKER' in os.environ\n"
_LEAVES = "import subprocess\ndef test_leaves():\n    subprocess.run(['sh', '-c', 'sleep 300 &'], check=True, stdout=-3, stderr=-3)\n"
_SKIPS = "import pytest\ndef test_skips():\n    pytest.skip('no reason')\n"
_FAILS = "import pytest\n{}def test_fails():\n    assert False\n"
# Two processes' start and end, on a busy machine.
_SECONDS = 200


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    specification = importlib.util.spec_from_file_location("tclone_suite", SCRIPT)
    assert specification and specification.loader
    made = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = made
    specification.loader.exec_module(made)
    return made


def _run(place: Path, files: dict[str, str], *options: str, **environment: str) -> tuple[int, str]:
    """Status and output of the suite over test files of its own, under the rules of tests/conftest.py. `options` are pytest's."""
    for name, text in files.items():
        (place / f"test_{name}.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    argv = [sys.executable, str(SCRIPT), str(place), "--", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "2", *options]
    variables = {**kept, "PYTHONPATH": str(REPO), "TMPDIR": str(place), **environment}
    done = subprocess.run(argv, cwd=REPO, env=variables, capture_output=True, text=True, timeout=_SECONDS, check=False)
    return done.returncode, done.stdout + done.stderr


def test_both_runs_pass_and_each_has_its_own_tests(tmp_path: Path) -> None:
    status, text = _run(tmp_path, {"alone": _ALONE, "beside": _BESIDE})
    assert status == 0, text
    assert text.count("1 passed") == 2 and "side by side: passed after" in text and "alone: passed after" in text
    # Each says where its time went.
    assert len(re.findall(r"\d s +1 tests  \S*test_(?:alone|beside)\.py$", text, re.M)) == 2 and len(re.findall("processors busy [0-9]+ %", text)) == 2


@pytest.mark.parametrize(("mark", "told"), [("", "side by side: FAILED after"), ("@pytest.mark.alone\n", "alone: FAILED after")])
def test_a_failure_of_either_is_one_of_both_and_the_other_runs_all_the_same(tmp_path: Path, mark: str, told: str) -> None:
    status, text = _run(tmp_path, {"alone": _ALONE, "beside": _BESIDE, "fails": _FAILS.format(mark)})
    assert status == 1, text
    assert told in text and text.count("1 passed") == 2 and f"its files are in {tmp_path}/tclone-t-" in text


def test_a_skip_in_another_process_fails_the_run(tmp_path: Path) -> None:
    status, text = _run(tmp_path, {"beside": _BESIDE, "skips": _SKIPS})
    assert status == 1 and "unexpected skips (each fails the run)" in text and "test_skips.py::test_skips" in text


def test_what_a_test_beside_others_left_on_the_host_fails_the_run_where_the_host_is_its_own(tmp_path: Path) -> None:
    files = {"beside": _BESIDE, "leaves": _LEAVES}
    # A process that is left descends from the run, so that this holds on a machine that others use, too.
    status, text = _run(tmp_path, files, "--settle=1", CI="true")
    found = re.search(r"left on the host by some test.*process (\d+) sleep ", text, re.S)
    assert status == 1 and found, text
    os.kill(int(found[1]), signal.SIGKILL)


def test_the_status_of_both(suite: ModuleType) -> None:
    assert [suite.total(statuses) for statuses in ([0, 0], [0, 5], [5, 0], [5, 5], [1, 0], [0, 1], [5, 1], [2])] == [0, 0, 0, 5, 1, 1, 1, 2]


def test_tests_and_arguments_are_told_apart(suite: ModuleType) -> None:
    assert suite.split(["tests", "--", "-k", "a or b", "--", "x"]) == (["tests"], ["-k", "a or b", "--", "x"])
    assert suite.split(["tests/e2e"]) == (["tests/e2e"], [])


def test_what_stays_together_and_what_comes_first() -> None:
    assert unit("tests/e2e/test_story.py::test_a[x/y]") == unit("tests/e2e/test_share.py::test_b") == "tests/e2e"
    assert unit("tests/portal/test_login.py::test_a[x::y]") == "tests/portal/test_login.py"
    names = ["tests/portal/test_login.py::a", "tests/e2e/test_story.py::b", "tests/engine/test_fork.py::c"]
    assert sorted(names, key=rank) == [names[1], names[2], names[0]]
    # A fifth of all time in one piece: nothing that can begin later comes before it, and the third stack with desktops does not begin beside both others.
    stacks = [f"tests/{name}/test_a.py::a" for name in ("e2e", "agents", "sanitize", "applications")]
    assert sorted(reversed(stacks), key=rank) == stacks


def test_python_keeps_what_it_compiles_whatever_is_set(suite: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert suite._environment() == {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
