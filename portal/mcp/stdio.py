"""`python -m portal.mcp`: the Model Context Protocol on stdin and stdout, for clients that start their servers themselves.

It runs where the client runs and reaches a portal over HTTPS with a token, which comes from a file or the environment: an argument could be read by everybody
on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import aiohttp
from aiohttp import hdrs
from mcp.server.stdio import stdio_server

from portal.mcp.asked import Asked
from portal.mcp.caller import SECONDS, Caller
from portal.mcp.server import build
from tclone import settings
from tclone.errors import TCloneError
from tclone.settings import Settings
from tclone.transport import Resolver


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; what is not given is the environment's (tclone.settings)."""
    parser = argparse.ArgumentParser(prog="tclone mcp", description="Serve the Model Context Protocol on stdin and stdout, before a portal.")
    for option in ("--url", "--token-file", "--ca"):
        parser.add_argument(option, help="see `tclone mcp --help`")
    return parser.parse_args(argv)


async def serve(wanted: Settings) -> None:
    """Serve until stdin ends and what was asked until then is answered."""
    trust = wanted.trust()
    connector = aiohttp.TCPConnector(ssl=trust if trust is not None else True, resolver=Resolver())
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        caller = Caller(session, wanted.url, {hdrs.AUTHORIZATION: f"Bearer {wanted.token}"})
        # The SDK keeps it to itself; its own way of serving on stdin drops whatever is under way when that ends.
        server = build(lambda _: caller)._lowlevel_server
        async with stdio_server() as (said, told):
            asked = Asked(said, told, SECONDS)
            await server.run(asked.said, asked.told, server.create_initialization_options())


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when the client has gone, 2 with one line on stderr for what cannot be used."""
    given = arguments(argv)
    try:
        wanted = settings.found(given.url, ca=given.ca, token_file=given.token_file)
        wanted.trust()
    except (TCloneError, ValueError) as error:
        print(f"tclone: mcp: {error}", file=sys.stderr)
        return 2
    # Nothing that this process starts needs it.
    os.environ.pop("TCLONE_TOKEN", None)
    try:
        asyncio.run(serve(wanted))
    except* BrokenPipeError:
        pass  # the client reads no more, so it wants nothing more
    return 0
