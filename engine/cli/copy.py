"""`tclone cp`: one file into a workspace or out of it, or through the standard streams."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import posixpath
import re
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.client import EngineClient
from engine.errors import BadRequest, Conflict, EngineError, NotFound

_CHUNK = 256 << 10
_STREAM = "-"
# A reference and an absolute path, as `desk:/home/user/notes.txt`. Another colon, or none, is a file of this machine.
_INSIDE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):(/.*)", re.DOTALL)


@dataclass(frozen=True)
class _Place:
    """One end: in a workspace, or with `ref` None here."""

    ref: str | None
    path: str


def _place(text: str) -> _Place:
    found = _INSIDE.fullmatch(text)
    return _Place(found[1], found[2]) if found else _Place(None, text)


async def copy(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Copy SRC to DST, of which one is in a workspace. Raises BadRequest, Conflict, NotFound and what the engine says."""
    source, target = _place(arguments.source), _place(arguments.target)
    if (source.ref is None) == (target.ref is None):
        raise BadRequest("one of the two is in a workspace, as desk:/home/user/notes.txt, and the other one is here; to copy from workspace to workspace go through `-`")
    inside = source if source.ref is not None else target
    # A mistyped name is answered with the nearest, as that of other commands.
    arguments.workspace = inside.ref
    try:
        if source.ref is not None:
            await _out(client, source.ref, source.path, target.path, arguments.force)
        else:
            await _into(client, source.path, inside.ref or "", target.path, arguments.force)
    except Conflict as error:
        if "is a directory" not in error.message:
            raise
        raise Conflict(f"{error.message}; a directory goes by `tclone exec {inside.ref} -- tar -c PATH | tar -x`") from error
    return 0


async def _into(client: EngineClient, source: str, ref: str, path: str, force: bool) -> None:
    if path.endswith("/"):
        if source == _STREAM:
            raise BadRequest(f"{ref}:{path} is a directory; name the file that the standard input goes to")
        path += Path(source).name
    try:
        with sys.stdin.buffer if source == _STREAM else open(source, "rb") as file:
            # Files of /proc say 0 and have more; a length that does not fit would cut them off.
            size = os.fstat(file.fileno()).st_size or None if source != _STREAM else None
            await client.write_file(ref, path, _pieces(file), size=size, overwrite=force)
    except OSError as error:
        raise _failure(source, error) from error
    except Conflict as error:
        raise Conflict(error.message.replace("ask to overwrite it", "give --force")) from error


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, _CHUNK):
        yield piece


async def _out(client: EngineClient, ref: str, path: str, target: str, force: bool) -> None:
    if target != _STREAM and os.path.isdir(target):
        # The last part of what was typed here, never a name that the workspace chose.
        target = os.path.join(target, posixpath.basename(path))
    async with client.read_file(ref, path) as answer:
        try:
            with _opened(target, force) as file:
                async for piece in answer.content.iter_chunked(_CHUNK):
                    await asyncio.to_thread(file.write, piece)
        except OSError as error:
            raise _failure(target, error) from error


@contextlib.contextmanager
def _opened(target: str, force: bool) -> Iterator[BinaryIO]:
    """A file to write; it has its name only once it is whole. Raises Conflict when one is there."""
    if target == _STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.lexists(target) and not force:
        raise Conflict(f"{target} exists already; choose another name or give --force")
    partial = f"{target}.{secrets.token_hex(4)}.part"
    try:
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _failure(path: str, error: OSError) -> EngineError:
    kind = NotFound if isinstance(error, FileNotFoundError) else Conflict
    return kind(f"{path}: {(error.strerror or str(error)).lower()}")
