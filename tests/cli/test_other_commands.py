"""image, doctor, version, ca: what they print."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine

_IMAGE = {"name": "workspace", "digest": "cd" * 32, "size": 1, "created": 0}


async def test_image_build_shows_phases_and_prints_the_digest(engine: FakeEngine, tclone: Tclone) -> None:
    engine.image_steps = [
        {"phase": "packages", "detail": "12 of 80", "elapsed_ms": 1500},
        {"phase": "archive", "detail": "", "elapsed_ms": 9000},
        {"done": _IMAGE},
    ]
    done = await tclone("image", "build", "workspace")
    assert (done.status, done.out) == (0, "cd" * 32 + "\n")
    assert done.err == "image build workspace: packages 12 of 80 (1.5 s)\nimage build workspace: archive (9.0 s)\n"
    assert (await tclone("image", "build", "workspace", "--json")).json() == _IMAGE


async def test_image_build_that_fails(engine: FakeEngine, tclone: Tclone) -> None:
    engine.image_steps = [
        {"phase": "packages", "detail": "", "elapsed_ms": 1},
        {"error": {"code": "no_space", "message": "the pool is full: remove images or workspaces"}},
    ]
    done = await tclone("image", "build", "workspace")
    assert done.status == 8 and "tclone: the pool is full" in done.err


async def test_image_build_whose_engine_goes_away(engine: FakeEngine, tclone: Tclone) -> None:
    engine.image_steps = [{"phase": "packages", "detail": "", "elapsed_ms": 1}]
    done = await tclone("image", "build", "workspace")
    assert done.status == 9 and "went away" in done.err


async def test_image_import_sends_an_absolute_path(engine: FakeEngine, tclone: Tclone) -> None:
    engine.image_steps = [{"done": _IMAGE}]
    assert (await tclone("image", "import", "./layout", "--name", "mine")).status == 0
    body = next(body for method, _, body in engine.requests if method == "POST")
    assert body == {"path": str(Path.cwd() / "layout"), "name": "mine"}


async def test_image_ls_and_rm(engine: FakeEngine, tclone: Tclone) -> None:
    done = await tclone("image", "ls")
    assert done.out.splitlines()[1].split() [:4] == ["workspace", "abababababab", "200", "MiB"]
    assert (await tclone("image", "ls", "--json")).json()[0]["digest"] == "ab" * 32
    assert (await tclone("image", "rm", "workspace")).out == "workspace\n"
    assert (await tclone("image", "rm", "other")).status == 4


async def test_doctor_says_what_to_do(engine: FakeEngine, tclone: Tclone) -> None:
    done = await tclone("doctor")
    assert done.status == 9
    assert "ok    engine" in done.out and "FAIL  btrfs   no module" in done.out and "-> modprobe btrfs" in done.out
    assert [check["ok"] for check in (await tclone("doctor", "--json")).json()["checks"]] == [True, False]


async def test_doctor_without_an_engine_checks_here(tclone: Tclone) -> None:
    done = await tclone("doctor", "--json")
    checks = {check["name"]: check for check in done.json()["checks"]}
    assert done.status == 9
    assert checks["engine"]["ok"] is False and checks["engine"]["remedy"] == "run `tclone up`"
    assert len(checks) > 3


async def test_version(engine: FakeEngine, tclone: Tclone) -> None:
    assert (await tclone("version")).out == "tclone 0.1.0\nengine 0.0-fake\n"


async def test_version_without_an_engine(tclone: Tclone) -> None:
    done = await tclone("version")
    assert (done.status, done.out) == (0, "tclone 0.1.0\nengine not running\n")


async def test_ca_before_the_first_start(tclone: Tclone) -> None:
    done = await tclone("ca")
    assert done.status == 4 and "the first `tclone up` makes it" in done.err


async def test_help_waits_for_nothing_it_does_not_need(tclone: Tclone) -> None:
    """What takes longest to import is imported by the commands that use it."""
    argv = [sys.executable, "-X", "importtime", *tclone.argv("--help")[1:]]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=tclone.environment)
    _, told = await process.communicate()
    imported = {line.rpartition("|")[2].strip() for line in told.decode().splitlines()}
    assert process.returncode == 0 and "engine.cli.parser" in imported
    assert imported & {"aiohttp", "asyncio", "pydantic", "pyroute2", "engine.client", "portal"} == set()
