"""What a call says before it reaches its tool or resource: branches by name become ids, and arguments that do not fit are told in words for a model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from portal.mcp.caller import Caller, Refused

_ID = re.compile(r"ws-[0-9]{1,18}")
# Fields that name a branch, and what else each may say.
_FIELDS: dict[str, tuple[str, ...]] = {"branch": (), "base": ("parent", "image"), "into": ("parent",)}
_MOST_TOLD = 5
# What is longer is no name, and the schema refuses it.
_LONGEST = 200


async def by_id(caller: Caller, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with ids in place of names: nothing else ever becomes part of an address. Raises as `id_of`."""
    found = dict(arguments)
    for field, words in _FIELDS.items():
        given = found.get(field)
        if isinstance(given, str) and len(given) <= _LONGEST and given not in words:
            found[field] = await id_of(caller, given)
    return found


async def id_of(caller: Caller, name: str) -> str:
    """The id of a branch that is called by its name or id. Raises Refused for a name that is not there, or not once."""
    if _ID.fullmatch(name):
        return name
    ids = [one["id"] for one in await caller.json("GET", "/workspaces") if one["name"] == name]
    if len(ids) == 1 and _ID.fullmatch(ids[0]):
        return ids[0]
    if not ids:
        raise Refused(404, f"no branch has the id or name {name!r}; branch_list tells those that there are")
    raise Refused(409, f"{name!r} is the name of {', '.join(ids)}; say which by its id")


@contextlib.contextmanager
def plain(tool: str) -> Iterator[None]:
    """Arguments that do not fit their schema: each by its name with what is wrong, the first few."""
    try:
        yield
    except ToolError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise
        wrong = error.__cause__.errors(include_url=False, include_input=False)
        told = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg'][:1].lower()}{one['msg'][1:]}" for one in wrong[:_MOST_TOLD]]
        more = f"; and {len(wrong) - _MOST_TOLD} more" if len(wrong) > _MOST_TOLD else ""
        raise ToolError(f"{tool} was not called: {'; '.join(told)}{more}") from error.__cause__
