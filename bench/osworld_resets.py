"""How long OSWorld's DesktopEnv takes to reset to a snapshot: by TClone's provider, and by its own VMware provider over `tclone vmrun`, in turns.

    tclone run webtop-xfce --osworld --name desk && tclone vmrun install BIN && tclone vmrun snapshot /branches/desk init_state
    PATH=BIN:$PATH PYTHONPATH=. .venv-clients/osworld/bin/python bench/osworld_resets.py desk [--resets N]

Runs in DesktopEnv's environment (`scripts/setup clients osworld`). docs/reference/osworld.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "agents" / "clients"))

import osworld_stubs  # noqa: E402

osworld_stubs.install()

from desktop_env.desktop_env import DesktopEnv  # noqa: E402

from tclone.osworld import environment  # noqa: E402

_TASK = {"id": "nothing", "instruction": "nothing", "config": [], "evaluator": {"func": "infeasible"}}


def _reverted(env: Any) -> None:
    env._revert_to_snapshot()
    env._start_emulator()


def _reset(env: Any, everything: bool) -> None:
    env.require_a11y_tree = env.require_terminal = everything
    observation = env.reset(task_config=_TASK)
    assert observation["screenshot"] is not None and (observation["accessibility_tree"] is not None) is everything


WAYS: dict[str, Callable[[Any], None]] = {
    "revert, until the machine answers": _reverted,
    "reset, with a screenshot": lambda env: _reset(env, False),
    "reset, with screenshot, accessibility tree and terminal": lambda env: _reset(env, True),
}


def measured(envs: dict[str, Any], resets: int) -> dict[tuple[str, str], list[float]]:
    """Seconds by way and provider; before each the machine is acted in, as otherwise there is nothing to reset."""
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(resets):
        for way, work in WAYS.items():
            for provider, env in envs.items():
                # The other one has changed the machine since.
                env._start_emulator()
                env.step("pyautogui.press('x')", pause=0)
                began = time.monotonic()
                work(env)
                found.setdefault((way, provider), []).append(time.monotonic() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/osworld_resets.py", description="Measure resets of OSWorld's DesktopEnv.")
    parser.add_argument("name", help="a desktop with an OSWorld server and a snapshot init_state")
    parser.add_argument("--resets", type=int, default=5, metavar="N", help="of each kind (default %(default)s)")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    with TemporaryDirectory() as cache, contextlib.redirect_stdout(sys.stderr):
        more = {"snapshot_name": "init_state", "action_space": "pyautogui", "cache_dir": cache, "headless": True}
        envs = {
            "TClone's provider": environment(options.name, **more),
            "vmrun": DesktopEnv(provider_name="vmware", path_to_vm=f"/branches/{options.name}", **more),
        }
        found = measured(envs, options.resets)
    print(f"{len(os.sched_getaffinity(0))} cores, load before {before:.1f}, after {os.getloadavg()[0]:.1f}; seconds: median (lowest-highest) of {options.resets}")
    for (way, provider), seconds in found.items():
        print(f"{way:<58}{provider:<20}{statistics.median(seconds):6.2f} ({min(seconds):.2f}-{max(seconds):.2f})")


if __name__ == "__main__":
    main()
