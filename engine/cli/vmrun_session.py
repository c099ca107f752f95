"""`tclone vmrun session`: commands as lines on stdin, answers as lines on stdout. One process in place of one for each command, whose start takes a third of a second of
processor time; TClone's provider for DesktopEnv keeps one.

A line is `{"number": 7, "words": ["revertToSnapshot", "/branches/desk", "init_state", "-wait"]}`, its answer `{"number": 7, "output": "127.0.0.1:23908:45222:0:0"}` or
`{"number": 7, "error": {"code": "not_found", "message": "…"}}`.
"""

from __future__ import annotations

import json
import threading
from typing import Any, TextIO

from engine.cli import output, vmrun
from engine.config import Config
from engine.errors import BadRequest, EngineError

# What a machine was before a revert is discarded only then: whoever reverts looks at once at the new one, and the two would be in each other's way.
_LOOK_SECONDS = 2.0
# Each has as much memory as the machine.
_MOST_WAITING = 2


class Session:
    """Carries out one command after the other. What a revert leaves is discarded beside them, and at the latest when stdin ends."""

    def __init__(self, config: Config) -> None:
        self._config = config
        # What still waits for its end, the oldest first, and what makes it wait no longer.
        self._discarding: list[tuple[threading.Thread, threading.Event]] = []
        self._failures: list[EngineError] = []

    def serve(self, commands: TextIO, answers: TextIO) -> int:
        """Until `commands` end; the exit status."""
        try:
            for line in commands:
                print(json.dumps(self._answered(line)), file=answers, flush=True)
        finally:
            self._discard_all_but(0)
        for failure in self._failures:
            output.error(failure.message)
        return self._failures[0].exit_status if self._failures else 0

    def _answered(self, line: str) -> dict[str, Any]:
        number: int | None = None
        try:
            number, words = _asked(line)
            self._tell_failures()
            return {"number": number, "output": self._carried_out(words)}
        except EngineError as error:
            return {"number": number, "error": {"code": error.code, "message": error.message}}

    def _carried_out(self, words: list[str]) -> str:
        """What the command says. Raises EngineError."""
        if words[:1] == ["stop"]:
            # A machine that was stopped is not there any more, in no form.
            self._discard_all_but(0)
        done = vmrun.carried_out(self._config, words)
        if done.leaves is not None and words[:1] == ["revertToSnapshot"]:
            self._discard_later(done.leaves)
        elif done.leaves is not None:
            vmrun.discard(self._config, done.leaves)
        return done.said

    def _tell_failures(self) -> None:
        """Raises the EngineError with which something could not be discarded since the last command."""
        if self._failures:
            raise self._failures.pop(0)

    def _discard_later(self, workspace: str) -> None:
        self._discard_all_but(_MOST_WAITING - 1)
        now = threading.Event()
        thread = threading.Thread(target=self._discard, args=(workspace, now), name=f"discard {workspace}")
        thread.start()
        self._discarding.append((thread, now))

    def _discard(self, workspace: str, now: threading.Event) -> None:
        now.wait(_LOOK_SECONDS)
        try:
            vmrun.discard(self._config, workspace)
        except EngineError as error:
            self._failures.append(error)

    def _discard_all_but(self, most: int) -> None:
        """Until no more than so many still wait for it."""
        while len(self._discarding) > most:
            thread, now = self._discarding.pop(0)
            now.set()
            thread.join()


def _asked(line: str) -> tuple[int, list[str]]:
    """Raises BadRequest."""
    try:
        asked = json.loads(line)
        number, words = asked["number"], asked["words"]
    except (ValueError, KeyError, TypeError, RecursionError):
        number, words = None, None
    if not isinstance(number, int) or not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise BadRequest('vmrun session: each line is {"number": 1, "words": ["list"]}')
    return number, words
