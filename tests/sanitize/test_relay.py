"""The native relay under sanitizers: the stream server's tests with ASan and UBSan, and calls from beside its thread with TSan, too. A finding ends the program."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import REPO
from tests.nativebuild import BUILD_SECONDS, NATIVE, make

pytestmark = [pytest.mark.slow]

_RUN_SECONDS = 400
_ROUNDS = 10_000
_FILES = ("test_native.py", "test_upgrade.py", "test_equivalence.py", "test_hostile.py", "test_lifecycle.py", "test_proxy_http.py")


def _runtime(name: str) -> str:
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.timeout(BUILD_SECONDS + _RUN_SECONDS + 30)
def test_the_relay_has_no_findings(short_path: Path) -> None:
    make("SAN=1", "build-san/libtclone-relay.so")
    environment = {
        **os.environ,
        "TCLONE_LIBEXEC": str(NATIVE / "build-san"),
        # Python's own memory is not all given back; what a link has, its own tests count.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LD_PRELOAD": f"{_runtime('libasan.so')} {_runtime('libubsan.so')}",
    }
    # Not the two thousand viewers: memory that a sanitizer keeps for a while after it was freed would count as lost.
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={short_path}/t", "-k", "native and not thousand"]
    done = subprocess.run(
        [*argv, *(f"tests/stream/{name}" for name in _FILES)], cwd=REPO, env=environment, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    for finding in ("AddressSanitizer", "runtime error:"):
        assert finding not in done.stdout + done.stderr


@pytest.mark.timeout(BUILD_SECONDS)
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_calls_beside_the_relays_thread_have_no_findings(tmp_path: Path, sanitizers: str) -> None:
    program = tmp_path / "relay_calls"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", f"-I{NATIVE / 'relay'}"]
    sources = [Path(__file__).with_name("relay_calls.c"), *sorted((NATIVE / "relay").glob("*.c"))]
    subprocess.run(["gcc", *flags, "-o", str(program), *map(str, sources), "-lssl", "-lcrypto", "-lpthread"], check=True)
    seed = random.SystemRandom().randrange(1 << 31)
    done = subprocess.run([str(program), str(_ROUNDS), str(seed)], capture_output=True, text=True, timeout=_RUN_SECONDS, check=False)
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr[-6000:]}"
    # So many ends that all kinds of them were among them.
    assert int(done.stdout.split()[0]) > 20
