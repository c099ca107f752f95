"""The image store: images in the pool, their archives in the cache.

pool/images/<digest>/{rootfs/,image.json}   an image; the folder appears complete, by rename
pool/images/.build-<name>-<random>/         a build or import under way, or what a killed one left
pool/images/.trash-<random>/                being removed
cache/<digest>.{tar.zst,json}               the archive that refills a lost pool; the .json comes last and makes it valid
cache/locks/<name>.lock                     flock, held while an image of that name is made; the kernel drops it when the holder dies. A name has
                                            one maker at a time, and so has a digest: the name is part of what it is made of
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import struct
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import syscalls
from engine.config import Config
from engine.errors import Conflict, Internal, NotFound
from engine.image_process import run_confined
from engine.image_recipe import valid_name

# (phase, detail, milliseconds since the operation began)
Progress = Callable[[str, str, float], None]

_BTRFS_IOC_SUBVOL_SETFLAGS = 0x4008941A
_BTRFS_SUBVOL_RDONLY = 2
_LOCK_POLL_SECONDS = 0.2
_SHORTEST_DIGEST = 6
# A fetched package is kept so long (by ctime: apt sets the modification time to the mirror's).
_PACKAGE_CACHE_SECONDS = 60 * 86400


class ProgressClock:
    """Calls a Progress with the time since it was made."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._start = time.monotonic()

    def __call__(self, phase: str, detail: str) -> None:
        self._progress(phase, detail, (time.monotonic() - self._start) * 1000)


@dataclass(frozen=True)
class Image:
    """What image.json says. `size` is in bytes on disk, `created` in seconds since the epoch."""

    name: str
    digest: str
    created: float
    size: int
    entrypoint: list[str]
    env: dict[str, str]
    workdir: str
    desktop: dict[str, Any] | None
    ports: list[int]

    @property
    def session(self) -> dict[str, str]:
        """What programs of its desktop find in their environment, beside `env`."""
        return dict((self.desktop or {}).get("env", {}))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Image":
        """Raises KeyError when a field is missing; unknown ones are ignored, a newer engine may have written them."""
        return cls(**{field.name: data[field.name] for field in dataclasses.fields(cls)})


