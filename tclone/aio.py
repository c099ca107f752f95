"""The asynchronous classes: `from tclone.aio import Client`."""

from tclone.client import Client
from tclone.control import Control
from tclone.desktop import Desktop
from tclone.execution import Process
from tclone.workspace import Workspace

__all__ = ["Client", "Control", "Desktop", "Process", "Workspace"]
