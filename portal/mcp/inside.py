"""Tools for what is inside a branch: commands and files."""

from __future__ import annotations

import base64
import codecs
import contextlib
from typing import Annotated, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import Field

from portal.mcp.answers import ACTS, DESTROYS, LOOKS, Branch, Find, answer

_MOST_READ = 256 << 10
# Of one request's body, which is JSON, and base64 takes four bytes for three.
MOST_WRITTEN = 2 << 20
_MOST_SECONDS = 170
_PICTURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}

Path = Annotated[str, Field(min_length=1, max_length=4095, pattern="^/", description="absolute path inside the branch")]


def add(server: MCPServer, find: Find) -> None:
    """Give the server these tools."""

    @server.tool(annotations=ACTS)
    async def run_command(
        ctx: Context,
        branch: Branch,
        command: Annotated[str, Field(min_length=1, max_length=100_000, description="for `sh -c`")],
        directory: Annotated[str | None, Field(max_length=4095, description="where it runs; the user's home without it")] = None,
        user: Annotated[str | None, Field(max_length=64, description="who runs it; whoever the desktop belongs to without it")] = None,
        seconds: Annotated[int, Field(ge=1, le=_MOST_SECONDS, description="how long it may take; then it is killed")] = 60,
    ) -> CallToolResult:
        """Run a shell command in a branch to its end: exit status, stdout, stderr. A program that stays (one with windows): `setsid -f chromium >/dev/null 2>&1`."""
        ended = await find(ctx).run(branch, ["sh", "-c", command], seconds, cwd=directory, user=user)
        told = answer(branch, status=ended.status, stdout=ended.stdout.text(), stderr=ended.stderr.text())
        if ended.status is not None:
            return told
        note = TextContent(type="text", text=f"it was ended: it did not end by itself within {seconds} s")
        return CallToolResult(content=[note, *told.content], structured_content=told.structured_content, is_error=True)

    @server.tool(annotations=LOOKS)
    async def file_list(ctx: Context, branch: Branch, path: Path) -> CallToolResult:
        """List a directory of a branch."""
        return answer(branch, await find(ctx).json("GET", f"/workspaces/{branch}/files", query={"path": path}))

    @server.tool(annotations=LOOKS)
    async def file_read(
        ctx: Context,
        branch: Branch,
        path: Path,
        offset: Annotated[int, Field(ge=0, le=1 << 50, description="the first byte")] = 0,
        count: Annotated[int, Field(ge=1, le=_MOST_READ, description="how many bytes")] = 64 << 10,
    ) -> CallToolResult:
        """Read a file of a branch: text as it is, other bytes in base64, a picture (PNG, JPEG, GIF) that is read whole as an image."""
        content, total = await find(ctx).read(f"/workspaces/{branch}/file", {"path": path}, offset, count)
        facts = {"path": path, "offset": offset, "count": len(content), "size": total}
        kind = next((kind for magic, kind in _PICTURES.items() if content.startswith(magic)), None)
        if kind is not None and len(content) == total:
            return answer(branch, facts, image=(content, kind))
        text, encoding, used = _text(content, is_end=offset + len(content) >= total)
        return answer(branch, facts, count=used, encoding=encoding, content=text)

    @server.tool(annotations=DESTROYS)
    async def file_write(
        ctx: Context,
        branch: Branch,
        path: Path,
        content: Annotated[str, Field(max_length=3 << 20)],
        encoding: Literal["utf-8", "base64"] = "utf-8",
        overwrite: Annotated[bool, Field(description="in place of a file that is there")] = False,
    ) -> CallToolResult:
        """Write a file into a branch."""
        try:
            data = base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
        except ValueError as error:
            raise ToolError(f"content is not what encoding={encoding} says: {error}") from None
        if len(data) > MOST_WRITTEN:
            raise ToolError(f"the file has {len(data)} bytes; at most {MOST_WRITTEN} can be written in one call")
        entry = await find(ctx).write(f"/workspaces/{branch}/file", {"path": path, "overwrite": int(overwrite)}, data)
        return answer(branch, path=path, entry=entry)

    @server.tool(annotations=DESTROYS)
    async def file_remove(
        ctx: Context, branch: Branch, path: Path, recursive: Annotated[bool, Field(description="a directory and all that is in it")] = False
    ) -> CallToolResult:
        """Remove a file or directory of a branch."""
        await find(ctx).json("DELETE", f"/workspaces/{branch}/files", query={"path": path, "recursive": int(recursive)})
        return answer(branch, path=path, removed=True)


def _text(content: bytes, is_end: bool) -> tuple[str, str, int]:
    """As text when it is that, and of how many bytes: a character that is cut in two is left to the next call."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    if b"\0" not in content:
        with contextlib.suppress(UnicodeDecodeError):
            text = decoder.decode(content, is_end)
            return text, "utf-8", len(content) - len(decoder.getstate()[0])
    return base64.b64encode(content).decode(), "base64", len(content)
