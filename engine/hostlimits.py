"""Limits of the host that all workspaces share and that the kernel's defaults set for a single user's desktop.

A desktop holds some ten inotify instances; the default of 128 counts all processes of one uid on the host together, so a dozen
branches would exhaust it. The engine raises these limits when it starts and leaves them raised: workspaces outlive the engine.
"""

from __future__ import annotations

import logging
from pathlib import Path

INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
MINIMUM_INOTIFY_INSTANCES = 8192
_MINIMUMS = {
    INOTIFY_INSTANCES: MINIMUM_INOTIFY_INSTANCES,
    Path("/proc/sys/fs/inotify/max_user_watches"): 524288,
}

_log = logging.getLogger(__name__)


def raise_limits() -> None:
    """Raise what is too low; a limit that cannot be raised is logged, and `tclone doctor` names it."""
    for path, minimum in _MINIMUMS.items():
        try:
            if int(path.read_text()) < minimum:
                path.write_text(str(minimum))
                _log.info("raised %s to %d", path, minimum)
        except (OSError, ValueError) as error:
            _log.warning("cannot raise %s to %d: %s", path, minimum, error)
