"""A provider for OSWorld's DesktopEnv that forks: without the pauses, and with the errors, that its VMware provider has.

    from tclone.osworld import environment

    env = environment("desk", action_space="pyautogui")

Needs desktop-env and the command `tclone` (`TCLONE_COMMAND` names another one), and none of the packages that the portal or the SDK's other classes need.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from desktop_env.providers.base import Provider, VMManager

from tclone.errors import NotFound, TCloneError, Unavailable

_PREFIX = "/branches/"


class TCloneProvider(Provider):
    """Machines are desktops by their paths, /branches/NAME; their snapshots are forks (docs/reference/osworld.md). Raises TCloneError."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        # The address of a machine that was just reverted, until it is asked for; and the command that still discards what it was before.
        self._address: tuple[str, str] | None = None
        self._discarding: subprocess.Popen[str] | None = None

    def start_emulator(self, path_to_vm: str, headless: bool = True, os_type: str = "Ubuntu") -> None:
        if self._address is not None and self._address[0] == path_to_vm:
            return
        self._finish()
        if path_to_vm not in _vmrun("list").splitlines():
            _vmrun("start", path_to_vm)

    def get_ip_address(self, path_to_vm: str) -> str:
        known, self._address = self._address, None
        if known is not None and known[0] == path_to_vm:
            return known[1]
        return _vmrun("getGuestIPAddress", path_to_vm, "-wait")

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        self._finish()
        _vmrun("snapshot", path_to_vm, snapshot_name)

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """Returns as soon as the machine answers; what it was before is discarded meanwhile."""
        self._finish()
        self._address = None
        command = _started("revertToSnapshot", path_to_vm, snapshot_name, "-wait")
        assert command.stdout is not None
        address = command.stdout.readline().strip()
        self._discarding = command
        if not address:
            self._finish()
            raise TCloneError(f"vmrun revertToSnapshot {path_to_vm} told no address", code="internal")
        self._address = (path_to_vm, address)
        return path_to_vm

    def stop_emulator(self, path_to_vm: str, *_: Any, **__: Any) -> None:
        self._finish()
        self._address = None
        _vmrun("stop", path_to_vm)

    def _finish(self) -> None:
        """Wait until what was there before the last revert is gone; what went wrong with it is told now."""
        command, self._discarding = self._discarding, None
        if command is not None:
            _ended(command)


class TCloneManager(VMManager):
    """There is no pool of machines: each has its name."""

    def initialize_registry(self, **_: Any) -> None:
        """The engine knows its workspaces."""

    def add_vm(self, vm_path: str, *_: Any, **__: Any) -> None:
        """A path stays the machine's, whatever it was reverted to."""

    def delete_vm(self, vm_path: str, *_: Any, **__: Any) -> None:
        """As above."""

    def occupy_vm(self, vm_path: str, pid: int, *_: Any, **__: Any) -> None:
        """Whoever names a machine has it."""

    def list_free_vms(self, **_: Any) -> list[str]:
        return [line for line in _vmrun("list").splitlines() if line.startswith(_PREFIX)]

    def check_and_clean(self, **_: Any) -> None:
        """Nothing is left over: what a revert replaces is removed by it."""

    def get_vm_path(self, **_: Any) -> str:
        free = self.list_free_vms()
        if not free:
            raise NotFound("no desktop with an OSWorld server; `tclone run webtop-xfce --osworld --name desk` launches one", code="not_found")
        return free[0]


def environment(name: str, **options: Any) -> Any:
    """A DesktopEnv of the desktop `name`. `options` as DesktopEnv's, but for `provider_name` and `path_to_vm`.

    DesktopEnv looks its provider up by a list of names that has no place for others: for the moment of its making it gets this one by VMware's name.
    """
    from desktop_env import desktop_env as module

    before = module.create_vm_manager_and_provider
    module.create_vm_manager_and_provider = lambda *_, **__: (TCloneManager(), TCloneProvider())
    try:
        return module.DesktopEnv(provider_name="vmware", path_to_vm=_PREFIX + name, **options)
    finally:
        module.create_vm_manager_and_provider = before


def _vmrun(*arguments: str) -> str:
    """The output of a command. Raises TCloneError."""
    return _ended(_started(*arguments))


def _started(*arguments: str) -> subprocess.Popen[str]:
    command = [os.environ.get("TCLONE_COMMAND", "tclone"), "vmrun", *arguments]
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise Unavailable(f"cannot run {command[0]}: {error.strerror}; put `tclone` on PATH or name it by TCLONE_COMMAND", code="unavailable") from error


def _ended(command: subprocess.Popen[str]) -> str:
    out, err = command.communicate()
    if command.returncode != 0:
        raise TCloneError(err.strip() or f"{' '.join(map(str, command.args))} ended with status {command.returncode}", code="command")  # type: ignore[arg-type]
    return out.strip()
