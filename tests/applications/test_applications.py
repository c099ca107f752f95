"""Real applications, each at work: forked twice at once, every side has its state, goes on, and is on its own."""

from __future__ import annotations

import pytest

from engine.client import EngineClient
from tests.applications.conftest import IMAGE, PLACE
from tests.applications.programs import names

_COPIES = 2


async def _run(client: EngineClient, workspace: str, program: str, *words: str) -> None:
    status, out, err = await client.run(workspace, ["python3", f"{PLACE}/{program}.py", *words], user="user", cwd="/home/user")
    assert status == 0, f"{program} {' '.join(words)} in {workspace}: status {status}\n{(out + err).decode(errors='replace')[-4000:]}"


# The first one builds the image: 4 minutes on a quiet machine, thrice that on a busy one.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", names())
async def test_application_lives_on_in_source_and_branches(client: EngineClient, programs: bytes, program: str) -> None:
    source = (await client.launch(IMAGE, wait=True))["id"]
    status, _, err = await client.run(source, ["sh", "-c", f"mkdir {PLACE} && tar -x -C {PLACE}"], stdin=programs)
    assert status == 0, err
    await _run(client, source, program, "start")

    result = await client.fork(source, copies=_COPIES)

    sides = {"source": source}
    for number, branch in enumerate(result["branches"], start=1):
        assert branch.get("error") is None, branch
        sides[f"branch-{number}"] = branch["id"]
    assert len(sides) == 1 + _COPIES
    for side, workspace in sides.items():
        await _run(client, workspace, program, "check", side)
    for side, workspace in sides.items():
        await _run(client, workspace, program, "verify", side)
