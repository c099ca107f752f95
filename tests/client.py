"""Clients of others, unmodified, each with the Python of its own environment (`scripts/setup clients`)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from engine.config import REPO


@cache
def python(name: str) -> Path:
    """The Python of a client's environment, which is made when it is not there."""
    subprocess.run([str(REPO / "scripts/setup"), "clients", name], check=True, timeout=600)
    return Path(os.environ.get("TCLONE_CLIENTS", REPO / ".venv-clients")) / name / "bin/python"


async def run(name: str, script: Path, *arguments: str, seconds: float = 300, **variables: str) -> str:
    """What a script says that a client's Python runs; it must end well."""
    found = await asyncio.to_thread(python, name)
    with tempfile.TemporaryDirectory(prefix="tclone-client-") as home:
        # Nothing of ours: the environment of whoever runs the tests could lead it elsewhere, and some write into their home.
        env = {"PATH": os.environ["PATH"], "HOME": home, **variables}
        process = await asyncio.create_subprocess_exec(
            str(found), str(script), *arguments, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(seconds):
                said = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, said
    return said
