"""Programs that launch, fork and drive workspaces through a portal. docs/how-to/sdk.md shows how.

Here are the blocking classes; `tclone.aio` has the same ones for asyncio.
"""

from typing import TYPE_CHECKING, Any

from tclone.data import Acted, Change, Chunk, Completed, Element, Entry, Event, Frame, Info, Lease, Listener, Promoted, Screenshot, Window
from tclone.errors import (
    ActionFailed, BadRequest, CommandFailed, Conflict, Forbidden, Held, Internal, Interrupted, LimitReached, LoginNeeded, NotFound, Refused,
    TCloneError, TimedOut, Unavailable,
)  # fmt: skip

if TYPE_CHECKING:
    from tclone.sync import Client, Control, Process, Workspace

__all__ = [
    "Acted", "ActionFailed", "BadRequest", "Change", "Chunk", "Client", "CommandFailed", "Completed", "Conflict", "Control", "Element", "Entry",
    "Event", "Forbidden", "Frame", "Held", "Info", "Internal", "Interrupted", "Lease", "LimitReached", "Listener", "LoginNeeded", "NotFound", "Process",
    "Promoted", "Refused", "Screenshot", "TCloneError", "TimedOut", "Unavailable", "Window", "Workspace",
]  # fmt: skip

_CLASSES = ("Client", "Control", "Process", "Workspace")


def __getattr__(name: str) -> Any:
    """The classes that speak to a portal are loaded when they are first asked for: `tclone.osworld` lives in an environment without what they need."""
    if name not in _CLASSES:
        raise AttributeError(f"module 'tclone' has no attribute {name!r}")
    from tclone import sync

    return getattr(sync, name)
