"""The portal's launcher: nothing of root is left, the code is readable wherever it lies, and nothing else of a closed directory is."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine import config
from engine.cli import unprivileged

pytestmark = pytest.mark.root
_USER = "nobody"

_SELF = """
import json, os, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
json.dump({"ids": os.getresuid() + os.getresgid(), "groups": os.getgroups(), "cwd": os.getcwd(),
           **{key: status[key].strip() for key in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb", "NoNewPrivs")}}, sys.stdout)
"""


def _run(code: str, *options: str, **more: object) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "engine.cli.unprivileged", *options, _USER, "--", sys.executable, "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]


def test_nothing_of_root_is_left() -> None:
    seen = json.loads(_run(_SELF).stdout)
    account = pwd.getpwnam(_USER)
    assert seen["ids"] == [account.pw_uid] * 3 + [account.pw_gid] * 3
    assert 0 not in seen["groups"]
    assert {int(seen[key], 16) for key in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {0}
    assert seen["NoNewPrivs"] == "1"
    assert seen["cwd"] == "/"


def test_a_low_port_costs_one_capability() -> None:
    seen = json.loads(_run(_SELF, "--bind-low-ports").stdout)
    bind_service = 1 << 10
    assert {int(seen[key], 16) for key in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {bind_service}


def test_libraries_templates_and_code_are_readable() -> None:
    code = f"import aiohttp, portal, engine, os; print(len(os.listdir({str(config.REPO)!r})))"
    done = _run(code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5


def test_a_clone_in_a_closed_directory_works_and_its_neighbours_stay_closed(tmp_path: Path) -> None:
    closed = tmp_path / "home"
    clone = closed / "tclone"
    clone.mkdir(parents=True)
    (clone / "page.html").write_text("hello")
    (closed / "secret").write_text("secret")
    closed.chmod(0o700)
    code = f"""
import os
os.chdir("/")
print(open({str(clone / "page.html")!r}).read(), os.listdir({str(closed)!r}))
"""
    start = f"""
import sys
from pathlib import Path
from engine.cli import unprivileged
unprivileged.needed_trees = lambda: [Path({str(clone)!r}), Path(sys.prefix), Path(sys.base_prefix), unprivileged.config.REPO]
unprivileged.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", start, _USER, "--", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("hello ['tclone']\n", 0), done.stderr
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_closed_clone_itself_is_named(tmp_path: Path) -> None:
    account = pwd.getpwnam(_USER)
    place = tmp_path / "deep" / "er"
    place.mkdir(parents=True)
    (tmp_path / "deep").chmod(0o700)
    found = unprivileged.first_closed(place, account.pw_uid, account.pw_gid)
    # pytest's own directories are closed, too, and the topmost counts.
    assert found is not None and (tmp_path / "deep").is_relative_to(found)
    assert unprivileged.first_closed(Path("/usr/lib"), account.pw_uid, account.pw_gid) is None


def test_it_ends_with_its_supervisor() -> None:
    argv = [*unprivileged.launcher(_USER), "/bin/sleep", "60"]
    parent = f"import subprocess, time; child = subprocess.Popen({argv!r}); print(child.pid, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    process.stdout.close()
    while os.path.exists(f"/proc/{pid}") and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_unknown_user_is_an_error() -> None:
    done = subprocess.run([*unprivileged.launcher("no-such-user"), "/bin/true"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "no-such-user" in done.stderr
