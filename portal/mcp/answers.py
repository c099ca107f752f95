"""What every tool has in common: how it names its branch, and the form of its answer, which tells the branch that it came from."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from pydantic import Field

from portal.mcp.caller import Caller

Branch = Annotated[str, Field(min_length=1, max_length=200, description="id of the branch (workspace), as branch_list tells it: `ws-3`; or its name")]
# Finds the caller of a request.
Find = Callable[[Context], Caller]

LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ACTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def answer(branch: str | None, told: Mapping[str, Any] = {}, /, image: tuple[bytes, str] | None = None, **more: Any) -> CallToolResult:
    """`told` by the API and `more` as JSON, for programs and as text, with the branch first; `image`: a picture and its media type, never as text."""
    facts = {"branch": "", **told, **more, "branch": branch} if branch is not None else {**told, **more}
    content: list[Any] = [TextContent(type="text", text=json.dumps(facts, ensure_ascii=False))]
    if image is not None:
        content.append(ImageContent(type="image", data=base64.b64encode(image[0]).decode(), mime_type=image[1]))
    return CallToolResult(content=content, structured_content=facts)
