"""Requests to a workspace's own host: entering it with a one-time code, the viewer's files and its stream."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from engine.errors import Conflict, EngineError, NotFound as EngineNotFound
from portal import logs
from portal.stream import pages, viewer, viewer_api
from portal.stream.control import Control, Desk
from portal.stream.errors import BadRequest, Denied, NoSession, NotFound, NotReady, StreamError, Unavailable
from portal.stream.front import Link, NativeRelay
from portal.stream.headers import cookie_value, desktop_policy, desktop_response_headers, request_headers
from portal.stream.pace import Pace
from portal.stream.proxy import Target, check_target, forward, upgrade, wants_upgrade
from portal.stream.registry import OpenRelay, Registry
from portal.stream.relay import Relay
from portal.stream.routing import Route
from portal.stream.viewer_api import Role
from portal.stream.workspaces import Engine, Workspaces

DESK_COOKIE = "__Host-tclone-desk"
DESKTOP_PORT = 8080

_SAFE_METHODS = frozenset({"GET", "HEAD"})
_FORM_LIMIT = 4096
_FORM_SECONDS = 10.0
_TOKEN_PROTOCOL = "selkies"
_TOKEN_PROTOCOL_PREFIX = "selkies.token."
# Selkies closes a viewer that comes within 500 ms of another one from the same address, and all of ours come from one.
UPGRADE_SPACING_SECONDS = 1.0


def _token_protocols(headers: CIMultiDict[str], token: str) -> bool:
    """Offer the viewer's token as the subprotocols Selkies takes it from; whether the browser had offered subprotocols itself."""
    offered = [p.strip() for value in headers.popall("Sec-WebSocket-Protocol", ()) for p in value.split(",") if p.strip()]
    kept = [p for p in offered if not p.startswith(_TOKEN_PROTOCOL_PREFIX)]
    encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    ours = [] if _TOKEN_PROTOCOL in kept else [_TOKEN_PROTOCOL]
    headers["Sec-WebSocket-Protocol"] = ", ".join([*kept, *ours, _TOKEN_PROTOCOL_PREFIX + encoded])
    return bool(kept)


