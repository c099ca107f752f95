"""Bytes of files on their way through the portal: in pieces, at the pace of the slower side, never as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
from aiohttp import BodyPartReader, web

_SIZE = 256 << 10


async def of_body(request: web.Request) -> AsyncIterator[bytes]:
    """A request's body, as it comes."""
    while piece := await request.content.readany():
        yield piece


async def of_part(part: BodyPartReader) -> AsyncIterator[bytes]:
    """One file of a form, as it comes."""
    while piece := await part.read_chunk(_SIZE):
        yield bytes(piece)


async def of_whole(content: bytes) -> AsyncIterator[bytes]:
    """What is in memory already."""
    yield content


async def send(source: aiohttp.ClientResponse, request: web.Request, answer: web.StreamResponse) -> None:
    """Pass on what the engine reads as the body of an answer that has been begun. Raises what breaks it off."""
    try:
        async for piece in source.content.iter_chunked(_SIZE):
            await answer.write(piece)
    except Exception:
        # Half of it has gone out: a connection that breaks off tells the client that this is not all.
        if request.transport is not None:
            request.transport.abort()
        raise
