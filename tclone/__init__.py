"""Programs that launch, fork and drive workspaces through a portal. docs/how-to/sdk.md shows how.

Here are the blocking classes; `tclone.aio` has the same ones for asyncio.
"""

from tclone.data import Acted, Change, Chunk, Completed, Element, Entry, Event, Frame, Info, Lease, Listener, Screenshot, Window
from tclone.errors import (
    ActionFailed, BadRequest, CommandFailed, Conflict, Forbidden, Held, Internal, Interrupted, LimitReached, LoginNeeded, NotFound, Refused,
    TCloneError, TimedOut, Unavailable,
)  # fmt: skip
from tclone.sync import Client, Control, Process, Workspace

__all__ = [
    "Acted", "ActionFailed", "BadRequest", "Change", "Chunk", "Client", "CommandFailed", "Completed", "Conflict", "Control", "Element", "Entry",
    "Event", "Forbidden", "Frame", "Held", "Info", "Internal", "Interrupted", "Lease", "LimitReached", "Listener", "LoginNeeded", "NotFound", "Process",
    "Refused", "Screenshot", "TCloneError", "TimedOut", "Unavailable", "Window", "Workspace",
]  # fmt: skip
