"""Is this host able to do what the engine does? Each check says what is wrong and what to do about it."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from engine import bundle, cgroups, syscalls
from engine.config import Config
from engine.hostlimits import INOTIFY_INSTANCES, MINIMUM_INOTIFY_INSTANCES

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_USERFAULTFD = 323 if os.uname().machine == "x86_64" else 282
_SYS_CLONE3 = 435
_SYS_PROCESS_VM_READV = 310 if os.uname().machine == "x86_64" else 270
_PAGEMAP_SCAN = 0xC0606610
_UFFD_USER_MODE_ONLY = 1
_MINIMUM_FREE = 5 << 30
_MINIMUM_MEMORY = 2 << 30
_MINIMUM_FILES = 4096
_OLDEST_KERNEL = (6, 7)  # PAGEMAP_SCAN
_CAPABILITIES_NEEDED = ("CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_CHECKPOINT_RESTORE", "CAP_MKNOD", "CAP_SYS_CHROOT")


@dataclass(frozen=True)
class Check:
    """One finding. `remedy` is empty when all is well."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def run_checks(config: Config) -> list[Check]:
    """All checks, in the order they matter. Blocks for some 50 ms; a check that itself fails is a failed check."""
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("kernel", _kernel),
        ("capabilities", _capabilities),
        ("PAGEMAP_SCAN", _pagemap_scan),
        ("userfaultfd", _userfaultfd),
        ("clone3 set_tid", _clone3),
        ("pidfd_getfd", _pidfd_getfd),
        ("process memory", _process_memory),
        ("mount API", _mount_api),
        ("control groups", _control_groups),
        ("crun", _crun),
        ("nftables", _nftables),
        ("pool", lambda: _pool(config)),
        ("native programs", lambda: _native(config)),
        ("memory", _memory),
        ("disk", lambda: _disk(config)),
        ("open files", _open_files),
        ("inotify", _inotify),
    ]
    results = []
    for name, check in checks:
        try:
            results.append(check())
        except Exception as error:  # noqa: BLE001 - one broken probe must not hide the other answers
            results.append(Check(name, False, f"the check itself failed: {error}", "report this as a defect"))
    return results


def _kernel() -> Check:
    release = os.uname().release
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    return Check("kernel", version >= _OLDEST_KERNEL, f"Linux {release}", _unless(version >= _OLDEST_KERNEL, "use Linux 6.7 or newer"))


def _capabilities() -> Check:
    held = bundle.host_capabilities()
    missing = [name for name in _CAPABILITIES_NEEDED if name not in held]
    detail = f"root lacks {', '.join(missing)}" if missing else f"root has {len(held)} capabilities"
    if not missing and "CAP_SYS_RESOURCE" not in held:
        detail += "; without CAP_SYS_RESOURCE: limits above this host's hard ones cannot be set"
    return Check("capabilities", not missing, detail, _unless(not missing, "run the engine outside a restricted container"))


def _pagemap_scan() -> Check:
    """An ioctl on /proc/self/pagemap with a null argument: EFAULT when the kernel knows it, ENOTTY when not."""
    fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        result = _libc.ioctl(fd, ctypes.c_ulong(_PAGEMAP_SCAN), None)
        known = result == 0 or ctypes.get_errno() in (errno.EFAULT, errno.EINVAL)
    finally:
        os.close(fd)
    return Check("PAGEMAP_SCAN", known, "available" if known else "missing", _unless(known, "use Linux 6.7 or newer"))


def _userfaultfd() -> Check:
    fd = _libc.syscall(ctypes.c_long(_SYS_USERFAULTFD), os.O_CLOEXEC | _UFFD_USER_MODE_ONLY)
    if fd >= 0:
        os.close(fd)
        return Check("userfaultfd", True, "available")
    reason = os.strerror(ctypes.get_errno())
    return Check("userfaultfd", False, reason, "use a kernel with CONFIG_USERFAULTFD; memory is copied more slowly without it")


def _clone3() -> Check:
    """A size of 0 is refused with EINVAL by a kernel that has clone3 (set_tid came with 5.5)."""
    result = _libc.syscall(ctypes.c_long(_SYS_CLONE3), None, ctypes.c_size_t(0))
    known = result < 0 and ctypes.get_errno() == errno.EINVAL
    detail = "available" if known else f"blocked: {os.strerror(ctypes.get_errno())}"
    return Check("clone3 set_tid", known, detail, _unless(known, "allow clone3 in the seccomp filter the engine runs under"))


def _pidfd_getfd() -> Check:
    pidfd = syscalls.pidfd_open(os.getpid())
    try:
        os.close(syscalls.pidfd_getfd(pidfd, pidfd))
        return Check("pidfd_getfd", True, "available")
    except OSError as error:
        return Check("pidfd_getfd", False, str(error), "allow ptrace of own processes (kernel.yama.ptrace_scope below 3)")
    finally:
        os.close(pidfd)


