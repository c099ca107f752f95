"""System calls that Python has no wrapper for: mounts by descriptor, namespaces, pidfds, safe path resolution, btrfs ioctls.

Every function raises OSError with the kernel's errno. Numbers are for x86-64 and arm64 (the new calls share theirs).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434
_SYS_OPENAT2 = 437
_SYS_PIDFD_GETFD = 438

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000

MS_REC = 0x4000
MS_SLAVE = 0x80000
MS_NOATIME = 0x400
MNT_DETACH = 2

FSMOUNT_CLOEXEC = 1
FSOPEN_CLOEXEC = 1
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
MOVE_MOUNT_F_EMPTY_PATH = 0x4
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

_BTRFS_IOC_SNAP_DESTROY = 0x5000940F
_BTRFS_IOC_SNAP_CREATE_V2 = 0x50009417
_BTRFS_IOC_SUBVOL_CREATE_V2 = 0x50009418
_BTRFS_SUBVOL_RDONLY = 1 << 1
_BTRFS_SUPER_MAGIC = 0x9123683E
_BTRFS_FIRST_FREE_OBJECTID = 256
_AT_FDCWD = -100
_OPENAT2_ATTEMPTS = 128


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(number: int, what: str, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments), what)


# Namespaces ------------------------------------------------------------------------------------------------------------


def unshare(flags: int) -> None:
    """Give the calling *thread* new namespaces (CLONE_NEWNS also stops it sharing cwd and root with its process)."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Move the calling thread into the namespace (or, for a pidfd, the namespaces) of `fd`."""
    _check(_libc.setns(fd, flags), "setns")


@contextlib.contextmanager
def namespace_of(fd: int, flag: int, name: str) -> Iterator[None]:
    """Run a block of the calling thread inside the namespace `fd`; `name` is its file under /proc/thread-self/ns."""
    own = os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(fd, flag)
        try:
            yield
        finally:
            setns(own, flag)
    finally:
        os.close(own)


def socket_in(netns_fd: int, family: int, kind: int) -> socket.socket:
    """A socket that belongs to the network namespace `netns_fd`, whoever connects or binds it later."""
    with namespace_of(netns_fd, CLONE_NEWNET, "net"):
        return socket.socket(family, kind | socket.SOCK_CLOEXEC)


def set_hostname_of(pid: int, hostname: str) -> None:
    """Set the host name in the UTS namespace of `pid`."""
    fd = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with namespace_of(fd, CLONE_NEWUTS, "uts"):
            socket.sethostname(hostname)
    finally:
        os.close(fd)


# Processes -------------------------------------------------------------------------------------------------------------


def pidfd_open(pid: int) -> int:
    """A close-on-exec pidfd; readable once the process has ended."""
    return os.pidfd_open(pid)


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd has ended, reaped or not."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def pidfd_send_signal(pidfd: int, signal_number: int) -> None:
    _call(_SYS_PIDFD_SEND_SIGNAL, "pidfd_send_signal", pidfd, signal_number, None, 0)


def pidfd_getfd(pidfd: int, fd: int) -> int:
    """A duplicate, in this process, of descriptor `fd` of the process behind `pidfd`."""
    return _call(_SYS_PIDFD_GETFD, "pidfd_getfd", pidfd, fd, 0)


def open_of_process(pid: int, started: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open /proc/PID/`name`, of the process that started at `started` and no later one with its pid. ProcessLookupError when it has gone."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", flags | os.O_CLOEXEC)
    except OSError as error:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended: {error.strerror}") from None
    try:
        if start_time(pid) == started:
            return fd
    except (OSError, ValueError, IndexError):
        pass
    os.close(fd)
    raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended")


def start_time(pid: int) -> int:
    """Start time of a process in clock ticks since boot; with the pid it names one process for ever."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The command name may hold anything, blanks and parentheses too: count from its closing one.
        return int(file.read(4096).rpartition(b")")[2].split()[19])


# Mounts ----------------------------------------------------------------------------------------------------------------


def mount(source: str, target: str, fstype: str | None, flags: int, data: str | None = None) -> None:
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            fstype.encode() if fstype else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount {source} on {target}",
    )


def umount(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def fsopen(fstype: str) -> int:
    return _call(_SYS_FSOPEN, f"fsopen {fstype}", fstype.encode(), FSOPEN_CLOEXEC)


def fsconfig_string(fs: int, key: str, value: str) -> None:
    """Set one option; the kernel takes at most 255 bytes of value."""
    _call(_SYS_FSCONFIG, f"fsconfig {key}={value}", fs, FSCONFIG_SET_STRING, key.encode(), os.fsencode(value), 0)


def fsconfig_create(fs: int) -> None:
    """Make the superblock; on failure the kernel's own explanation is added to the error."""
    try:
        _call(_SYS_FSCONFIG, "fsconfig create", fs, FSCONFIG_CMD_CREATE, None, None, 0)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({_fs_messages(fs)})") from None


def _fs_messages(fs: int) -> str:
    """What the file system said through its context descriptor (one message a read)."""
    messages = []
    while len(messages) < 16:
        try:
            messages.append(os.read(fs, 1024).decode(errors="replace").strip())
        except OSError:
            break
    return "; ".join(messages) or "no message from the kernel"


def fsmount(fs: int, attributes: int = 0) -> int:
    """A detached mount as a descriptor: visible nowhere until move_mount attaches it, gone when closed."""
    return _call(_SYS_FSMOUNT, "fsmount", fs, FSMOUNT_CLOEXEC, attributes)


