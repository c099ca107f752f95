"""How the tests start Chromium on the host: with a home of its own, since it leaves its settings in that of whoever runs it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The browser without any windows, as it was before it learned to hide them: the same engine at two thirds of the processor time. What the package has
# in /usr/bin is a shell around it, which an order to end would not get past.
_PROGRAM = Path("/usr/lib/chromium/chromium-headless-shell")
# No sandbox: the tests run as root, where Chromium refuses it. The pages under test are our own.
_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb")


@contextmanager
def chromium() -> Iterator[dict[str, Any]]:
    """Arguments for Playwright's `chromium.launch`; what the browser left is removed at the end, so close it before."""
    with tempfile.TemporaryDirectory(prefix="tclone-chromium-", ignore_cleanup_errors=True) as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        # The sound library makes a directory of its own in /tmp where there is none for what lasts as long as a login.
        yield {"executable_path": _PROGRAM, "args": list(_OPTIONS), "env": {**environment, "HOME": home, "XDG_RUNTIME_DIR": home}}