def _process_memory() -> Check:
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    value = int(scope.read_text()) if scope.exists() else 0
    return Check("process memory", value < 3, f"ptrace_scope {value}", _unless(value < 3, "boot with kernel.yama.ptrace_scope below 3"))


def _mount_api() -> Check:
    """An overlay context with the option that takes layers one by one."""
    context = syscalls.fsopen("overlay")
    try:
        syscalls.fsconfig_string(context, "lowerdir+", "/")
        return Check("mount API", True, "overlay by fsopen, layers one by one")
    except OSError:
        return Check("mount API", True, "overlay by fsopen, layers as one option (long chains will not fit)")
    finally:
        os.close(context)


def _control_groups() -> Check:
    layout = cgroups.layout()
    if layout == "none":
        return Check("control groups", False, "nothing is mounted at /sys/fs/cgroup", "mount cgroup2 at /sys/fs/cgroup")
    if layout == "v2":
        held = (cgroups.ROOT / "cgroup.controllers").read_text().split()
        missing = [name for name in ("memory", "pids", "cpu") if name not in held]
    else:
        missing = [name for name in ("memory", "pids") if not (cgroups.ROOT / name).is_dir()]
    detail = f"{layout}, without {', '.join(missing)}" if missing else layout
    return Check("control groups", not missing, detail, _unless(not missing, "enable these controllers on the kernel command line"))


def _crun() -> Check:
    path = shutil.which("crun")
    if path is None:
        return Check("crun", False, "not installed", "install the package crun")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=10)
    first, features = done.stdout.splitlines()[0], done.stdout
    missing = [name for name in ("SECCOMP", "CAP") if f"+{name}" not in features]
    return Check("crun", not missing, first, _unless(not missing, f"install a crun built with {', '.join(missing)}"))


def _nftables() -> Check:
    path = shutil.which("nft")
    if path is None:
        return Check("nftables", False, "nft is not installed", "install the package nftables")
    done = subprocess.run([path, "list", "tables"], capture_output=True, text=True, check=False, timeout=10)
    detail = "available" if done.returncode == 0 else done.stderr.strip()[:200]
    return Check("nftables", done.returncode == 0, detail, _unless(done.returncode == 0, "load the nf_tables module"))


def _pool(config: Config) -> Check:
    where = config.pool if config.pool.exists() else _existing(config.data)
    if syscalls.is_btrfs(where):
        return Check("pool", True, f"btrfs at {config.pool}")
    if shutil.which("mkfs.btrfs") and Path("/dev/loop-control").exists():
        return Check("pool", True, f"{config.data} is not btrfs; the engine keeps one in pool.img")
    return Check("pool", False, "no btrfs: every fork copies the files that changed", "install the package btrfs-progs")


def _native(config: Config) -> Check:
    missing = [name for name in ("tclone-init", "tclone-restore", "tclone-livefork") if not os.access(config.libexec / name, os.X_OK)]
    detail = f"missing in {config.libexec}: {', '.join(missing)}" if missing else str(config.libexec)
    if not missing and not (config.libexec / "libtclone-relay.so").exists():
        detail += "; without libtclone-relay.so, which needs the package libssl-dev, streams take more processor time"
    return Check("native programs", not missing, detail, _unless(not missing, "build them: make -C native"))


def _memory() -> Check:
    memory = psutil.virtual_memory()
    enough = memory.available >= _MINIMUM_MEMORY
    detail = f"{memory.available >> 20} MiB of {memory.total >> 20} MiB available"
    return Check("memory", enough, detail, _unless(enough, "a desktop needs about 1 GiB, each fork as much as it copies: free some"))


def _disk(config: Config) -> Check:
    free = shutil.disk_usage(_existing(config.data)).free
    enough = free >= _MINIMUM_FREE
    return Check("disk", enough, f"{free >> 30} GiB free at {config.data}", _unless(enough, "free at least 5 GiB or set TCLONE_DATA"))


def _open_files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= _MINIMUM_FILES
    return Check("open files", enough, f"hard limit {hard}", _unless(enough, "raise LimitNOFILE of the engine's service to 65536"))


def _inotify() -> Check:
    """A desktop holds some ten inotify instances, and the limit counts all workspaces of one uid on the host together."""
    instances = int(INOTIFY_INSTANCES.read_text())
    enough = instances >= MINIMUM_INOTIFY_INSTANCES
    remedy = f"sysctl fs.inotify.max_user_instances={MINIMUM_INOTIFY_INSTANCES} (and keep it in /etc/sysctl.d): some ten desktops exhaust less"
    return Check("inotify", enough, f"{instances} instances for each user", _unless(enough, remedy))


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _unless(ok: bool, remedy: str) -> str:
    return "" if ok else remedy
