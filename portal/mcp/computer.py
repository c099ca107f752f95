"""Tools for a branch's screen, mouse, keys, windows and clipboard. Their names and fields are those that models know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult
from pydantic import Field

from engine.desktop.actions import MOST_ACTIONS, MOST_CLIPBOARD, MOST_SECONDS, MOST_TEXT, Action, Button, Place, Size
from engine.desktop.tree import DEFAULT_NODES, MOST_NODES
from portal.mcp.answers import ACTS, LOOKS, Branch, Find, answer
from portal.mcp.caller import Caller, Picture

# With base64 and the rest of the message below 1 MB, which some clients refuse to go beyond.
MOST_PICTURE_BYTES = 700_000
_LONGEST_EDGE = 1568
_SMALLEST_EDGE = 16
_SETTLE_MS = 2000

X = Annotated[int | None, Field(ge=0, le=65535, description="with y: where to go first; where the pointer is without both")]
Y = Annotated[int | None, Field(ge=0, le=65535)]
Modifiers = Annotated[str | None, Field(max_length=200, description="keys held meanwhile, as `ctrl+shift`")]
OfPicture = Annotated[Size | None, Field(description="[width, height] of the picture that places are pixels of; the screen's own without it")]
Shows = Annotated[bool, Field(description="also answer with a picture, once the screen has come to rest")]
MaxEdge = Annotated[int, Field(ge=_SMALLEST_EDGE, le=7680, description="longest edge of the picture, in pixels; a larger screen is scaled down")]
Format = Annotated[Literal["png", "jpeg", "webp"], Field(description="a PNG that would be too large comes as JPEG")]


def add(server: MCPServer, find: Find) -> None:
    """Give the server these tools."""

    async def act(ctx: Context, branch: str, actions: list[dict[str, Any]], size: list[int] | None, shows: bool) -> CallToolResult:
        caller = find(ctx)
        wanted = {"actions": [{name: value for name, value in action.items() if value is not None} for action in actions]}
        done = await caller.json("POST", f"/workspaces/{branch}/actions", wanted | ({"size": size} if size else {}))
        told = answer(branch, done)
        if done.get("interrupted") or not all(result["ok"] for result in done["results"]):
            return CallToolResult(content=told.content, structured_content=told.structured_content, is_error=True)
        if not shows:
            return told
        # In the size in which places are told, so that those of this picture need no conversion.
        exact = {"width": size[0], "height": size[1]} if size else {}
        return _shown(branch, await _picture(caller, branch, _LONGEST_EDGE, settle_ms=_SETTLE_MS, **exact), done)

    @server.tool(annotations=LOOKS)
    async def computer_screenshot(
        ctx: Context,
        branch: Branch,
        max_edge: MaxEdge = _LONGEST_EDGE,
        format: Format = "png",
        settle_ms: Annotated[int, Field(ge=0, le=30_000, description="wait until the screen has come to rest, at most so long")] = 0,
    ) -> CallToolResult:
        """Look at a branch's screen. `picture` tells the image's size: when it is not `screen`, give it as `size` with places that you found in it."""
        caller = find(ctx)
        settled = {"settle_ms": settle_ms} if settle_ms else {}
        return _shown(branch, await _picture(caller, branch, max_edge, format=format, **settled))

    @server.tool(annotations=LOOKS)
    async def computer_zoom(
        ctx: Context,
        branch: Branch,
        region: Annotated[list[Annotated[int, Field(ge=0, le=65535)]], Field(min_length=4, max_length=4, description="left, top, right, bottom")],
        size: OfPicture = None,
        max_edge: MaxEdge = _LONGEST_EDGE,
        format: Format = "png",
    ) -> CallToolResult:
        """Look at a part of a branch's screen, enlarged. Places are still told in pixels of the whole screen (or of `size`)."""
        caller = find(ctx)
        if size is not None:
            screen = (await caller.picture(branch, {"width": _SMALLEST_EDGE, "format": "jpeg"})).screen
            region = [round(part * screen[axis % 2] / size[axis % 2]) for axis, part in enumerate(region)]
        wide, high = max(1, region[2] - region[0]), max(1, region[3] - region[1])
        scale = max_edge / max(wide, high)
        exact = {"width": max(_SMALLEST_EDGE, round(wide * scale)), "height": max(_SMALLEST_EDGE, round(high * scale))}
        query = {**exact, "region": ",".join(map(str, region)), "format": format, "max_bytes": MOST_PICTURE_BYTES}
        shot = await caller.picture(branch, query)
        # Not as `picture`: places are not told in pixels of this one.
        return answer(branch, image=(shot.content, shot.kind), region=region, enlarged=list(shot.size), screen=list(shot.screen))

    @server.tool(annotations=ACTS)
    async def computer_click(
        ctx: Context,
        branch: Branch,
        x: X = None,
        y: Y = None,
        button: Button = "left",
        count: Annotated[int, Field(ge=1, le=3, description="2 and 3 are a double and a triple click")] = 1,
        modifiers: Modifiers = None,
        size: OfPicture = None,
        screenshot: Shows = False,
    ) -> CallToolResult:
        """Click in a branch."""
        action = {"action": "click", "x": x, "y": y, "button": button, "count": count, "modifiers": modifiers}
        return await act(ctx, branch, [action], size, screenshot)

    @server.tool(annotations=ACTS)
    async def computer_move(ctx: Context, branch: Branch, x: Place, y: Place, size: OfPicture = None, screenshot: Shows = False) -> CallToolResult:
        """Put a branch's pointer somewhere."""
        return await act(ctx, branch, [{"action": "move", "x": x, "y": y}], size, screenshot)

    @server.tool(annotations=ACTS)
    async def computer_drag(
        ctx: Context,
        branch: Branch,
        path: Annotated[
            list[Annotated[list[Place], Field(min_length=2, max_length=2)]],
            Field(min_length=2, max_length=500, description="places [x, y] from the first over the others to the last"),
        ],
        button: Button = "left",
        modifiers: Modifiers = None,
        size: OfPicture = None,
        screenshot: Shows = False,
    ) -> CallToolResult:
        """Drag with the mouse in a branch."""
        return await act(ctx, branch, [{"action": "drag", "path": path, "button": button, "modifiers": modifiers}], size, screenshot)

    @server.tool(annotations=ACTS)
    async def computer_scroll(
        ctx: Context,
        branch: Branch,
        direction: Literal["up", "down", "left", "right"],
        amount: Annotated[int, Field(ge=1, le=100, description="notches of the wheel")] = 3,
        x: X = None,
        y: Y = None,
        modifiers: Modifiers = None,
        size: OfPicture = None,
        screenshot: Shows = False,
    ) -> CallToolResult:
        """Turn the mouse's wheel in a branch."""
        signed = amount if direction in ("down", "right") else -amount
        turned = {"dy": signed} if direction in ("up", "down") else {"dx": signed}
        return await act(ctx, branch, [{"action": "scroll", "x": x, "y": y, "modifiers": modifiers, **turned}], size, screenshot)

    @server.tool(annotations=ACTS)
    async def computer_type(
        ctx: Context, branch: Branch, text: Annotated[str, Field(max_length=MOST_TEXT, description="any characters; a line feed is Return")], screenshot: Shows = False
    ) -> CallToolResult:
        """Type a text into the window of a branch that has the keyboard."""
        return await act(ctx, branch, [{"action": "type", "text": text}], None, screenshot)

    @server.tool(annotations=ACTS)
    async def computer_key(
        ctx: Context,
        branch: Branch,
        keys: Annotated[str, Field(min_length=1, max_length=200, description="a key or a combination: `Return`, `ctrl+c`, `alt+F4`")],
        repeat: Annotated[int, Field(ge=1, le=100)] = 1,
        hold_seconds: Annotated[float | None, Field(ge=0, le=MOST_SECONDS, description="hold it for so long instead of pressing it")] = None,
        screenshot: Shows = False,
    ) -> CallToolResult:
        """Press a key or a combination of keys in a branch."""
        held = {"action": "hold_key", "keys": keys, "seconds": hold_seconds}
        return await act(ctx, branch, [{"action": "key", "keys": keys, "repeat": repeat} if hold_seconds is None else held], None, screenshot)

    @server.tool(annotations=LOOKS)
    async def computer_wait(
        ctx: Context, branch: Branch, seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)], screenshot: Shows = True
    ) -> CallToolResult:
        """Wait, then look at a branch's screen."""
        return await act(ctx, branch, [{"action": "wait", "seconds": seconds}], None, screenshot)

    @server.tool(annotations=ACTS)
    async def computer_batch(
        ctx: Context,
        branch: Branch,
        actions: Annotated[list[Action], Field(min_length=1, max_length=MOST_ACTIONS, description="in order, up to the first that fails")],
        size: OfPicture = None,
        screenshot: Shows = False,
    ) -> CallToolResult:
        """Do several actions in a branch one after the other, with nothing else between them."""
        return await act(ctx, branch, [action.model_dump(exclude_none=True) for action in actions], size, screenshot)

    @server.tool(annotations=LOOKS)
    async def computer_windows(ctx: Context, branch: Branch) -> CallToolResult:
        """List a branch's windows, the lowest first: id, title, program, place, which one is active."""
        return answer(branch, await find(ctx).json("GET", f"/workspaces/{branch}/windows"))

    @server.tool(annotations=LOOKS)
    async def computer_read(
        ctx: Context, branch: Branch, nodes: Annotated[int, Field(ge=1, le=MOST_NODES, description="the most things to look at")] = DEFAULT_NODES
    ) -> CallToolResult:
        """Read what a branch's programs say of what they show (accessibility tree): a line for each button, text, field, with the middle of its place on the screen."""
        content, _ = await find(ctx).read(f"/workspaces/{branch}/accessibility", {"form": "text", "showing": 1, "nodes": nodes})
        return answer(branch, shown=content.decode())

    @server.tool(annotations=ACTS)
    async def computer_activate(
        ctx: Context, branch: Branch, window: Annotated[int, Field(ge=1, le=0xFFFFFFFF, description="id, as computer_windows tells it")], screenshot: Shows = False
    ) -> CallToolResult:
        """Bring a window of a branch to the front and give it the keyboard."""
        return await act(ctx, branch, [{"action": "activate", "window": window}], None, screenshot)

    @server.tool(annotations=LOOKS)
    async def computer_clipboard_get(ctx: Context, branch: Branch) -> CallToolResult:
        """Read the text in a branch's clipboard."""
        return answer(branch, await find(ctx).json("GET", f"/workspaces/{branch}/clipboard"))

    @server.tool(annotations=ACTS)
    async def computer_clipboard_set(ctx: Context, branch: Branch, text: Annotated[str, Field(max_length=MOST_CLIPBOARD)]) -> CallToolResult:
        """Put a text into a branch's clipboard."""
        await find(ctx).json("PUT", f"/workspaces/{branch}/clipboard", {"text": text})
        return answer(branch, characters=len(text))


def _shown(branch: str, shot: Picture, done: dict[str, Any] | None = None) -> CallToolResult:
    return answer(branch, done or {}, image=(shot.content, shot.kind), picture=list(shot.size), screen=list(shot.screen))


async def _picture(caller: Caller, branch: str, max_edge: int, **query: str | int) -> Picture:
    """The whole screen, no edge longer than `max_edge` unless `query` tells the very size."""
    query = {"format": "png", "max_bytes": MOST_PICTURE_BYTES, **query}
    if "height" in query:
        return await caller.picture(branch, query)
    shot = await caller.picture(branch, {**query, "width": max_edge})
    wide, high = shot.size
    if high <= max_edge:
        return shot
    # Higher than wide: the API limits the width alone.
    return await caller.picture(branch, {**query, "width": max(_SMALLEST_EDGE, wide * max_edge // high)})
