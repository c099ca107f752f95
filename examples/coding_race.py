"""A coding race in tmux: one workspace is brought to a failing test, forked, and every branch tries another change in its terminal.

    python examples/coding_race.py [--image workspace]

The first whose test passes wins; its files become the source's, the others are discarded. In place of the scripted programmers stand your agents.
"""

from __future__ import annotations

import argparse
import asyncio

from tclone import TCloneError
from tclone.aio import Client, Workspace

PROJECT = "/home/user/project"
PROGRAM = "def middle(numbers):\n    return sorted(numbers)[len(numbers) // 2 + 1]\n"
TEST = """\
import statistics
from middle import middle

for numbers in ([3, 1, 2], [5], [9, 1, 7, 3, 5]):
    assert middle(numbers) == statistics.median(numbers), numbers
print("PASSED")
"""
# What each programmer types into the terminal.
TRIES = {
    "off by one": "sed -i 's|// 2 + 1|// 2 - 1|' middle.py",
    "no index": "sed -i 's|\\[len.*||' middle.py",
    "the half": "sed -i 's| + 1||' middle.py",
}
TMUX = "tmux"
PATIENCE = 120.0


async def prepare(source: Workspace) -> None:
    """The project, and a shell in it inside the multiplexer, whose failing test every branch finds on its screen."""
    await source.files.make_directory(PROJECT)
    await source.files.write(f"{PROJECT}/middle.py", PROGRAM)
    await source.files.write(f"{PROJECT}/test_middle.py", TEST)
    await source.exec(f"{TMUX} new-session -d -s race -c {PROJECT}", user="user", check=True)
    await typed(source, "python3 test_middle.py")
    await asyncio.wait_for(shown(source, "AssertionError"), PATIENCE)


async def typed(workspace: Workspace, line: str) -> None:
    """Type a line into the terminal."""
    await workspace.exec([TMUX, "send-keys", "-t", "race", "-l", line], user="user", check=True)
    await workspace.exec([TMUX, "send-keys", "-t", "race", "Enter"], user="user", check=True)


async def shown(workspace: Workspace, *words: str) -> str:
    """The first of these words that the terminal shows."""
    while True:
        screen = (await workspace.exec([TMUX, "capture-pane", "-p", "-J", "-t", "race"], user="user", check=True)).text
        for word in words:
            if word in screen:
                return word
        await asyncio.sleep(0.1)


async def compete(branch: Workspace, line: str) -> tuple[Workspace, bool]:
    """One programmer: change the program, run the test, look at the terminal."""
    await typed(branch, f"clear; {line}; python3 test_middle.py && echo WON || echo LOST")
    # The line itself has the words, too, until it is cleared away: they count at the beginning of a line.
    return branch, await shown(branch, "\nWON", "\nLOST") == "\nWON"


async def race(source: Workspace) -> Workspace | None:
    """The winner, or None; the others are gone."""
    children = await source.fork(len(TRIES), labels=list(TRIES))
    branches = [child for child in children if isinstance(child, Workspace)]
    for child in children:
        if isinstance(child, TCloneError):
            print(f"a programmer less: {child}")
    winner = None
    running = [asyncio.create_task(compete(branch, TRIES[branch.info.label])) for branch in branches]
    try:
        for done in asyncio.as_completed(running):
            branch, passed = await done
            print(f"{branch.info.label}: {'passed' if passed else 'failed'}")
            if passed:
                winner = branch
                break
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(branch.discard() for branch in branches if branch is not winner))
    return winner


async def main() -> None:
    parser = argparse.ArgumentParser(description="Programmers compete in branches of one workspace.")
    parser.add_argument("--image", default="workspace")
    wanted = parser.parse_args()
    async with Client() as client, await client.run(wanted.image) as source:
        await prepare(source)
        winner = await asyncio.wait_for(race(source), PATIENCE)
        if winner is None:
            print("nobody won")
            return
        async with winner:
            changed = [change.path for change in await winner.files.diff() if change.kind == "file" and change.path.startswith(PROJECT.encode()) and b"__pycache__" not in change.path]
            await winner.files.promote(source, changed)
        result = await source.exec(f"cd {PROJECT} && python3 test_middle.py", user="user", check=True)
        print(f"the source, with the winner's {len(changed)} file: {result.text}")


if __name__ == "__main__":
    asyncio.run(main())
