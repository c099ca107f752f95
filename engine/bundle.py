"""OCI configurations: of a source, of the container in which a branch is rebuilt, and of a command run in either."""

from __future__ import annotations

import functools
import json
import os
import resource
import stat
from pathlib import Path
from typing import Any

# What Docker gives a container. NET_BIND_SERVICE, SETUID … let ordinary images start their services; nothing here reaches the host.
CAPABILITIES = (
    "CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
)  # fmt: skip

# In the order of their numbers (linux/capability.h).
_ALL_CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
    "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
    "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD",
    "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
    "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
)  # fmt: skip
_CAPABILITY_SETS = ("bounding", "effective", "permitted")

_MASKED_PATHS = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
    "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
)  # fmt: skip
_READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

# null, zero, full, random, urandom, tty, ptmx, terminals; and two that a program can do no more with than its own namespaces allow:
# tun, fuse. None: every one.
_DEVICES = ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None), (10, 200), (10, 229))

_ENOSYS, _EPERM = 38, 1
# io_uring state cannot be captured from outside; programs that probe for it fall back when told it does not exist. Keyrings belong to a user
# id of the whole host: two workspaces' roots would share one with each other and with the host's root. The kernel's log tells of the host.
# crun allows the host's console (character device 5:1) whatever the rules for devices say, so no node of it can be made. The kernel looks at 16 bits of a
# mode and 32 of a device's number alone, which the masks heed.
_CONSOLE = os.makedev(5, 1)


def _no_console(name: str, mode: int) -> dict[str, Any]:
    """A rule for a system call whose argument `mode` is a mode, and the next one a device."""
    kind = {"index": mode, "value": stat.S_IFMT(0xFFFF), "valueTwo": stat.S_IFCHR, "op": "SCMP_CMP_MASKED_EQ"}
    device = {"index": mode + 1, "value": 0xFFFFFFFF, "valueTwo": _CONSOLE, "op": "SCMP_CMP_MASKED_EQ"}
    return {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM, "args": [kind, device]}


_SECCOMP: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    "syscalls": [
        {
            "names": ["io_uring_setup", "io_uring_enter", "io_uring_register"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": _ENOSYS,
        },
        {"names": ["add_key", "keyctl", "request_key", "syslog"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
        _no_console("mknod", 1),
        _no_console("mknodat", 2),
    ],
}
_NOFILE = 65536
# Docker gives 64 MiB, with which browsers end at their second heavy page.
DEFAULT_SHM = 1 << 30
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INIT = "/usr/libexec/tclone/init"
RESTORE = "/usr/libexec/tclone/restore"


def _mounts(shm: int) -> list[dict[str, Any]]:
    """The mounts of every workspace; a branch must have the same ones in the same order. `shm`: the size of /dev/shm, in bytes."""

    def entry(where: str, kind: str, *options: str) -> dict[str, Any]:
        return {"destination": where, "type": kind, "source": kind, "options": list(options)}

    return [
        entry("/proc", "proc", "nosuid", "noexec", "nodev"),
        entry("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        entry("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        # What is stored here counts against the workspace's memory limit, and every fork copies it.
        entry("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", f"size={shm}"),
        entry("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        entry("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
    ]


def rlimits() -> list[dict[str, Any]]:
    """Open files: never above the host's hard limit, which may not be raised without CAP_SYS_RESOURCE."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _NOFILE if hard == resource.RLIM_INFINITY else min(_NOFILE, hard)
    return [{"type": "RLIMIT_NOFILE", "hard": most, "soft": min(most, 1024 * 16)}]


@functools.cache
def host_capabilities() -> tuple[str, ...]:
    """What root has on this host: a container cannot be given more (a virtual machine may lack CAP_SYS_RESOURCE)."""
    status = Path("/proc/self/status").read_text()
    bounding = int(status.partition("CapBnd:")[2].split()[0], 16)
    return tuple(name for number, name in enumerate(_ALL_CAPABILITIES) if bounding >> number & 1)


def capability_sets(names: tuple[str, ...]) -> dict[str, list[str]]:
    allowed = host_capabilities()
    return {kind: [name for name in names if name in allowed] for kind in _CAPABILITY_SETS}


def _device_rules() -> list[dict[str, Any]]:
    """Without them a root that may make device nodes opens the host's disks. Nodes may be made of any device, opened of these alone."""
    rules: list[dict[str, Any]] = [{"allow": False, "access": "rwm"}]
    rules += [{"allow": True, "type": kind, "access": "m"} for kind in ("c", "b")]
    for major, minor in _DEVICES:
        numbers = {"major": major} if minor is None else {"major": major, "minor": minor}
        rules.append({"allow": True, "type": "c", **numbers, "access": "rwm"})
    return rules


def _config(
    process: dict[str, Any], root: str, read_only: bool, hostname: str, netns: str, cgroup: str, shm: int
) -> dict[str, Any]:
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "cgroup")]
    namespaces.append({"type": "network", "path": netns})
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": root, "readonly": read_only},
        "hostname": hostname,
        "mounts": _mounts(shm),
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": cgroup,
            # Limits are those of the group above this one (engine/cgroups.py): this one the workspace may change. Not so its devices, which
            # only the host's root can allow, and nobody below less strictly than above.
            "resources": {"devices": _device_rules()},
            "seccomp": _SECCOMP,
            "maskedPaths": list(_MASKED_PATHS),
            "readonlyPaths": list(_READONLY_PATHS),
        },
    }


