"""What is inside workspaces, as pages and programs ask for it: servers, files, changes, memory, commands. Errors are those of portal/node.py."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import unquote_to_bytes

import aiohttp

from engine.account import DESKTOP_USER
from engine.client import ExecSession
from engine.errors import Conflict, LimitReached, NotFound
from portal.errors import BadAnswer, Malformed
from portal.node import Node, translated
from portal.sockets import Limited

# A login shell of whoever the desktop belongs to; images need not have bash.
_SHELL = ["/bin/sh", "-c", "cd; if [ -x /bin/bash ]; then exec /bin/bash -l; fi; exec /bin/sh -l"]
# Of a command whose output is answered as a whole.
_MOST_OUTPUT = 8 << 20
_PIECE = 256 << 10
_LONGEST_PATH = 4000
# Of the engine's answer to a read that the browser may know.
_READ_HEADERS = ("Content-Length", "Content-Range", "Accept-Ranges", "ETag", "Last-Modified")


class Inside:
    """One engine's workspaces, seen from inside."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # Each of them has its output in memory.
        self._held = Limited("command")

    async def listeners(self, identity: str) -> list[dict[str, Any]]:
        answer = await self._node.bounded(self._node.client.listeners(identity))
        if not isinstance(answer, list):
            raise BadAnswer("the engine's answer is not a list; see its log")
        return [item for item in answer if isinstance(item, dict)]

    async def publish(self, identity: str, port: int) -> dict[str, Any]:
        return _object(await self._node.bounded(self._node.client.publish(identity, port)))

    async def unpublish(self, identity: str, port: int) -> None:
        await self._node.bounded(self._node.client.unpublish(identity, port))

    async def stats(self, identity: str) -> dict[str, Any]:
        return _object(await self._node.bounded(self._node.client.stats(identity)))

    # Files

    async def path(self, identity: str, given: object) -> bytes:
        """A clean absolute path of what a program wrote; `~` and what is relative count from the home of the desktop's user. Raises Malformed."""
        if not isinstance(given, str) or not given or "\0" in given or len(given) > _LONGEST_PATH:
            raise Malformed(f"path must be a text of 1 to {_LONGEST_PATH} characters without NUL")
        try:
            path = given.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            raise Malformed("path: half of a surrogate pair is no character") from None
        if path == b"~" or path.startswith(b"~/"):
            path = path[2:] or b"."
        if not path.startswith(b"/"):
            path = await self.home(identity) + b"/" + path
        return b"/" + posixpath.normpath(path).lstrip(b"/")

    async def list_files(self, identity: str, path: bytes) -> dict[str, Any]:
        """{"entries", "home", …}, the names in them percent-encoded. Raises NotFound, Conflict for what is no directory."""
        found = _object(await self._node.bounded(self._node.client.list_files(identity, path)))
        if not isinstance(found.get("entries"), list) or not isinstance(found.get("home"), str):
            raise BadAnswer("the engine's answer is no list of files; see its log")
        return found

    async def entry(self, identity: str, path: bytes) -> dict[str, Any]:
        """What lies at an absolute path, as its directory lists it. Raises NotFound, also when what should be its directory is none."""
        try:
            return _object(await self._node.bounded(self._node.client.entry(identity, path)))
        except Conflict as error:
            raise NotFound(error.message) from None

    async def home(self, identity: str) -> bytes:
        """That of the desktop's user, without a slash at its end."""
        return unquote_to_bytes(str((await self.list_files(identity, b"/"))["home"])).rstrip(b"/")

    async def make_directory(self, identity: str, path: bytes) -> dict[str, Any]:
        return _object(await self._node.bounded(self._node.client.make_directory(identity, path)))

    async def remove_file(self, identity: str, path: bytes, recursive: bool) -> None:
        await self._node.bounded(self._node.client.remove_file(identity, path, recursive=recursive), work=True)

    @contextlib.asynccontextmanager
    async def read_file(self, identity: str, path: bytes, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The engine's answer, not read yet. No time limit: it takes as long as the browser takes."""
        with translated():
            async with self._node.client.read_file(identity, path, headers) as answer:
                yield answer

    async def write_file(self, identity: str, path: bytes, pieces: AsyncIterator[bytes], size: int | None, overwrite: bool) -> dict[str, Any]:
        with translated():
            return _object(await self._node.client.write_file(identity, path, pieces, size=size, overwrite=overwrite))

    # Changes

    async def changes(self, identity: str, base: str, own: bool) -> AsyncIterator[dict[str, Any]]:
        """Change objects; the last is {"done": {…}}. `own`: those of what the desktop writes by itself, too."""
        with translated():
            async with contextlib.aclosing(self._node.client.changes(identity, base, own=own)) as found:
                async for item in found:
                    yield _object(item)

    async def compare_file(self, identity: str, path: bytes, base: str) -> dict[str, Any]:
        return _object(await self._node.bounded(self._node.client.compare_file(identity, path, base)))

    async def promote(self, identity: str, into: str, paths: list[str], force: bool, dry_run: bool) -> dict[str, Any]:
        """Make files of one workspace those of another; `paths` are percent-encoded. Raises Conflict for what the other one changed, too, without `force`."""
        clean = [unquote_to_bytes(path) for path in paths]
        with translated():
            done = _object(await self._node.client.promote(identity, clean, into=into, force=force, dry_run=dry_run))
        if not isinstance(done.get("paths"), list):
            raise BadAnswer("the engine's answer has no list of paths; see its log")
        return done

    # Commands

    def shell(self, identity: str, rows: int, cols: int) -> AbstractAsyncContextManager[ExecSession]:
        """A shell on a terminal of its own; it ends with the block."""
        return self.command(identity, _SHELL, user=DESKTOP_USER, tty=True, rows=rows, cols=cols)

    @contextlib.asynccontextmanager
    async def command(self, identity: str, argv: list[str], **options: Any) -> AsyncIterator[ExecSession]:
        """A command; it ends with the block. `options` as the client's `exec`."""
        with translated():
            async with self._node.client.exec(identity, argv, **options) as session:
                yield session

    async def run(self, identity: str, argv: list[str], *, stdin: bytes = b"", **options: Any) -> tuple[int, bytes, bytes]:
        """Run a command to its end: (status, stdout, stderr). Raises LimitReached when it says more than 8 MiB: it is ended then; TooMany."""
        with self._held.another(identity):
            return await self._node.bounded(self._collected(identity, argv, stdin, options), work=True)

    async def _collected(self, identity: str, argv: list[str], stdin: bytes, options: dict[str, Any]) -> tuple[int, bytes, bytes]:
        outputs = {1: bytearray(), 2: bytearray()}
        async with self.command(identity, argv, **options) as session:
            # The engine takes messages of up to 4 MiB.
            for start in range(0, len(stdin), _PIECE):
                await session.write(stdin[start : start + _PIECE])
            await session.close_stdin()
            async for stream, data in session.output():
                outputs[stream] += data
                if sum(len(output) for output in outputs.values()) > _MOST_OUTPUT:
                    raise LimitReached(f"the command says more than {_MOST_OUTPUT >> 20} MiB; have its output streamed, or written to a file")
            return session.exit_code(), bytes(outputs[1]), bytes(outputs[2])


def read_headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: answer.headers[name] for name in _READ_HEADERS if name in answer.headers}


def _object(answer: object) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise BadAnswer("the engine's answer is not an object; see its log")
    return answer
