"""The engine's fixtures; and `inside`, two workspaces and a branch with the program that tries to get out of them."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.client import EngineClient
# The hook puts tests with an engine of their own first here, too, when tests/engine is not collected.
from tests.engine.conftest import client, data, engine, pytest_collection_modifyitems, serving, shared_engine, variables  # noqa: F401 - fixtures
from tests.engine.support import IMAGE

_HERE = Path(__file__).parent


class Inside:
    """Runs attempts in `places`: a source and a branch of it. `sibling` is another workspace."""

    def __init__(self, client: EngineClient, source: str, branch: str, sibling: str) -> None:
        self.client = client
        self.places = {"source": source, "branch": branch}
        self.sibling = sibling

    async def attempt(self, ref: str, user: str | None, name: str, *arguments: str) -> str:
        """`done`, or `refused ERRNO`."""
        status, out, err = await self.client.run(ref, ["/usr/bin/attempts", name, *arguments], user=user)
        assert status == 0, err
        said = out.decode().split()
        assert said[0] == name
        return " ".join(said[1:])


@pytest.fixture(scope="session")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The program; it refuses to run outside of a workspace."""
    program = tmp_path_factory.mktemp("attempts") / "attempts"
    subprocess.run(["gcc", "-O1", "-static", "-Wall", "-Werror", "-o", program, _HERE / "attempts.c"], check=True)
    assert subprocess.run([program, "mount"], capture_output=True, check=False).returncode == 3
    return program.read_bytes()


@pytest.fixture
async def inside(client: EngineClient, attempts: bytes) -> AsyncIterator[Inside]:  # noqa: F811
    source = (await client.launch(IMAGE, name="hostile", wait=True))["id"]
    sibling = (await client.launch(IMAGE, name="sibling", wait=True))["id"]
    script = "mkdir -p /usr/bin && cat > /usr/bin/attempts && chmod 755 /usr/bin/attempts"
    status, _, err = await client.run(source, ["sh", "-c", script], stdin=attempts)
    assert status == 0, err
    branch = (await client.fork(source))["branches"][0]
    assert branch["error"] is None
    yield Inside(client, source, branch["id"], sibling)
