"""A provider for OSWorld's DesktopEnv that forks: without the pauses, and with the errors, that its VMware provider has.

    from tclone.osworld import environment

    env = environment("desk", action_space="pyautogui")

Needs desktop-env and the command `tclone` (`TCLONE_COMMAND` names another one), and none of the packages that the portal or the SDK's other classes need.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import Any

from desktop_env.providers.base import Provider, VMManager

from tclone.errors import NotFound, Unavailable, of_wire

_PREFIX = "/branches/"


class Machines:
    """Commands of `tclone vmrun`, all by one process, whose start takes longer than most of them. It ends with this object, or with the program. Raises TCloneError."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._asked = 0

    def __call__(self, *words: str) -> str:
        """What a command says."""
        process = self._process or self._started()
        self._asked += 1
        answer: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            self._write(process, {"number": self._asked, "words": words})
            # What was asked before, by a caller who was interrupted, nobody waits for any more.
            while answer.get("number") != self._asked:
                answer = json.loads(self._read(process))
        if answer.get("number") != self._asked:
            self.close()
            raise Unavailable(f"{_command()} vmrun session ended with status {process.returncode}; what it said is on stderr", code="unavailable")
        if "error" in answer:
            raise of_wire(answer["error"])
        return str(answer["output"])

    def close(self) -> None:
        """Until everything is done, what a revert left included."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.communicate()

    def _started(self) -> subprocess.Popen[str]:
        command = [_command(), "vmrun", "session"]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise Unavailable(f"cannot run {command[0]}: {error.strerror}; put `tclone` on PATH or name it by TCLONE_COMMAND", code="unavailable") from error
        return self._process

    @staticmethod
    def _write(process: subprocess.Popen[str], command: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()


class TCloneProvider(Provider):
    """Machines are desktops by their paths, /branches/NAME; their snapshots are forks (docs/reference/osworld.md). Raises TCloneError."""

    def __init__(self, *positional: Any, machines: Machines | None = None, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._machines = machines or Machines()
        # The address of a machine that was just reverted, until it is asked for.
        self._address: tuple[str, str] | None = None

    def start_emulator(self, path_to_vm: str, headless: bool = True, os_type: str = "Ubuntu") -> None:
        if self._address is not None and self._address[0] == path_to_vm:
            return
        if path_to_vm not in self._machines("list").splitlines():
            self._machines("start", path_to_vm)

    def get_ip_address(self, path_to_vm: str) -> str:
        known, self._address = self._address, None
        if known is not None and known[0] == path_to_vm:
            return known[1]
        return self._machines("getGuestIPAddress", path_to_vm, "-wait")

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        self._machines("snapshot", path_to_vm, snapshot_name)

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """Returns as soon as the machine answers; what it was before is discarded a moment later."""
        self._address = None
        self._address = (path_to_vm, self._machines("revertToSnapshot", path_to_vm, snapshot_name, "-wait"))
        return path_to_vm

    def stop_emulator(self, path_to_vm: str, *_: Any, **__: Any) -> None:
        self._address = None
        try:
            self._machines("stop", path_to_vm)
        finally:
            self._machines.close()


class TCloneManager(VMManager):
    """There is no pool of machines: each has its name."""

    def __init__(self, machines: Machines | None = None) -> None:
        self._machines = machines or Machines()

    def initialize_registry(self, **_: Any) -> None:
        """The engine knows its workspaces."""

    def add_vm(self, vm_path: str, *_: Any, **__: Any) -> None:
        """A path stays the machine's, whatever it was reverted to."""

    def delete_vm(self, vm_path: str, *_: Any, **__: Any) -> None:
        """As above."""

    def occupy_vm(self, vm_path: str, pid: int, *_: Any, **__: Any) -> None:
        """Whoever names a machine has it."""

    def list_free_vms(self, **_: Any) -> list[str]:
        return [line for line in self._machines("list").splitlines() if line.startswith(_PREFIX)]

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
    machines = Machines()
    module.create_vm_manager_and_provider = lambda *_, **__: (TCloneManager(machines), TCloneProvider(machines=machines))
    try:
        return module.DesktopEnv(provider_name="vmware", path_to_vm=_PREFIX + name, **options)
    finally:
        module.create_vm_manager_and_provider = before


def _command() -> str:
    return os.environ.get("TCLONE_COMMAND", "tclone")
