"""The fidelity suite with native programs built for the sanitizers: livefork with ASan and UBSan, restore and init with trapping UBSan checks.

A finding ends the program that has it: livefork with a report on stderr, restore with SIGILL; either way the fork fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fidelity import programs
from tests.nativebuild import BUILD_SECONDS, NATIVE, make

pytestmark = [pytest.mark.root, pytest.mark.slow]

REPO = Path(__file__).resolve().parents[2]
_BUILD = NATIVE / "build-san"
_RUN_SECONDS = 240


@pytest.fixture(scope="module")
def build() -> Path:
    make("SAN=1")
    return _BUILD


def _symbols(binary: Path) -> str:
    return subprocess.run(["nm", str(binary)], capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(BUILD_SECONDS + 30)
def test_build_is_sanitized(build: Path) -> None:
    livefork = _symbols(build / "tclone-livefork")
    assert "__asan_init" in livefork and "__ubsan_handle" in livefork
    code = subprocess.run(["objdump", "-d", str(build / "tclone-restore")], capture_output=True, text=True, check=True).stdout
    plain = subprocess.run(["objdump", "-d", str(REPO / "native/build/tclone-restore")], capture_output=True, text=True, check=True).stdout
    assert code.count("\tud2") > plain.count("\tud2")


@pytest.mark.timeout(BUILD_SECONDS + _RUN_SECONDS + 30)
def test_fidelity_suite_has_no_findings(build: Path) -> None:
    argv = [sys.executable, "-m", "tests.fidelity.harness", "run", "--json", "--copies", "2", *programs.names()]
    environment = {**os.environ, "TCLONE_LIBEXEC": str(build), "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for finding in ("AddressSanitizer", "runtime error:"):
        assert finding not in done.stderr, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["forks"][0]["errors"] == {}
    failures = {
        f"{side}: {name}": result for side, results in report["results"].items() for name, result in results.items() if result != "pass"
    }
    assert failures == {}
