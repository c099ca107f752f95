"""The layer that every workspace shares: our pid 1 and the restorer, and the root in which a branch is rebuilt."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from engine import bundle
from engine.errors import Unavailable
from engine.learnt import Learnt

_PROGRAMS = {"init": "tclone-init", "restore": "tclone-restore"}
_GUEST = Path(__file__).parent / "guest"
# What commands of the OSWorld server find (docs/reference/osworld.md), by its place: their modules, and programs by the names that its tasks know.
_OSWORLD = {
    "run.py": "osworld_run.py", "lib/pyautogui.py": "pyautogui.py", "lib/pyperclip.py": "pyperclip.py", "lib/tclone_socat.py": "socat.py",
    "bin/google-chrome": "chrome.sh", "bin/google-chrome-stable": "chrome.sh", "bin/pgrep": "end_chrome.sh", "bin/pkill": "end_chrome.sh",
}  # fmt: skip
_OSWORLD_PROGRAMS = {
    "python": '#!/bin/sh\nexec python3 "$@"\n',
    "socat": '#!/bin/sh\n[ -x /usr/bin/socat ] && exec /usr/bin/socat "$@"\nexec python3 /usr/libexec/tclone/osworld/lib/tclone_socat.py "$@"\n',
}
_ELF = b"\x7fELF"
_STAGE_DIRECTORIES = ("proc", "dev", "sys", "tmp")  # the restorer puts the new root on /tmp


class Tools:
    """Copies of the native programs in the pool, under the digest of their content: running workspaces keep theirs."""

    def __init__(self, pool: Path, libexec: Path) -> None:
        self._pool = pool
        self._libexec = libexec
        self.digest = ""
        self.learnt = Learnt()

    @property
    def livefork(self) -> Path:
        return self._libexec / "tclone-livefork"

    def layer(self, digest: str) -> Path:
        """The lower layer that holds /usr/libexec/tclone."""
        return self._pool / "tools" / digest

    @property
    def stage(self) -> Path:
        """The root of a container that waits to become a branch."""
        return self._pool / "stage" / self.digest

    def install(self) -> None:
        """Copy the programs into the pool. Blocks; raises Unavailable when they were not built."""
        total = hashlib.sha256()
        for name in sorted(_PROGRAMS.values()):
            try:
                content = (self._libexec / name).read_bytes()
            except OSError:
                raise Unavailable(f"{self._libexec / name} is missing; build it with `make -C native`") from None
            if not content.startswith(_ELF):
                raise Unavailable(f"{self._libexec / name} is not a whole program; build it again with `make -C native`")
            total.update(content)
        for place, name in sorted(_OSWORLD.items()):
            total.update(place.encode() + b"\0" + (_GUEST / name).read_bytes())
        total.update(json.dumps(_OSWORLD_PROGRAMS, sort_keys=True).encode())
        self.digest = total.hexdigest()[:16]
        self._install(self.layer(self.digest))
        self._install(self.stage, _STAGE_DIRECTORIES)

    def _install(self, target: Path, directories: tuple[str, ...] = ()) -> None:
        if target.exists():
            return
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        programs = partial / bundle.INIT.strip("/")
        programs.parent.mkdir(parents=True)
        for name, program in _PROGRAMS.items():
            copied = programs.with_name(name)
            shutil.copyfile(self._libexec / program, copied)
            os.chmod(copied, 0o755)
        if not directories:
            install_osworld(programs.with_name("osworld"))
        for name in directories:
            (partial / name).mkdir()
        partial.rename(target)


def install_osworld(target: Path) -> None:
    """Lay out what commands of the OSWorld server find. Raises OSError."""
    (target / "lib").mkdir(parents=True)
    (target / "bin").mkdir()
    for place, name in _OSWORLD.items():
        shutil.copyfile(_GUEST / name, target / place)
        os.chmod(target / place, 0o755 if place.startswith("bin/") else 0o644)
    for name, text in _OSWORLD_PROGRAMS.items():
        (target / "bin" / name).write_text(text)
        os.chmod(target / "bin" / name, 0o755)
