"""What the portal tells of: plain values, as they were when they were asked for."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]
Place = tuple[int, int]


class RunOptions(TypedDict, total=False):
    """How to launch a workspace: `Client.run`."""

    name: str | None
    ports: Sequence[int]
    env: Mapping[str, str] | None
    memory: int | None
    disk: int | None
    cpus: float | None
    network: str
    timeout: float | None
    persistent: bool
    wait: bool


@dataclass(frozen=True)
class Info:
    """A workspace. `generation` 0 was launched, 1 forked from such a one; `paused`: its programs stand still; `ports`: container port to host port; `raw`: all that the portal tells."""

    id: str
    name: str
    kind: str
    state: str
    image: str
    parent: str | None
    index: int | None
    generation: int
    label: str
    desktop: bool
    paused: bool
    ports: dict[int, int]
    network: str
    error: str | None
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Info:
        return cls(
            id=told["id"], name=told["name"], kind=told["kind"], state=told["state"], image=told["image"], parent=told.get("parent"),
            index=told.get("index"), generation=told.get("generation") or 0, label=told.get("label") or "", desktop=bool(told.get("desktop")), paused=bool(told.get("paused")),
            ports={int(inside): outside for inside, outside in (told.get("ports") or {}).items()}, network=told.get("network") or "",
            error=told.get("error"), raw=told,
        )  # fmt: skip


@dataclass(frozen=True)
class Screenshot:
    """An encoded picture. `screen` is the size of the whole screen, `size` its own; the same `tag` is the same picture, asked for in the same way (`asked`)."""

    content: bytes
    content_type: str
    tag: str
    screen: Size
    size: Size
    asked: Mapping[str, object] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    def image(self) -> Image:
        """As an image of Pillow."""
        from PIL import Image  # who only keeps the bytes need not have it loaded

        return Image.open(io.BytesIO(self.content))

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.content)


def picture_query(format: str, width: int | None, height: int | None, region: Sequence[int] | None, max_bytes: int | None) -> dict[str, object]:
    """How a picture is asked for, as the parameters of its route."""
    found = {"format": format, "width": width, "height": height, "region": ",".join(map(str, region)) if region else None, "max_bytes": max_bytes}
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Frame(Screenshot):
    """A picture of a stream of them; `number` counts from 1."""

    number: int


@dataclass(frozen=True)
class Acted:
    """What came of a batch of actions, all of which succeeded. `cursor` is in pixels of the picture that places were given in."""

    results: list[dict[str, Any]]
    screen: Size
    cursor: Place


@dataclass(frozen=True)
class Window:
    """A window; places and sizes in pixels of the screen."""

    id: int
    title: str
    program: str
    x: int
    y: int
    width: int
    height: int
    active: bool
    hidden: bool


@dataclass(frozen=True)
class Element:
    """What a program says of something that it shows. `parent` is the place in the list of what it is in; `box`: x, y, width, height in pixels
    of the screen, None for what is not showing; `value` has the figures of a slider or bar."""

    role: str
    name: str
    text: str
    description: str
    states: frozenset[str]
    box: tuple[int, int, int, int] | None
    parent: int | None
    value: Mapping[str, float]

    @property
    def place(self) -> Place:
        """Its middle, to click at. Raises ValueError for what is not showing."""
        if self.box is None:
            raise ValueError(f"{self.role} {self.name!r} is not showing: it has no place")
        left, top, width, height = self.box
        return left + width // 2, top + height // 2


@dataclass(frozen=True)
class Completed:
    """A command that has ended. 128 + N is signal N, 127 not found, 126 not executable."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """stdout as text, without the line end at its end."""
        return self.stdout.decode(errors="replace").removesuffix("\n")


@dataclass(frozen=True)
class Chunk:
    """A piece of a command's output: `stream` is 1 for stdout, 2 for stderr."""

    stream: int
    data: bytes


@dataclass(frozen=True)
class Entry:
    """One name of a directory. `path` is bytes, as the kernel has it; `kind`: file, directory, link, …"""

    path: bytes
    name: str
    kind: str
    size: int
    mode: int | None
    modified: float | None


@dataclass(frozen=True)
class Change:
    """A file that differs from the base's. `change`: added, changed or deleted; sizes in bytes, None where there is none; `own`: the desktop writes it by itself."""

    change: str
    path: bytes
    kind: str
    size: int | None
    before: int | None
    own: bool


@dataclass(frozen=True)
class Promoted:
    """A path that was promoted. `change`: added, changed or deleted; `size` in bytes; `outcome`: done, planned or failed, in a dry run conflict or refused, too."""

    path: bytes
    change: str
    kind: str
    size: int
    outcome: str
    reason: str | None


@dataclass(frozen=True)
class Lease:
    """A person has control. Times are Unix seconds."""

    holder: str
    epoch: int
    since: float
    expires: float


@dataclass(frozen=True)
class Listener:
    """A server inside; `host` is its port on the host when it is published."""

    port: int
    address: str
    command: str
    host: int | None
    desktop: bool


@dataclass(frozen=True)
class Event:
    """Something that happened: `type` and `data` as the portal's feed has them; `number` grows."""

    type: str
    workspace: str | None
    number: int
    data: Mapping[str, Any]