def move_mount(mount_fd: int, target: str) -> None:
    """Attach a detached mount at `target` in the caller's mount namespace."""
    _call(
        _SYS_MOVE_MOUNT,
        f"move_mount to {target}",
        mount_fd,
        b"",
        _AT_FDCWD,
        os.fsencode(target),
        MOVE_MOUNT_F_EMPTY_PATH,
    )


def open_tree(path: str, clone: bool = False) -> int:
    """A descriptor of the mount at `path`; with `clone` a detached copy of it."""
    flags = OPEN_TREE_CLOEXEC | (OPEN_TREE_CLONE if clone else 0)
    return _call(_SYS_OPEN_TREE, f"open_tree {path}", _AT_FDCWD, os.fsencode(path), flags)


def syncfs(fd: int) -> None:
    """Write out the whole file system behind `fd` and wait for it."""
    _check(_libc.syncfs(fd), "syncfs")


# Paths inside a hostile tree --------------------------------------------------------------------------------------------


def openat2(dirfd: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """Open `path` below `dirfd` with the kernel holding the walk to `resolve` (RESOLVE_*).

    The kernel gives up with EAGAIN when a rename anywhere crosses a walk with `..` in it: then it is walked again.
    """
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    for _ in range(_OPENAT2_ATTEMPTS):
        with contextlib.suppress(BlockingIOError):
            return _call(_SYS_OPENAT2, f"openat2 {path}", dirfd, os.fsencode(path), ctypes.c_char_p(how), len(how))
    raise OSError(errno.EAGAIN, f"openat2 {path}: its directories are renamed all the time")


def open_dir_inside(root_fd: int, path: str, mode: int = 0o755) -> int:
    """Open directory `path` of the tree at `root_fd`, making what is missing; symlinks resolve inside the tree only.

    A last component that is made gets exactly `mode`, those before it 0755.
    """
    current = openat2(root_fd, ".", os.O_PATH | os.O_DIRECTORY, RESOLVE_IN_ROOT)
    walked = ""
    try:
        parts = Path(path.strip("/")).parts
        for number, part in enumerate(parts, 1):
            walked = f"{walked}/{part}"
            try:
                found = openat2(root_fd, walked, os.O_PATH | os.O_DIRECTORY, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=current)
                found = openat2(current, part, os.O_PATH | os.O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
                if number == len(parts) and mode != 0o755:
                    os.chmod(f"/proc/self/fd/{found}", mode)
            os.close(current)
            current = found
    except BaseException:
        os.close(current)
        raise
    return current


def write_file_inside(root_fd: int, path: str, content: bytes, mode: int = 0o644) -> None:
    """Replace file `path` of the tree at `root_fd`, never through a symlink, FIFO or hard link that lies at its name."""
    directory, _, name = path.strip("/").rpartition("/")
    parent = open_dir_inside(root_fd, directory)
    try:
        temporary = f".{name}.{os.urandom(6).hex()}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise
    finally:
        os.close(parent)


def open_regular_inside(root_fd: int, path: str) -> int:
    """Open regular file `path` for reading; anything else at that name (FIFO, device, symlink out) is an OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    # O_PATH first: opening a device or FIFO for reading can have effects before its type is known.
    probe = openat2(root_fd, path, os.O_PATH | os.O_NOFOLLOW, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    try:
        if not stat.S_ISREG(os.fstat(probe).st_mode):
            raise OSError(22, f"{path} is not a regular file")
        return os.open(f"/proc/self/fd/{probe}", flags & ~os.O_NOFOLLOW | os.O_CLOEXEC)
    finally:
        os.close(probe)


# btrfs -----------------------------------------------------------------------------------------------------------------


def is_btrfs(path: Path) -> bool:
    """Whether `path` lies on btrfs (by the file system's magic number)."""

    class _StatFs(ctypes.Structure):
        _fields_ = [("f_type", ctypes.c_long), ("rest", ctypes.c_byte * 248)]

    buffer = _StatFs()
    _check(_libc.statfs(os.fsencode(path), ctypes.byref(buffer)), f"statfs {path}")
    return buffer.f_type == _BTRFS_SUPER_MAGIC


def _volume_arguments(fd: int, flags: int, name: str) -> bytearray:
    """struct btrfs_ioctl_vol_args_v2: fd, transid, flags, unused[4], name[4040]."""
    return bytearray(struct.pack("qQQ32x4040s", fd, 0, flags, name.encode()))


def subvolume_create(parent_fd: int, name: str) -> None:
    fcntl.ioctl(parent_fd, _BTRFS_IOC_SUBVOL_CREATE_V2, _volume_arguments(0, 0, name))


def subvolume_snapshot(source_fd: int, parent_fd: int, name: str, read_only: bool = False) -> None:
    """Snapshot subvolume `source_fd` as `name` below `parent_fd`; dirty data of the source is flushed first."""
    flags = _BTRFS_SUBVOL_RDONLY if read_only else 0
    fcntl.ioctl(parent_fd, _BTRFS_IOC_SNAP_CREATE_V2, _volume_arguments(source_fd, flags, name))


def subvolume_destroy(parent_fd: int, name: str) -> None:
    """Unlink a subvolume; its blocks are freed in the background."""
    fcntl.ioctl(parent_fd, _BTRFS_IOC_SNAP_DESTROY, bytearray(struct.pack("q4088s", 0, name.encode())))


def is_subvolume(path: Path) -> bool:
    """Whether `path` is the root of a btrfs subvolume."""
    return is_btrfs(path) and path.lstat().st_ino == _BTRFS_FIRST_FREE_OBJECTID