def source_config(
    root: str, command: list[str], env: dict[str, str], workdir: str, hostname: str, netns: str, cgroup: str, shm: int = DEFAULT_SHM
) -> dict[str, Any]:
    """A workspace launched from an image: the small init, which starts `command`. `shm`: the size of /dev/shm, in bytes."""
    process = {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": [INIT, "--", *command],
        "env": [f"{key}={value}" for key, value in env.items()],
        "cwd": workdir or "/",
        "capabilities": capability_sets(CAPABILITIES),
        "rlimits": rlimits(),
        "noNewPrivileges": False,
    }
    return _config(process, root, False, hostname, netns, cgroup, shm)


def stage_config(root: str, netns: str, cgroup: str) -> dict[str, Any]:
    """The container in which a branch is rebuilt: the restorer alone, on the read-only stage root.

    The restorer mounts, makes processes with chosen pids and gives each its credentials, for which it has all capabilities;
    the rebuilt processes hold exactly what their originals held.
    """
    process = {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": [RESTORE],
        "env": [f"PATH={DEFAULT_PATH}"],
        "cwd": "/",
        "capabilities": capability_sets(host_capabilities()),
        "rlimits": rlimits(),
        "noNewPrivileges": False,
    }
    return _config(process, root, True, "tclone", netns, cgroup, DEFAULT_SHM)  # a fork makes it as large as the source's


def in_terminal(argv: list[str]) -> list[str]:
    """The command, started when its terminal has got its size: crun 1.8 takes no heed of `consoleSize` for commands."""
    return [INIT, "--in-terminal", *argv]


def exec_process(
    argv: list[str], env: dict[str, str], cwd: str, uid: int, gid: int, groups: list[int], tty: bool
) -> dict[str, Any]:
    """The OCI `process` of a command run in a workspace; it never has more than a source's own processes have."""
    sets = capability_sets(CAPABILITIES)
    if uid != 0:
        # As the kernel does it for a change from root to a user: nothing effective, the bounding set stays for setuid programs.
        sets["effective"] = []
        sets["permitted"] = []
    return {
        "terminal": tty,
        "user": {"uid": uid, "gid": gid, "additionalGids": groups},
        "args": argv,
        "env": [f"{key}={value}" for key, value in env.items()],
        "cwd": cwd,
        "capabilities": sets,
        "rlimits": rlimits(),
        "noNewPrivileges": False,
    }


def write_config(bundle: Path, config: dict[str, Any]) -> None:
    bundle.mkdir(parents=True, exist_ok=True)
    (bundle / "config.json").write_text(json.dumps(config))
