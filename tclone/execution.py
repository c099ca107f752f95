"""Commands inside a workspace."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from tclone.data import Chunk
from tclone.errors import Internal, LoginNeeded, Unavailable, of_wire
from tclone.transport import PREFIX, Socket, Transport

_STDIN = b"\0"
_PIECE = 256 << 10


class Process:
    """A command that runs: read `output()`, write, then `status()`. Leaving its block ends it."""

    def __init__(self, socket: Socket, workspace: str) -> None:
        self._socket = socket
        self._workspace = workspace
        self._status: int | None = None

    async def write(self, data: bytes | str) -> None:
        """Send input; text as UTF-8."""
        sent = data.encode() if isinstance(data, str) else data
        for start in range(0, len(sent), _PIECE):
            await self._socket.send_bytes(_STDIN + sent[start : start + _PIECE])

    async def close_stdin(self) -> None:
        await self._socket.send(stdin="eof")

    async def resize(self, rows: int, cols: int) -> None:
        """The size of its terminal, when it has one."""
        await self._socket.send(resize=[rows, cols])

    async def output(self) -> AsyncIterator[Chunk]:
        """Pieces as they are written, until the command has ended. A reader that is slow makes it wait. Raises TCloneError."""
        while self._status is None:
            message = await self._socket.receive()
            if message is None:
                raise Unavailable(f"the connection to a command in {self._workspace} ended while it ran", code="unavailable")
            if isinstance(message, bytes):
                yield Chunk(message[0], message[1:])
            else:
                self._hear(message)

    async def status(self) -> int:
        """The status it ended with; what it wrote and nobody read is lost."""
        async for _ in self.output():
            pass
        if self._status is None:
            raise Internal(f"a command in {self._workspace} ended without a status")
        return self._status

    def _hear(self, message: dict[str, object]) -> None:
        kind = message.get("type")
        if kind == "exit":
            code = message.get("code")
            self._status = code if isinstance(code, int) else -1
        elif kind == "ended":
            raise LoginNeeded("the token has expired or was revoked", code="login")
        elif kind == "error":
            raise of_wire(message.get("error"))


@contextlib.asynccontextmanager
async def started(
    transport: Transport, workspace: str, argv: Sequence[str], *, env: Mapping[str, str] | None, user: str | None, cwd: str | None, tty: bool, rows: int, cols: int
) -> AsyncIterator[Process]:
    """A command, run without a shell. Raises TCloneError."""
    hello = {"argv": list(argv), "env": dict(env or {}), "tty": tty, "rows": rows, "cols": cols}
    hello |= {name: value for name, value in (("user", user), ("cwd", cwd)) if value is not None}
    async with transport.socket(f"{PREFIX}/workspaces/{workspace}/exec", hello) as socket:
        yield Process(socket, workspace)
