"""Stands in for the stream process in page tests: TLS, routing by Host, the ticket exchange, and a picture of a desktop."""

from __future__ import annotations

import asyncio
import contextlib
import html
import ssl
from pathlib import Path

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from portal import hosts
from portal.places import Places
from portal.stream import viewer
from portal.stream.pages import own_file

_DESKTOP = Path(__file__).with_name("desktop.html")
_HEAD_LIMIT = 64 * 1024


class Front:
    """`async with Front(places) as front`; `front.port` is the public port. `front.entered` counts redeemed tickets."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._desktops = places.run / "desktops.sock"
        self._pipes: set[asyncio.Task[None]] = set()
        self.port = 0
        self.entered: list[str] = []
        self.requests: list[str] = []
        # What a desktop's page waits for before it is sent, and what stands in it in place of its picture being there at once.
        self.sends = asyncio.Event()
        self.sends.set()
        self.draws = True
        # Whether that page has the portal's script, which tells of its picture.
        self.tells = True

    async def __aenter__(self) -> Front:
        app = web.Application()
        app.add_routes([web.post("/__tclone/enter", self._enter), web.get("/", self._desktop), web.get("/__tclone/{file}", self._own)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._desktops)).start()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._places.leaf_certificate, self._places.leaf_key)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None and self._runner is not None
        self._server.close()
        for task in self._pipes:
            task.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        await self._runner.cleanup()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        upstream = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            host = next(line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:"))
            self.requests.append(f"{host} {lines[0]}")
            to_desktop = hosts.workspace_of(host) is not None
            path = self._desktops if to_desktop else self._places.control_socket
            up_reader, upstream = await asyncio.open_unix_connection(str(path))
            upstream.write(head.replace(b"\r\n", b"\r\nX-Forwarded-For: 192.0.2.1\r\n", 1))
            pipes = [asyncio.create_task(_pipe(reader, upstream)), asyncio.create_task(_pipe(up_reader, writer))]
            try:
                await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pipe in pipes:
                    pipe.cancel()
                await asyncio.gather(*pipes, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        finally:
            self._pipes.discard(task)
            for side in (writer, upstream):
                if side is not None:
                    side.close()
                    with contextlib.suppress(OSError, ssl.SSLError):
                        await side.wait_closed()

    async def _enter(self, request: web.Request) -> web.Response:
        workspace = hosts.workspace_of(request.headers["Host"])
        form = await request.post()
        if request.headers.get("Origin") != hosts.portal_origin(request.headers["Host"]):
            return web.Response(status=403, text="wrong origin")
        connector = aiohttp.UnixConnector(str(self._places.private_socket))
        async with aiohttp.ClientSession(connector=connector) as client:
            body = {"code": form.get("code"), "workspace": workspace}
            async with client.post("http://control/tickets/redeem", json=body) as answer:
                if answer.status != 200:
                    return web.Response(status=403, text="refused")
                desk = (await answer.json())["desk"]
        self.entered.append(workspace or "")
        cookie = f"__Host-tclone-desk={desk}; Secure; HttpOnly; SameSite=None; Partitioned; Path=/"
        return web.Response(status=303, headers={"Location": "/", "Set-Cookie": cookie})

    async def _desktop(self, request: web.Request) -> web.Response:
        workspace = hosts.workspace_of(request.headers["Host"])
        if "__Host-tclone-desk" not in request.cookies:
            return web.Response(status=401, text="no desk")
        await self.sends.wait()
        text = _DESKTOP.read_text().replace("WORKSPACE", html.escape(workspace or ""))
        if not self.draws:
            # As long as its page says so, nothing was decoded.
            text = text.replace('setTimeout(() => document.getElementById("status-display").classList.add("hidden"), 150);', "")
        portal = hosts.portal_origin(request.headers["Host"])
        body = viewer.added(text.encode(), CIMultiDict(), portal) if self.tells else text.encode()
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers={"Content-Security-Policy": f"frame-ancestors {portal}"})

    async def _own(self, request: web.Request) -> web.Response:
        answer = own_file(request.path)
        assert answer is not None
        return answer


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_HEAD_LIMIT):
        writer.write(data)
        await writer.drain()