class ImageStore:
    """The images of one engine. Synchronous methods block for as long as the disk takes: call them from a worker thread."""

    def __init__(self, config: Config) -> None:
        self.cache = config.cache
        self.images = config.pool / "images"

    # Reading

    def list(self) -> list[Image]:
        """All images in the pool, newest first."""
        found = []
        for path in self.images.glob("[!.]*/image.json"):
            with contextlib.suppress(FileNotFoundError):
                found.append(_read(path))
        return sorted(found, key=lambda image: image.created, reverse=True)

    def get(self, ref: str) -> Image:
        """The image of that digest, the newest of that name, or the only one whose digest starts so. Raises NotFound, Conflict."""
        images = self.list()
        for image in images:
            if ref in (image.digest, image.name):
                return image
        matching = [image for image in images if len(ref) >= _SHORTEST_DIGEST and image.digest.startswith(ref)]
        if len(matching) > 1:
            raise Conflict(f"{ref} stands for {len(matching)} images; give more digits")
        if not matching:
            raise NotFound(f"no image {ref}; `tclone image ls` lists them, `tclone image build NAME` makes one")
        return matching[0]

    def has(self, digest: str) -> bool:
        return (self.images / digest / "image.json").is_file()

    def rootfs(self, digest: str) -> Path:
        """The read-only lowest layer of workspaces made from the image."""
        return self.images / digest / "rootfs"

    def artefact(self, digest: str) -> Path:
        """The description beside the archive: the archive is complete when this exists."""
        return self.cache / f"{digest}.json"

    # Locks and leftovers

    @contextlib.asynccontextmanager
    async def lock(self, name: str, clock: ProgressClock | None = None) -> AsyncIterator[None]:
        """Hold the right to make images called `name`, over all tasks and processes; says `wait` when another has it."""
        async with self._locked(f"{valid_name(name)}.lock", f"another build of {name} is under way", clock):
            yield

    @contextlib.asynccontextmanager
    async def lock_packages(self, clock: ProgressClock) -> AsyncIterator[Path]:
        """Hold the cache of fetched packages, which apt wants for itself alone; answers its folder."""
        folder = self.cache / "debs"
        async with self._locked("packages", "another image is being installed", clock):
            (folder / "partial").mkdir(parents=True, exist_ok=True)
            yield folder

    @contextlib.asynccontextmanager
    async def _locked(self, name: str, reason: str, clock: ProgressClock | None) -> AsyncIterator[None]:
        fd = self._lock_file(name)
        try:
            told = False
            while not _try_lock(fd):
                if not told and clock is not None:
                    clock("wait", reason)
                told = True
                await asyncio.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(fd)

    def _lock_file(self, name: str) -> int:
        folder = self.cache / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def clean(self, name: str) -> None:
        """Remove what killed builds of `name` left. The caller holds the lock of that name."""
        for path in self.images.glob(f".build-{name}-*"):
            # The random part has no dash: `.build-a-b-…` belongs to image a-b, not to a.
            if path.name.rpartition("-")[0] == f".build-{name}":
                self.discard(path)
        for path in self.images.glob(".trash-*"):
            _remove_image_folder(path)
        for path in self.cache.glob(".*.partial"):
            if _partial_owner(path) == name:
                path.unlink(missing_ok=True)
        for path in (self.cache / "wheels").glob(f".{name}.*"):
            shutil.rmtree(path, ignore_errors=True)
        oldest = time.time() - _PACKAGE_CACHE_SECONDS
        for path in (self.cache / "debs").glob("*.deb"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ctime < oldest:
                    path.unlink()

    async def clean_all(self) -> None:
        """At engine start: remove the leftovers of every build whose builder is dead."""
        names = {path.name.removeprefix(".build-").rpartition("-")[0] for path in self.images.glob(".build-*")}
        names |= {_partial_owner(path) for path in self.cache.glob(".*.partial")}
        for name in sorted(names):
            fd = self._lock_file(f"{valid_name(name)}.lock")
            try:
                if _try_lock(fd):
                    await asyncio.to_thread(self.clean, name)
            finally:
                os.close(fd)

    # Making images

    def new_stage(self, name: str) -> Path:
        """An empty folder in the pool with a `rootfs`, a subvolume where there are any."""
        self.images.mkdir(parents=True, exist_ok=True)
        stage = self.images / f".build-{name}-{secrets.token_hex(6)}"
        stage.mkdir(mode=0o700)
        if syscalls.is_btrfs(stage):
            fd = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                syscalls.subvolume_create(fd, "rootfs")
            finally:
                os.close(fd)
        else:
            (stage / "rootfs").mkdir()
        (stage / "rootfs").chmod(0o755)
        return stage

    def describe(self, stage: Path, name: str, digest: str, settings: dict[str, Any]) -> Image:
        """Write the stage's image.json; `settings` has entrypoint, env, workdir, desktop and ports."""
        image = Image(name=name, digest=digest, created=time.time(), size=_disk_usage(stage / "rootfs"), **settings)
        _write_json(stage / "image.json", image.to_json())
        return image

    def publish(self, stage: Path, digest: str) -> Image:
        """Turn a complete stage into the image: everything on disk first, then one rename."""
        for path in stage.iterdir():
            if path.name not in ("rootfs", "image.json"):
                path.unlink() if not path.is_dir() else shutil.rmtree(path)
        fd = os.open(stage / "rootfs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            syscalls.syncfs(fd)
            if syscalls.is_subvolume(stage / "rootfs"):
                fcntl.ioctl(fd, _BTRFS_IOC_SUBVOL_SETFLAGS, struct.pack("Q", _BTRFS_SUBVOL_RDONLY))
        finally:
            os.close(fd)
        stage.chmod(0o755)
        with contextlib.suppress(FileExistsError):
            # A digest has one name in it, whose lock is held. Whoever made it all the same, without the cache's locks, made the same.
            _rename_new(stage, self.images / digest)
        return _read(self.images / digest / "image.json")

    def discard(self, stage: Path) -> None:
        """Remove a stage, if it still is there."""
        if stage.exists():
            _remove_image_folder(stage)

    # The cache

    def partial_artefact(self, name: str) -> Path:
        """Where an archive of image `name` is written until it is complete."""
        self.cache.mkdir(parents=True, exist_ok=True)
        return self.cache / f".{name}.{secrets.token_hex(4)}.partial"

    def keep_artefact(self, image: Image, partial: Path) -> None:
        """Make a complete archive the image's."""
        fd = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        partial.rename(self.cache / f"{image.digest}.tar.zst")
        _write_json(self.artefact(image.digest), image.to_json())

    def forget_artefact(self, digest: str) -> None:
        self.artefact(digest).unlink(missing_ok=True)
        (self.cache / f"{digest}.tar.zst").unlink(missing_ok=True)

    async def restore(self, digest: str, clock: ProgressClock) -> Image:
        """Refill the pool from the cache; the caller holds the image's lock. Raises Internal for an unusable archive, NoSpace."""
        image = await asyncio.to_thread(_read, self.artefact(digest))
        clock("import", f"{image.name} from the cache")
        stage = await asyncio.to_thread(self.new_stage, image.name)
        try:
            # The engine made this archive itself, so tar may trust it; others go through engine.image_import.
            await run_confined(
                ["tar", "--extract", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--use-compress-program=zstd",
                 "--file", str(self.cache / f"{digest}.tar.zst"), "--directory", str(stage / "rootfs")],
                f"unpacking image {image.name} from the cache",
                network=False,
            )  # fmt: skip
            await asyncio.to_thread(_write_json, stage / "image.json", image.to_json())
            return await asyncio.to_thread(self.publish, stage, digest)
        finally:
            await asyncio.to_thread(self.discard, stage)

    # Removing

    async def remove(self, ref: str, in_use: Collection[str] = ()) -> list[Image]:
        """Remove an image by digest, or all images of a name, from pool and cache. `in_use`: digests that workspaces stand on.

        Answers the removed images. Raises NotFound; Conflict when one of them is in use (then none is removed).
        """
        first = await asyncio.to_thread(self.get, ref)
        images = [first]
        if ref == first.name:
            images = [image for image in await asyncio.to_thread(self.list) if image.name == ref]
        used = [image for image in images if image.digest in in_use]
        if used:
            raise Conflict(f"image {used[0].name} ({used[0].digest[:12]}) is in use; remove its workspaces first (`tclone ls`)")
        async with self.lock(first.name):
            for image in images:
                await asyncio.to_thread(self._remove, image)
        return images

    def _remove(self, image: Image) -> None:
        self.forget_artefact(image.digest)
        trash = self.images / f".trash-{secrets.token_hex(6)}"
        with contextlib.suppress(FileNotFoundError):
            (self.images / image.digest).rename(trash)
            _remove_image_folder(trash)


def _partial_owner(path: Path) -> str:
    """The image name in `.<name>.<random>.partial`."""
    return path.name.removesuffix(".partial").rpartition(".")[0][1:]


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> Image:
    try:
        return Image.from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise Internal(f"{path} is damaged ({error}); remove its folder and build the image again") from None


def _write_json(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(partial, "w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def _rename_new(source: Path, target: Path) -> None:
    """Rename a folder; raises FileExistsError when there is one already (rename(2) would say ENOTEMPTY)."""
    if target.exists():
        raise FileExistsError(target)
    source.rename(target)


def _disk_usage(root: Path) -> int:
    """Bytes allocated below `root`, each hard-linked file counted once."""
    seen: set[int] = set()
    total = 0
    pending = [os.fspath(root)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif status.st_nlink > 1:
                    if status.st_ino in seen:
                        continue
                    seen.add(status.st_ino)
                total += status.st_blocks * 512
    return total


def _remove_image_folder(path: Path) -> None:
    root = path / "rootfs"
    if root.is_dir() and syscalls.is_btrfs(root) and syscalls.is_subvolume(root):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Two cleanings may meet at one folder.
            with contextlib.suppress(FileNotFoundError):
                syscalls.subvolume_destroy(fd, "rootfs")
        finally:
            os.close(fd)
    shutil.rmtree(path, ignore_errors=True)
