"""Tools for whole branches: launch, list, fork, compare, discard; what they serve and what they logged."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field

from engine.promotion import MOST_PATHS
from portal.mcp.answers import ACTS, DESTROYS, LOOKS, Branch, Find, answer

_MOST_CHANGES = 500
_MEBIBYTE = 1 << 20

Name = Annotated[str | None, Field(max_length=200, description="a name to know it by; it is made up without one")]
Count = Annotated[int, Field(ge=1, le=8, description="how many branches")]
Seconds = Annotated[float | None, Field(gt=0, description="discard it by itself after so many seconds; without it the portal's rules hold")]
Port = Annotated[int, Field(ge=1, le=65535)]


def add(server: MCPServer, find: Find) -> None:
    """Give the server these tools."""

    @server.tool(annotations=LOOKS)
    async def branch_list(ctx: Context) -> CallToolResult:
        """List every branch (workspace) that you may see: id, name, state, parent, image, whether it has a desktop."""
        listed = await find(ctx).json("GET", "/workspaces")
        return answer(None, branches=[_summary(one) for one in listed])

    @server.tool(annotations=LOOKS)
    async def branch_get(ctx: Context, branch: Branch) -> CallToolResult:
        """Tell one branch's state, parent, published ports and error."""
        return answer(branch, _without_id(await find(ctx).json("GET", f"/workspaces/{branch}")))

    @server.tool(annotations=LOOKS)
    async def image_list(ctx: Context) -> CallToolResult:
        """List the images that a workspace can be launched from."""
        return answer(None, images=await find(ctx).json("GET", "/images"))

    @server.tool(annotations=ACTS)
    async def branch_launch(
        ctx: Context,
        image: Annotated[str, Field(min_length=1, max_length=200, description="as image_list tells them; `webtop-xfce` is a desktop")],
        name: Name = None,
        ports: Annotated[list[Port], Field(max_length=64, description="ports inside that are published")] = [],
        memory_mib: Annotated[int | None, Field(ge=64, le=1 << 20, description="memory limit")] = None,
        cpus: Annotated[float | None, Field(ge=0.1, le=1024, description="how many processors' time it gets at most")] = None,
        network: Annotated[Literal["open", "none"], Field(description="what it may reach")] = "open",
        seconds: Seconds = None,
    ) -> CallToolResult:
        """Launch a fresh workspace and wait until it is ready. To continue from a state that exists, use branch_fork."""
        wanted: dict[str, Any] = {"image": image, "name": name, "ports": ports, "network": network, "wait": True, "timeout": seconds, "cpus": cpus}
        if memory_mib is not None:
            wanted["memory"] = memory_mib * _MEBIBYTE
        made = await find(ctx).json("POST", "/workspaces", wanted)
        branch = made["id"]
        if made["state"] in ("failed", "stopped", "gone"):
            raise ToolError(f"{branch} did not start: {made['error'] or made['state']}; branch_log may say why")
        return answer(branch, _without_id(made))

    @server.tool(annotations=ACTS)
    async def branch_fork(
        ctx: Context,
        branch: Branch,
        count: Count = 1,
        name: Name = None,
        labels: Annotated[list[Annotated[str, Field(max_length=80)]], Field(max_length=8, description="what each is for")] = [],
        network: Annotated[Literal["open", "none"] | None, Field(description="what they may reach; as the source without it")] = None,
        seconds: Seconds = None,
    ) -> CallToolResult:
        """Fork a running branch live: every process, window, file and the clipboard, at this very moment. The source goes on. Use the new ids from now on."""
        wanted = {"count": count, "name": name, "network": network, "labels": labels or None, "timeout": seconds}
        done = await find(ctx).json("POST", f"/workspaces/{branch}/fork", wanted)
        made = [_summary(one["workspace"]) if "workspace" in one else {"error": one["error"]} for one in done["results"]]
        if all("branch" not in one for one in made):
            raise ToolError(f"no branch of {branch} was made: {made[0]['error']['message']}")
        return answer(branch, branches=made, milliseconds=done["ms"])

    @server.tool(annotations=ACTS)
    async def branch_pause(ctx: Context, branch: Branch, resume: Annotated[bool, Field(description="let them go on instead")] = False) -> CallToolResult:
        """Let a branch's programs stand still: it costs no processor time until it is resumed."""
        return answer(branch, _without_id(await find(ctx).json("POST", f"/workspaces/{branch}/{'resume' if resume else 'pause'}")))

    @server.tool(annotations=DESTROYS)
    async def branch_discard(ctx: Context, branch: Branch) -> CallToolResult:
        """Discard a branch for good: its processes, windows and files. Its own branches live on."""
        await find(ctx).json("DELETE", f"/workspaces/{branch}")
        return answer(branch, discarded=True)

    @server.tool(annotations=LOOKS)
    async def branch_diff(
        ctx: Context,
        branch: Branch,
        base: Annotated[str, Field(max_length=200, description="`parent`, `image`, or the id or name of another branch of the same image")] = "parent",
        path: Annotated[str | None, Field(max_length=4095, description="one file: its differences line by line")] = None,
        own: Annotated[bool, Field(description="also what the desktop writes by itself: logs, caches, the browser's profile")] = False,
    ) -> CallToolResult:
        """Tell which files differ from the branch's parent, its image or another branch; with a path, how that file differs."""
        caller, query = find(ctx), {"base": base}
        if path is not None:
            return answer(branch, await caller.json("GET", f"/workspaces/{branch}/diff/file", query={**query, "path": path}), base=base)
        changes, more = await caller.lines(f"/workspaces/{branch}/diff", _MOST_CHANGES, {**query, "own": int(own)})
        told = [change for change in changes if "done" not in change]
        summary = changes[-1]["done"] if changes and "done" in changes[-1] else {}
        return answer(branch, base=base, changes=told, truncated=more or bool(summary.get("truncated")))

    @server.tool(annotations=DESTROYS)
    async def branch_promote(
        ctx: Context,
        branch: Branch,
        paths: Annotated[list[Annotated[str, Field(max_length=4095)]], Field(min_length=1, max_length=MOST_PATHS, description="absolute paths; with a directory all that is in it")],
        into: Annotated[str, Field(max_length=200, description="`parent`, or the id or name of another branch of the same image")] = "parent",
        force: Annotated[bool, Field(description="also replace what the other side changed since the two parted")] = False,
        dry_run: Annotated[bool, Field(description="tell what would be done, and do nothing")] = False,
    ) -> CallToolResult:
        """Make chosen files of a branch those of its parent, or of another branch: added, changed and removed as they are in the branch."""
        wanted = {"paths": [quote(path, safe="/") for path in paths], "into": into, "force": force, "dry_run": dry_run}
        return answer(branch, _without_id(await find(ctx).json("POST", f"/workspaces/{branch}/promote", wanted)))

    @server.tool(annotations=LOOKS)
    async def branch_ports(ctx: Context, branch: Branch) -> CallToolResult:
        """List the servers that listen inside a branch, and the port of the host for those that are published."""
        return answer(branch, await find(ctx).json("GET", f"/workspaces/{branch}/listeners"))

    @server.tool(annotations=ACTS)
    async def branch_publish(ctx: Context, branch: Branch, port: Port) -> CallToolResult:
        """Publish a port of a branch: a server in it becomes reachable at a port of the host."""
        return answer(branch, await find(ctx).json("POST", f"/workspaces/{branch}/ports/{port}"))

    @server.tool(annotations=LOOKS)
    async def branch_log(
        ctx: Context, branch: Branch, lines: Annotated[int, Field(ge=1, le=2000, description="how many, the last ones")] = 100
    ) -> CallToolResult:
        """Read the last lines of a branch's console."""
        content, _ = await find(ctx).read(f"/workspaces/{branch}/logs", {"tail": lines})
        return answer(branch, log=content.decode(errors="replace"))


def _summary(workspace: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "state", "parent", "generation", "image", "desktop", "label", "error")
    return {"branch": workspace["id"], **{name: workspace[name] for name in names if workspace.get(name) is not None}}


def _without_id(workspace: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in workspace.items() if name != "id" and value is not None}
