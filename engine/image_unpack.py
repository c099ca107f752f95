"""Unpack one hostile tar stream into a directory. Run as a process of its own: `python image_unpack.py DIRECTORY LIMITS`.

The process changes its root to the directory before it reads the first header, so that no name, link or symbolic link in
the archive can reach anything else. The uncompressed stream is its standard input; one JSON object on standard output
says what was made, or what was wrong. It imports nothing of the engine: it must be complete before it changes its root.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import stat
import sys
import tarfile
from dataclasses import asdict, dataclass, field
from typing import BinaryIO

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_COPY_BYTES = 1 << 20
# tarfile reads long names and pax headers whole, whatever length they claim.
_MEMORY_BYTES = 2 << 30
# The rest decide for the kernel or the overlay what a file is (`trusted.overlay.*` redirects): not an image's to say.
_ALLOWED_ATTRIBUTES = ("user.", "security.capability")
_PAX_ATTRIBUTE = "SCHILY.xattr."


class BadArchive(Exception):
    """The archive is malformed or hostile; the message names the entry."""


@dataclass(frozen=True)
class Limits:
    """The most that one archive may make: entries, and bytes of file content."""

    entries: int = 1_000_000
    bytes: int = 64 << 30


@dataclass
class Result:
    entries: int = 0
    bytes: int = 0
    skipped: list[str] = field(default_factory=list)


def clean_name(name: str) -> str:
    """A member's path relative to the root, without `.` and empty parts. Raises BadArchive for `..` and impossible names."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name or any(len(os.fsencode(part)) > 255 for part in parts):
        raise BadArchive(f"entry {name[:200]!r} leaves the root or has an impossible name")
    return "/".join(parts)


class Unpacker:
    """Applies archives, lowest layer first, to the current directory, which must be the process's root."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.result = Result()

    def apply(self, stream: BinaryIO) -> None:
        """Raises BadArchive, OSError (ENOSPC among them)."""
        self._made: set[str] = set()
        self._times: list[tuple[str, float]] = []
        try:
            with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as archive:
                for member in archive:
                    self._entry(archive, member)
                    # In a stream tarfile would otherwise remember every header it has passed.
                    archive.members = []
        except (tarfile.TarError, UnicodeError, ValueError, EOFError) as error:
            raise BadArchive(f"not a readable tar archive: {error}") from None
        # Making files in a directory changes its time, so directories come last, the deepest first.
        for path, mtime in reversed(self._times):
            if os.path.isdir(path) and not os.path.islink(path):
                os.utime(path, (mtime, mtime))

    def _entry(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        result, limits = self.result, self.limits
        result.entries += 1
        if result.entries > limits.entries:
            raise BadArchive(f"more than {limits.entries} entries")
        if member.isreg():
            result.bytes += member.size
            if member.size < 0 or result.bytes > limits.bytes:
                raise BadArchive(f"more than {limits.bytes} bytes of files")
        path = clean_name(member.name)
        folder, _, name = path.rpartition("/")
        if name.startswith(_WHITEOUT):
            self._whiteout(folder, name)
        elif path:
            self._make(archive, member, path, folder)
        elif member.isdir():
            os.chmod(".", stat.S_IMODE(member.mode) & 0o7777)

    def _whiteout(self, folder: str, name: str) -> None:
        """Remove what lower layers put there; what this layer made stays, wherever the mark stands in it."""
        hidden = [name.removeprefix(_WHITEOUT)]
        if name != _OPAQUE and (hidden[0] in ("", ".", "..") or hidden[0].startswith(_WHITEOUT)):
            raise BadArchive(f"whiteout {name[:200]!r} names nothing that can be removed")
        if not os.path.isdir(folder or "."):
            return
        if name == _OPAQUE:
            hidden = os.listdir(folder or ".")
        for child in hidden:
            path = f"{folder}/{child}" if folder else child
            if path not in self._made:
                _remove(path)
            elif name == _OPAQUE:
                self._clear_unmade(path)

    def _clear_unmade(self, folder: str) -> None:
        if not os.path.isdir(folder) or os.path.islink(folder):
            return
        for child in os.listdir(folder):
            path = f"{folder}/{child}"
            if path in self._made:
                self._clear_unmade(path)
            else:
                _remove(path)

    def _make(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, folder: str) -> None:
        if member.ischr() or member.isblk():
            # A workspace gets its few devices from the runtime, on a tmpfs over /dev.
            if len(self.result.skipped) < 100:
                self.result.skipped.append(path)
            return
        if folder:
            os.makedirs(folder, mode=0o755, exist_ok=True)
        if not (member.isdir() and os.path.isdir(path) and not os.path.islink(path)):
            _remove(path)
        if member.isdir():
            if not os.path.isdir(path):
                os.mkdir(path)
            self._times.append((path, member.mtime))
        elif member.isreg():
            self._file(archive, member, path)
        elif member.issym():
            os.symlink(member.linkname, path)
        elif member.islnk():
            os.link(clean_name(member.linkname), path, follow_symlinks=False)
        elif member.isfifo():
            os.mkfifo(path)
        else:
            raise BadArchive(f"entry {path!r} has the unknown type {member.type!r}")
        self._remember(path)
        if not member.islnk():
            self._attributes(member, path)

    def _remember(self, path: str) -> None:
        self._made.add(path)
        while "/" in path:
            path = path.rpartition("/")[0]
            if path in self._made:
                return
            self._made.add(path)

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        source = archive.extractfile(member)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)

    def _attributes(self, member: tarfile.TarInfo, path: str) -> None:
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
        if member.issym():
            return
        # After the owner: chown takes the set-user-id bit and capabilities away.
        os.chmod(path, stat.S_IMODE(member.mode) & 0o7777)
        for key, value in member.pax_headers.items():
            name = key.removeprefix(_PAX_ATTRIBUTE)
            if key.startswith(_PAX_ATTRIBUTE) and name.startswith(_ALLOWED_ATTRIBUTES):
                os.setxattr(path, name, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
        if not member.isdir():
            os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)


def _remove(path: str) -> None:
    """Remove whatever is at `path`, not following it. Nothing there is fine."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass


def _drain(stream: BinaryIO, limits: Limits) -> None:
    """Read what follows the archive's end, so that a failing decompressor is told from one whose reader went away."""
    rest = 0
    while chunk := stream.read(_COPY_BYTES):
        rest += len(chunk)
        if rest > limits.bytes:
            raise BadArchive("endless data after the archive's end")


def _preload() -> None:
    """Load what Python would look for later, when the host's files are out of reach."""
    for name in ("utf-8", "ascii", "latin-1", "idna"):
        "x".encode(name)
    import encodings.utf_8  # noqa: F401  (tarfile decodes with it)


def main(argv: list[str]) -> int:
    root, limits = argv[1], Limits(**json.loads(argv[2]))
    _preload()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    os.umask(0)
    os.chroot(root)
    os.chdir("/")
    unpacker = Unpacker(limits)
    answer: dict[str, object]
    try:
        unpacker.apply(sys.stdin.buffer)
        _drain(sys.stdin.buffer, limits)
        answer = asdict(unpacker.result)
    except BadArchive as error:
        answer = {"bad": str(error)}
    except MemoryError:
        answer = {"bad": "a header is too long"}
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        answer = {"full" if full else "bad": f"{str(error.filename or 'a file')[:200]}: {error.strerror}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