class Desktops:
    """Serves `<id>.<portal host>`."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        control: Control,
        engine: Engine,
        workspaces: Workspaces,
        registry: Registry,
        pace: Pace,
        link: Callable[[object], Link | None],
    ) -> None:
        """`link` finds the connection of a request's protocol, where the native relay carries it."""
        self._client = client
        self._control = control
        self._engine = engine
        self._workspaces = workspaces
        self._registry = registry
        self._pace = pace
        self._link = link

    async def serve(self, request: web.BaseRequest, route: Route, peer: str) -> web.StreamResponse:
        """Answer one request. Refusals are answers here, so that each carries the framing rules."""
        try:
            response = await self._serve(request, route, peer)
        except StreamError as exc:
            response = self._refusal(request, route, exc)
        if isinstance(response, web.Response) and not response.prepared:
            policy = dict(desktop_policy(route.portal_origin))
            frames = policy.pop("Content-Security-Policy")
            own = response.headers.get("Content-Security-Policy")
            response.headers["Content-Security-Policy"] = f"{own}; {frames}" if own else frames
            response.headers.update(policy)
        return response

    def _refusal(self, request: web.BaseRequest, route: Route, error: StreamError) -> web.Response:
        item = self._workspaces.get(route.workspace)
        if isinstance(error, NotReady) and pages.wants_page(request) and item is not None and item.get("state") != "failed":
            response = pages.waiting_page(route.workspace, str(item.get("state") or ""), str(item.get("phase") or ""))
            response.headers.update({"Retry-After": "1", "Cache-Control": "no-store"})
            return response
        return pages.error_response(request, error, route.portal_origin, route.workspace)

    async def _serve(self, request: web.BaseRequest, route: Route, peer: str) -> web.StreamResponse:
        check_target(request)
        path = viewer_api.decoded_path(request.raw_path)
        if path is None:
            raise BadRequest("the path is not in its plain form")
        if path == pages.ENTER_PATH:
            return await self._enter(request, route)
        own = pages.own_file(path)
        if own is not None and request.method in _SAFE_METHODS:
            return own
        upgrading = wants_upgrade(request)
        if (upgrading or request.method not in _SAFE_METHODS) and request.headers.get("Origin") != route.origin:
            raise Denied(f"requests of this kind are taken from pages of {route.origin} only")
        cookie, desk = await self._desk(request, route)
        if path == pages.STATE_PATH and request.method in _SAFE_METHODS:
            return await self._state(route.workspace, desk.role)
        if not viewer_api.allows(request.method, path, desk.role):
            raise NotFound(f"a desktop has no {request.method} {path} here")
        self._present(route.workspace)
        headers = request_headers(CIMultiDict(request.headers), request.host, peer, desktop=True)
        target = Target(
            self._client,
            f"http://{route.workspace}:{DESKTOP_PORT}",
            headers,
            lambda answer: desktop_response_headers(answer, route.portal_origin),
            (lambda page, answer: viewer.added(page, answer, route.portal_origin)) if path == "/" else None,
            self._link(request.protocol),
        )
        if upgrading:
            if path not in viewer_api.WEBSOCKET_PATHS:
                raise NotFound(f"no websocket at {path}")
            return await self._stream(request, route, target, cookie, desk)
        # The viewer's files need no token; its page waits until there is one, so that its websocket can succeed.
        if path == "/":
            viewer.ask_for_plain(headers)
        if path == "/" or path.startswith("/api/"):
            headers["Authorization"] = f"Bearer {await self._token(route.workspace, desk.role)}"
        return await forward(request, target)

    async def _enter(self, request: web.BaseRequest, route: Route) -> web.Response:
        """Redeem the one-time code of a form that the portal's page posted; sets the desk cookie."""
        if request.method != "POST":
            raise NotFound("this address takes the portal's form only")
        if request.headers.get("Origin") != route.portal_origin:
            raise Denied(f"a desktop is entered from {route.portal_origin} only")
        if request.content_type != "application/x-www-form-urlencoded":
            raise BadRequest("the form has to be application/x-www-form-urlencoded")
        form = await self._form(request)
        code, path = form.get("code", ""), form.get("path", "/")
        if not code:
            raise BadRequest("the form has no code")
        if not path.startswith("/") or path.startswith("//") or viewer_api.decoded_path(path) is None:
            raise BadRequest("the form's path has to start with a single /")
        desk = await self._control.redeem(code, route.workspace)
        # Written out: http.cookies knows no Partitioned before Python 3.14.
        seconds = max(1, int(desk.expires - time.time()))
        cookie = f"{DESK_COOKIE}={desk.cookie}; Max-Age={seconds}; Path=/; Secure; HttpOnly; SameSite=None; Partitioned"
        return web.Response(status=303, headers={"Location": path, "Set-Cookie": cookie, "Cache-Control": "no-store"})

    async def _form(self, request: web.BaseRequest) -> dict[str, str]:
        try:
            async with asyncio.timeout(_FORM_SECONDS):
                body = b""
                while chunk := await request.content.read(_FORM_LIMIT):
                    body += chunk
                    if len(body) > _FORM_LIMIT:
                        raise BadRequest("the form is too long")
            fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=8)
        except TimeoutError as exc:
            raise BadRequest("the form did not arrive in time") from exc
        except ValueError as exc:
            raise BadRequest("the form is malformed") from exc
        if any(len(values) != 1 for values in fields.values()):
            raise BadRequest("each field of the form may be sent once")
        return {name: values[0] for name, values in fields.items()}

    async def _desk(self, request: web.BaseRequest, route: Route) -> tuple[str, Desk]:
        """The right that the request's cookie gives to this very desktop, with its connection kept under its session."""
        cookie = cookie_value(CIMultiDict(request.headers), DESK_COOKIE)
        if not cookie:
            raise NoSession(f"this browser has not been let in to {route.workspace}")
        desk = await self._control.check(cookie, route.workspace)
        logs.note(user=desk.user)
        self._registry.hold_connection(request.protocol, desk.session, route.workspace, request.protocol.force_close)
        return cookie, desk

    def _present(self, workspace: str) -> dict[str, Any] | None:
        item = self._workspaces.get(workspace)
        if item is None and self._workspaces.known:
            raise NotFound(f"no workspace {workspace}; it may have been discarded")
        if item is not None and not item.get("desktop", True):
            raise NotFound(f"{workspace} has no desktop; use `tclone shell {workspace}`")
        if item is not None and item.get("state") in ("failed", "stopped"):
            raise Unavailable(f"{workspace} is {item['state']}: {item.get('error') or 'see `tclone logs`'}")
        return item

    async def _token(self, workspace: str, role: Role) -> str:
        """The token for that role, asked afresh: one that was changed meanwhile would make the viewer give up for good."""
        try:
            return str((await self._engine.stream_token(workspace, role))["token"])
        except Conflict as exc:
            raise NotReady(f"the desktop of {workspace} is not ready yet") from exc
        except EngineNotFound as exc:
            raise NotFound(f"no workspace {workspace}; it may have been discarded") from exc
        except (EngineError, OSError, TimeoutError) as exc:
            raise Unavailable("the engine does not answer; open desktops go on") from exc

    async def _state(self, workspace: str, role: Role) -> web.Response:
        """What the waiting page asks."""
        item = self._present(workspace) or {}
        try:
            await self._token(workspace, role)
            ready = True
        except (NotReady, Unavailable):
            ready = False
        answer = {"ready": ready, "state": item.get("state"), "phase": item.get("phase")}
        return web.json_response(answer, headers={"Cache-Control": "no-store"})

    async def _stream(
        self, request: web.BaseRequest, route: Route, target: Target, cookie: str, desk: Desk
    ) -> web.StreamResponse:
        await self._wait_for_turn(route.workspace)
        # Last: the engine has just made sure that the desktop's server knows it, which one that was started again would not.
        token = await self._token(route.workspace, desk.role)
        offered = _token_protocols(target.headers, token)

        def admit(relay: Relay | NativeRelay) -> None:
            if not self._control.still_good(cookie, route.workspace):
                raise NoSession("the session has ended; log in again")
            self._present(route.workspace)
            self._registry.drop_connection(request.protocol)
            self._registry.add(OpenRelay(relay, desk.session, route.workspace, desk.expires))

        return await upgrade(request, target, admit, offered)

    async def _wait_for_turn(self, workspace: str) -> None:
        if (seconds := self._pace.take(workspace)) > 0:
            await asyncio.sleep(seconds)
