"""The guides in `docs/`, as pages of the portal."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from portal.markdown import Document

# Folders as the page of the API lists them; what lies beside them comes last.
_PARTS = {"tutorial": "Begin", "how-to": "How to", "explanation": "How it works", "reference": "Reference", "": "Security"}
_SUFFIX = ".md"
PREFIX = "/docs/"
# The portal's address as the guides' commands have it.
_PRINTED = "https://tclone.localhost:8443"


@dataclass(frozen=True)
class Guide:
    """One file: its name is its path below the folder, without the suffix."""

    name: str
    title: str
    path: Path

    @property
    def address(self) -> str:
        return PREFIX + self.name


class Guides:
    """The files are found once, at the start, and each is read when somebody first asks for it: what is served never depends on a path from a request."""

    def __init__(self, folder: Path) -> None:
        found = (Guide(path.relative_to(folder).with_suffix("").as_posix(), _title(path), path) for path in sorted(folder.rglob("*" + _SUFFIX)))
        self._guides = {guide.name: guide for guide in found}
        self._made: dict[str, Document] = {}

    def parts(self) -> list[tuple[str, list[Guide]]]:
        """Headings with the guides below each."""
        told = [(heading, [guide for name, guide in self._guides.items() if posixpath.dirname(name) == part]) for part, heading in _PARTS.items()]
        return [(heading, guides) for heading, guides in told if guides]

    def document(self, name: str) -> Document | None:
        """A guide by its name; None for one that there is not."""
        guide = self._guides.get(name)
        if guide is not None and name not in self._made:
            # Its library takes 57 ms to load, which no start of a portal has to wait for.
            from portal.markdown import document

            self._made[name] = document(guide.path.read_text(), lambda target: self._address(name, target))
        return self._made.get(name)

    def page(self, name: str, origin: str) -> Document | None:
        """A guide as the portal at `origin` (`https://host:port`) shows it: its commands are for that portal, wherever it listens."""
        made = self.document(name)
        if made is None or origin == _PRINTED:
            return made
        commands = re.sub(r"<pre.*?</pre>", lambda block: block[0].replace(_PRINTED, str(escape(origin))), made.body, flags=re.DOTALL)
        return replace(made, body=Markup(commands))

    def _address(self, name: str, target: str) -> str | None:
        """Where a link in the guide `name` leads: to another site, a heading, another guide; nowhere where it is a file beside the guides."""
        if "://" in target or target.startswith("#"):
            return target
        path, mark, heading = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)).removesuffix(_SUFFIX)
        guide = self._guides.get(wanted)
        return None if guide is None else guide.address + mark + heading


def _title(path: Path) -> str:
    with path.open() as file:
        return file.readline().lstrip("#").replace("`", "").strip()
