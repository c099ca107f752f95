"""The fuzz targets of native/fuzz over their kept corpus, then with mutations for `TCLONE_FUZZ_SECONDS` each (default 1).

CI has no room for a minute of each: every run gives it to two that the seed chooses. `TCLONE_FUZZ_SEED` repeats a run. A finding's input is left in
the test's directory and named in the failure.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from tests.nativebuild import BUILD_SECONDS, NATIVE, make

CORPUS = NATIVE / "fuzz" / "corpus"
TARGETS = sorted(path.name for path in CORPUS.iterdir())
_SECONDS = int(os.environ.get("TCLONE_FUZZ_SECONDS", "1"))
_SEED = int(os.environ.get("TCLONE_FUZZ_SEED", str(random.SystemRandom().randrange(1 << 32))))
_CHOSEN = 2
_CHOSEN_SECONDS = 60


def _seconds(targets: list[str]) -> dict[str, int]:
    """How long each target runs."""
    chosen = random.Random(_SEED).sample(targets, _CHOSEN) if os.environ.get("CI") else []
    return {target: max(_SECONDS, _CHOSEN_SECONDS) if target in chosen else _SECONDS for target in targets}


_SECONDS_OF = _seconds(TARGETS)


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    make("FUZZ=1", "fuzz")
    return NATIVE / "build-fuzz" / "fuzz"


def _run(fuzzer: Path, target: str, seconds: int, crash: Path, *inputs: Path) -> subprocess.CompletedProcess[str]:
    argv = [str(fuzzer), target, str(seconds), str(_SEED), str(crash), *map(str, inputs)]
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 120, check=False, env=environment)


def test_every_target_has_a_corpus(fuzzer: Path, tmp_path: Path) -> None:
    named = _run(fuzzer, "no such target", 0, tmp_path / "crash", tmp_path).stderr.partition("targets:")[2].split()
    assert sorted(named) == TARGETS


@pytest.mark.timeout(BUILD_SECONDS + max(_SECONDS_OF.values()) + 150)
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_is_too_strange(fuzzer: Path, tmp_path: Path, target: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = _run(fuzzer, target, _SECONDS_OF[target], tmp_path / "crash", CORPUS / target, work)
    report = f"seed {_SEED}, input in {tmp_path / 'crash'} (behind 8 bytes of size):\n{done.stderr[-6000:]}"
    assert done.returncode == 0, report
    last = re.search(rf"^{target}: (\d+) runs, (\d+) edges", done.stdout, re.M)
    assert last and int(last[1]) >= len(list((CORPUS / target).iterdir())) and int(last[2]) > 5, done.stdout


def test_a_finding_ends_the_fuzzer(tmp_path: Path) -> None:
    """The driver itself: a parser that reads behind the end of its text is found from a harmless input."""
    broken = tmp_path / "broken.c"
    broken.write_text(
        '#include "targets.h"\n#include <stdlib.h>\n#include <string.h>\n'
        "static volatile char sink;\n"
        "static void run(const uint8_t *bytes, size_t size)\n{\n"
        "    char *text = malloc(size);\n    memcpy(text, bytes, size);\n"
        "    if (size > 2 && text[0] == '(' && text[1] == 'x')\n        sink = text[size];\n    free(text);\n}\n"
        'const struct target targets[] = { { "broken", run, 0 }, { 0 } };\n'
        "const struct target *target_by_name(const char *name) { return strcmp(name, \"broken\") ? NULL : targets; }\n"
    )
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-fsanitize=address", f"-I{NATIVE / 'fuzz'}"]
    parser = ["gcc", *flags, "-fsanitize-coverage=trace-pc", "-c", "-o", str(tmp_path / "broken.o"), str(broken)]
    subprocess.run(parser, check=True)
    subprocess.run(["gcc", *flags, "-o", str(tmp_path / "fuzz"), str(NATIVE / "fuzz/driver.c"), str(tmp_path / "broken.o")], check=True)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_text("(yes")
    done = _run(tmp_path / "fuzz", "broken", 30, tmp_path / "crash", corpus)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr
