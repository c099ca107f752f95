"""The pool: the one file system that holds image layers and each workspace's writable layer.

A pool is btrfs wherever possible, because a fork's snapshot of the upper lies inside the source's pause: 0.8-2 ms by
BTRFS_IOC_SNAP_CREATE_V2 after a syncfs, against a walk of the whole tree with any other file system.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import subprocess
from pathlib import Path

from engine import quota, syscalls
from engine.errors import Internal, NoSpace, Unavailable, Unsupported

log = logging.getLogger(__name__)

# `nobarrier` halves the snapshot (2.0 -> 1.1 ms median of 12, loop file on ext4): no cache flush of the backing disk in
# each commit. What a power failure may cost is the pool itself: the workspaces in it are running processes that die with
# the power anyway, and images are imported again from cache/. state.db is not in the pool.
_MOUNT_OPTIONS = "nobarrier"
_MINIMUM_LOOP_BYTES = 2 << 30
_LOOP_SHARE_OF_FREE = 0.8


class Storage:
    """Where layers live. All methods block: call them from a worker thread. Errors: NoSpace, Internal."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.pool = data / "pool"
        self.image = data / "pool.img"
        self.snapshots = False

    # Opening and closing

    def open(self) -> None:
        """Make the pool usable: find it mounted, mount it, or create it. Raises Unavailable when nothing works."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.pool.mkdir(exist_ok=True)
        if syscalls.is_btrfs(self.pool):
            self.snapshots = True
        elif shutil.which("mkfs.btrfs") and shutil.which("losetup"):
            self._mount_loop()
            self.snapshots = True
        else:
            log.warning("mkfs.btrfs or losetup is missing: forks copy the upper file by file; install btrfs-progs")
        for name in ("images", "tools", "workspaces", "stage"):
            (self.pool / name).mkdir(exist_ok=True)
        # The workspace layers hold other users' files: nobody but root may walk into them by the host's path.
        os.chmod(self.pool, 0o700)

    def _mount_loop(self) -> None:
        fresh = not self.image.exists()
        if fresh:
            free = shutil.disk_usage(self.data).free
            size = int(free * _LOOP_SHARE_OF_FREE)
            if size < _MINIMUM_LOOP_BYTES:
                raise NoSpace(f"{self.data} has {free >> 20} MiB free; the pool needs at least 2.5 GiB: free some space")
            self._make_image(size)
        device = self._loop_device()
        try:
            syscalls.mount(device, str(self.pool), "btrfs", syscalls.MS_NOATIME, _MOUNT_OPTIONS)
        except OSError as error:
            _run("losetup", "-d", device)
            raise Unavailable(f"cannot mount the pool {self.image}: {error.strerror}; see `dmesg`") from error
        # Autoclear: the kernel frees the loop device with the last mount, also when the engine is no longer there.
        with contextlib.suppress(Internal):
            _run("losetup", "-d", device)

    def _make_image(self, size: int) -> None:
        """Make pool.img under another name first, so that an interrupted mkfs is never taken for a pool."""
        partial = self.image.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        fd = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)
        # One copy of the metadata: a second one on the same sparse file doubles the writes of each snapshot for nothing.
        _run("mkfs.btrfs", "-q", "-f", "-m", "single", "-d", "single", "-L", "tclone", str(partial))
        partial.rename(self.image)

    def _loop_device(self) -> str:
        """A loop device of pool.img: one left by an earlier engine, else a new one. Direct I/O, so that no page is cached twice."""
        for line in _run("losetup", "-j", str(self.image)).splitlines():
            return line.split(":", 1)[0]
        try:
            return _run("losetup", "--find", "--show", "--direct-io=on", str(self.image)).strip()
        except Internal:
            return _run("losetup", "--find", "--show", str(self.image)).strip()

    def close(self) -> None:
        """Unmount the loop pool (workspaces still running keep their own reference); never fails."""
        if not os.path.ismount(self.pool):
            return
        try:
            # Waits until all is written and the loop device is free; a lazy unmount would leave that for some time after.
            syscalls.umount(str(self.pool))
        except OSError:
            with contextlib.suppress(OSError):
                syscalls.umount(str(self.pool), syscalls.MNT_DETACH)
        # Private mount namespaces made while the pool was mounted (another engine's crun threads, an image's builder) hold
        # copies of the mount, and with them the loop device. The kernel detaches those, too, when the mount point goes.
        with contextlib.suppress(OSError):
            self.pool.rmdir()

    # Workspace layers

    def layer(self, workspace: str) -> Path:
        """The directory that holds `upper` and `work` of a workspace."""
        return self.pool / "workspaces" / workspace

    def layers(self) -> list[str]:
        """Names of all workspace layers that exist."""
        return sorted(entry.name for entry in os.scandir(self.pool / "workspaces"))

    def create_layer(self, workspace: str) -> Path:
        """An empty writable layer for a source."""
        path = self.layer(workspace)
        with _no_space(workspace):
            if self.snapshots:
                with _directory(path.parent) as parent:
                    syscalls.subvolume_create(parent, workspace)
            else:
                path.mkdir()
            (path / "upper").mkdir(mode=0o755)
            (path / "work").mkdir(mode=0o755)
        return path

    def snapshot_layer(self, source: str, branch: str) -> Path:
        """A writable copy of the source's layer as it is now: one ioctl on btrfs, a copy elsewhere."""
        path = self.layer(branch)
        with _no_space(branch):
            if self.snapshots:
                with _directory(path.parent) as parent, _directory(self.layer(source)) as source_fd:
                    syscalls.subvolume_snapshot(source_fd, parent, branch)
            else:
                _run("cp", "-a", "--reflink=auto", "--sparse=always", str(self.layer(source)), str(path))
        return path

    def limit_layer(self, workspace: str, size: int) -> None:
        """Let a workspace write at most `size` bytes into its layer. Raises Unsupported, which says what is missing."""
        if not self.snapshots:
            raise Unsupported("a disk limit needs a pool on btrfs: install btrfs-progs, or give none")
        with _directory(self.layer(workspace)) as fd:
            quota.limit(fd, size, may_turn_on=self.image.exists())

    def counted(self, workspace: str) -> int | None:
        """Bytes that count against a workspace's limit, up to 30 s old; None when nothing counts them."""
        if not self.snapshots:
            return None
        with contextlib.suppress(FileNotFoundError), _directory(self.layer(workspace)) as fd:
            return quota.use(fd)
        return None

    def remove_layer(self, workspace: str) -> None:
        """Delete a workspace's layer; a missing one is no error."""
        path = self.layer(workspace)
        if not path.exists():
            return
        if self.snapshots and syscalls.is_subvolume(path):
            with _directory(path.parent) as parent:
                syscalls.subvolume_destroy(parent, workspace)
        else:
            shutil.rmtree(path)

    def sync(self) -> None:
        """Write all dirty data of the pool out, so that a snapshot soon after has little left to flush."""
        with _directory(self.pool) as fd:
            syscalls.syncfs(fd)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.pool).free


@contextlib.contextmanager
def _directory(path: Path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _no_space(workspace: str):
    """Turn a full disk into the error a user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"no space left in the pool for {workspace}; remove workspaces or images") from error
        raise Internal(f"layer of {workspace}: {error}") from error


def _run(*argv: str) -> str:
    """Run a host tool to its end; its stderr becomes the error."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = done.stderr.strip()
        if "No space left" in message:
            raise NoSpace(f"{argv[0]}: {message}")
        raise Internal(f"{' '.join(argv[:2])} failed: {message or done.returncode}")
    return done.stdout
