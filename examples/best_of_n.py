"""Best of N: before each step the desktop is forked, every branch tries something else, a judge keeps the best one, the others are discarded.

    python examples/best_of_n.py [--image webtop-xfce]

The "agent" is scripted: three ways to write one line with the editor, two of which go wrong. In their place stands your model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tclone import Client, TCloneError, Workspace

GOAL = "The <quick> fox costs 3 € & jumps"
FILE = "/home/user/answer.txt"
EDITOR = "answer.txt - Mousepad"

Step = Callable[[Workspace], None]


def write_right(desk: Workspace) -> None:
    desk.type(GOAL)


def write_in_capitals(desk: Workspace) -> None:
    desk.type(GOAL.upper())


def write_half(desk: Workspace) -> None:
    desk.type(GOAL[: len(GOAL) // 2])


def save(desk: Workspace) -> None:
    desk.key("ctrl+s")
    desk.screenshot(settle=5)


def select_and_delete(desk: Workspace) -> None:
    desk.key("ctrl+a")
    desk.key("Delete")


def wait_and_see(desk: Workspace) -> None:
    desk.screenshot(settle=1)


STEPS: list[list[Step]] = [[write_half, write_in_capitals, write_right], [select_and_delete, wait_and_see, save]]


def score(desk: Workspace) -> float:
    """How much of the goal is on disk; before anything is, what the editor would save counts half. The judge may spoil its branch: it is a copy."""
    saved = answer(desk)
    if saved:
        return 1.0 + _alike(saved)
    with_probe = desk.fork()[0]
    if isinstance(with_probe, TCloneError):
        raise with_probe
    with with_probe as probe:
        save(probe)
        return _alike(answer(probe)) / 2


def answer(desk: Workspace) -> str:
    """What is on disk; the editor may have ended the line."""
    return desk.files.read_text(FILE).rstrip("\n")


def _alike(text: str) -> float:
    """The share of characters that are where they should be."""
    return sum(a == b for a, b in zip(text, GOAL, strict=False)) / max(len(text), len(GOAL))


def branches_of(desk: Workspace, steps: list[Step]) -> list[tuple[Step, Workspace]]:
    """A live branch for each step; what could not be made is left out of the search."""
    made = desk.fork(len(steps), labels=[step.__name__ for step in steps], partial=True)
    return [(step, branch) for step, branch in zip(steps, made, strict=True) if isinstance(branch, Workspace)]


def search(root: Workspace) -> Workspace:
    """The branch that came out of the last step. All others are gone; the root is as it was."""
    best = root
    with ThreadPoolExecutor(8) as pool:
        for number, candidates in enumerate(STEPS, 1):
            pairs = branches_of(best, candidates)
            list(pool.map(lambda pair: pair[0](pair[1]), pairs))
            tries = [branch for _, branch in pairs]
            scores = list(pool.map(score, tries))
            for branch, points in zip(tries, scores, strict=True):
                print(f"step {number}: {branch.id} {branch.info.label}: {points:.2f}", flush=True)
            winner = tries[scores.index(max(scores))]
            for loser in [*tries, best]:
                if loser.id not in (winner.id, root.id):
                    loser.discard()
            best = winner
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Best-of-N search over the branches of a desktop.")
    parser.add_argument("--image", default="webtop-xfce")
    wanted = parser.parse_args()
    with Client() as client, client.run(wanted.image) as desk:
        desk.exec(f": >{FILE}; DISPLAY=:1 setsid -f mousepad {FILE} >/dev/null 2>&1", check=True)
        window = desk.wait_for_window(EDITOR, timeout=60)
        desk.activate(window)
        desk.click(window.x + window.width // 2, window.y + window.height // 2)
        with search(desk) as best:
            print(f"best: {best.id} in generation {best.info.generation}, by {best.info.label}")
            # The winner's file becomes the source's.
            best.files.promote(desk, [FILE])
        print(f"the source has: {answer(desk)}")


if __name__ == "__main__":
    main()
