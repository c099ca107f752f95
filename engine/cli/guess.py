"""What somebody may have meant by a word that is none: the command, workspace or image whose name is nearest."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from engine.errors import EngineError, NotFound

if TYPE_CHECKING:
    from engine.client import EngineClient

# As difflib measures it, 1 is the same. At 0.6 `fokr` finds `fork` and `desk2` finds `desk`, `lab` finds nothing among strangers.
_LIKE = 0.6


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like `word`, or None when none is near."""
    import difflib  # only a slip needs it

    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=_LIKE)
    return found[0] if found else None


class Parser(argparse.ArgumentParser):
    """A parser that says which of its choices a wrong one may have been meant for."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        self._refuse(action, str(value), [str(choice) for choice in action.choices])

    def _refuse(self, action: argparse.Action, value: str, choices: list[str]) -> NoReturn:
        meant = nearest(value, choices)
        what = str(action.metavar or action.dest).lower()
        hint = f"did you mean `{meant}`?" if meant else f"there are: {', '.join(choices)}"
        raise argparse.ArgumentError(None, f"there is no {what} {value!r}; {hint}")


async def explained(client: EngineClient, error: NotFound, arguments: argparse.Namespace) -> NotFound:
    """The error with a guess at the name that was meant, when it is about a workspace or an image that the arguments name."""
    try:
        for ref in _workspaces(arguments):
            if error.message.startswith(f"no workspace {ref};"):
                listed = await client.list()
                return _with(error, nearest(ref, [name for item in listed for name in (item["name"], item["id"])]))
        for ref in _images(arguments):
            if error.message.startswith(f"no image {ref};"):
                return _with(error, nearest(ref, [item["name"] for item in await client.images()]))
    except EngineError:
        pass  # the first error is what there is to say; that the second question failed adds nothing
    return error


def _with(error: NotFound, meant: str | None) -> NotFound:
    if meant is None:
        return error
    what, _, rest = error.message.partition(";")
    return NotFound(f"{what}; did you mean {meant}?{f' Otherwise {rest.strip()}' if rest else ''}")


def _workspaces(arguments: argparse.Namespace) -> list[str]:
    return _words(arguments, "workspace", "workspaces")


def _images(arguments: argparse.Namespace) -> list[str]:
    return _words(arguments, "image", "images")


def _words(arguments: argparse.Namespace, *names: str) -> list[str]:
    found: list[str] = []
    for name in names:
        value = getattr(arguments, name, None)
        found += [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return found
