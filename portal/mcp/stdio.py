"""`python -m portal.mcp`: the Model Context Protocol on stdin and stdout, for clients that start their servers themselves.

It runs where the client runs and reaches a portal over HTTPS with a token, which comes from a file or the environment: an argument could be read by everybody
on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import ssl
import stat
import sys
from collections.abc import Mapping

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from portal.mcp.caller import Caller
from portal.mcp.server import build

_PORTAL = "https://tclone.localhost:8443"
_LONGEST_TOKEN = 4096


class Unusable(ValueError):
    """What was given cannot be used; the message says what to give."""


class _Resolver(ThreadedResolver):
    """Names below `localhost` are this machine's, as browsers and curl have it; not every system's resolver does."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        local = host == "localhost" or host.endswith(".localhost")
        return await super().resolve("localhost" if local else host, port, family)


def arguments(argv: list[str] | None, environment: Mapping[str, str]) -> argparse.Namespace:
    """Parse the command line; defaults are the environment's."""
    parser = argparse.ArgumentParser(prog="tclone mcp", description="Serve the Model Context Protocol on stdin and stdout, before a portal.")
    add_options(parser, environment)
    return parser.parse_args(argv)


def add_options(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """The options, for `tclone mcp` too."""
    parser.add_argument("--url", default=environment.get("TCLONE_URL", _PORTAL), help="the portal's address (TCLONE_URL): %(default)s")
    parser.add_argument("--token-file", default=environment.get("TCLONE_TOKEN_FILE"), metavar="FILE",
                        help="a file that holds an API token and that nobody else can read (TCLONE_TOKEN_FILE; or TCLONE_TOKEN has the token)")  # fmt: skip
    parser.add_argument("--ca", default=environment.get("TCLONE_CA"), metavar="FILE",
                        help="the certificate of the portal's authority, as `tclone ca --pem` prints it (TCLONE_CA); else those of the system")  # fmt: skip


def origin_of(address: str) -> str:
    """Scheme, host and port of the portal's address. Raises Unusable: a token goes over TLS only."""
    try:
        parsed = URL(address)
        if parsed.scheme == "https" and parsed.host and parsed.path in ("", "/") and not (parsed.query_string or parsed.user or parsed.password):
            return str(parsed.origin())
    except ValueError:
        pass
    raise Unusable(f"the portal's address is https://NAME[:PORT], not {address[:200]!r}")


def token_of(path: str | None, environment: Mapping[str, str]) -> str:
    """The token. Raises Unusable."""
    if path is None:
        token = environment.get("TCLONE_TOKEN", "")
        if not token:
            raise Unusable("a token is needed: --token-file FILE, TCLONE_TOKEN_FILE or TCLONE_TOKEN; `tclone token create` makes one")
    else:
        try:
            with open(path, encoding="ascii") as file:
                if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise Unusable(f"others can read the token in {path}: chmod 600 {path}")
                token = file.read(_LONGEST_TOKEN).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unusable(f"the token in {path} cannot be read: {error}") from None
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise Unusable("the token is not one line as `tclone token create` printed it")
    return token


def trust_of(path: str | None) -> ssl.SSLContext:
    """Whom to trust. Raises Unusable."""
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise Unusable(f"the authority's certificate in {path} cannot be used: {error}") from None


async def serve(origin: str, token: str, trust: ssl.SSLContext) -> None:
    """Serve until stdin ends."""
    connector = aiohttp.TCPConnector(ssl=trust, resolver=_Resolver())
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        caller = Caller(session, origin, {hdrs.AUTHORIZATION: f"Bearer {token}"})
        await build(lambda _: caller).run_stdio_async()


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when the client has gone, 2 with one line on stderr for what cannot be used."""
    given = arguments(argv, os.environ)
    try:
        parts = origin_of(given.url), token_of(given.token_file, os.environ), trust_of(given.ca)
    except Unusable as error:
        print(f"tclone: mcp: {error}", file=sys.stderr)
        return 2
    # Nothing that this process starts needs it.
    os.environ.pop("TCLONE_TOKEN", None)
    asyncio.run(serve(*parts))
    return 0
