"""The MCP server: what it says of itself, its tools and its resources. How requests reach it is http.py's and stdio.py's."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp_types import CallToolResult, InputRequiredResult
from pydantic import Field

from engine import __version__
from portal.mcp import branches, computer, inside, named
from portal.mcp.answers import Find
from portal.mcp.caller import Refused

_INSTRUCTIONS = """\
Desktops and headless workspaces in containers, which can be forked live. Every tool that looks into or acts on one names its branch, and every answer \
says which branch it came from. To try something that may go wrong: branch_fork, act in the new branches by their ids, compare (computer_screenshot, \
branch_diff), branch_discard those that lost. A branch that is gone is an error, never another branch. `held` (423) means that a person has taken \
control: nothing was done; wait and try again, or work in a branch of your own. A picture's places are pixels of the screen unless its `picture` differs \
from its `screen`: then pass `picture` as `size`."""
_LOG_LINES = 500

Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Server(MCPServer):
    """Its tools get branches by their ids, however they were named, and say in plain words what is wrong with a call."""

    def __init__(self, find: Find, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._find = find

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context | None = None) -> CallToolResult | InputRequiredResult:
        """Raises ToolError."""
        if context is not None:
            arguments = await named.by_id(self._find(context), arguments)
        with named.plain(name):
            return await super().call_tool(name, arguments, context)


def build(find: Find) -> MCPServer:
    """A server whose tools act for the caller that `find` finds."""
    # No subscriptions: a notice would tell one user of another's branches, and streams without end would be held for it.
    server = _Server(find, "tclone", title="TClone", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING", subscriptions=False)
    for part in (branches, inside, computer):
        part.add(server, find)
    _add_resources(server, find)
    return server


def _add_resources(server: MCPServer, find: Find) -> None:
    @server.resource("branch://{branch}/screen", name="screen", description="A branch's screen, as a picture", mime_type="image/jpeg")
    async def screen(ctx: Context, branch: Name) -> bytes:
        caller, query = find(ctx), {"format": "jpeg", "max_bytes": computer.MOST_PICTURE_BYTES}
        try:
            return (await caller.picture(await named.id_of(caller, branch), query)).content
        except Refused as refusal:
            raise _failure(refusal) from None

    @server.resource("branch://{branch}/log", name="log", description="The last lines of a branch's console", mime_type="text/plain")
    async def log(ctx: Context, branch: Name) -> str:
        caller = find(ctx)
        try:
            content, _ = await caller.read(f"/workspaces/{await named.id_of(caller, branch)}/logs", {"tail": _LOG_LINES})
            return content.decode(errors="replace")
        except Refused as refusal:
            raise _failure(refusal) from None


def _failure(refusal: Refused) -> ResourceError:
    return (ResourceNotFoundError if refusal.status == 404 else ResourceError)(str(refusal))
