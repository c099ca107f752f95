"""Small C programs that run inside a workspace of the engine's tests, compiled when they are asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

from engine.client import EngineClient

_HERE = Path(__file__).parent


def build(name: str, directory: Path, *flags: str) -> Path:
    """Compile `name`.c, statically, into `directory`."""
    program = directory / name
    if not program.exists():
        subprocess.run(["gcc", "-O1", "-static", "-Wall", "-Werror", "-pthread", *flags, "-o", program, _HERE / f"{name}.c"], check=True)
    return program


async def install(client: EngineClient, ref: str, program: Path) -> str:
    """Copy a program into a workspace; its path there."""
    path = f"/root/{program.name}"
    status, _, err = await client.run(ref, ["sh", "-c", f"cat > {path}; chmod 755 {path}"], stdin=program.read_bytes())
    assert status == 0, err
    return path


async def start(client: EngineClient, ref: str, program: Path, *arguments: str) -> str:
    """Run a program in the background of a workspace, as its pid 1's child, until it has printed `done`; what it printed."""
    path = await install(client, ref, program)
    script = 'out=/tmp/out.$$; "$@" > $out 2>&1 < /dev/null & until grep -q "^done" /tmp/out.$$; do kill -0 $! || exit 1; sleep 0.05; done; cat /tmp/out.$$'
    status, out, err = await client.run(ref, ["sh", "-c", script, "sh", path, *arguments])
    assert status == 0, err
    return out.decode()
