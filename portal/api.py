"""The browser API: what the pages' buttons do."""

from __future__ import annotations

import asyncio
import re

from aiohttp import hdrs, web

from portal import accounts, audit, hosts, security
from portal.attempts import Attempts
from portal.builds import Builds
from portal.database import Database
from portal.errors import Conflicting, Malformed, TooMany, WrongPassword
from portal.feed import Feed
from portal.node import Node
from portal.security import json_body, session_of
from portal.sessions import Session, Sessions
from portal.tickets import Tickets

_ID = re.compile(r"ws-[0-9]{1,18}")
_LONGEST_TAIL = 2000
_MOST_PORTS = 64
# argon2 takes 64 MiB and a core for each check: a flood of logins must not take the machine.
_HASHES_AT_ONCE = 2


class Api:
    """Routes under /api."""

    def __init__(
        self,
        node: Node,
        feed: Feed,
        builds: Builds,
        sessions: Sessions,
        tickets: Tickets,
        database: Database,
        attempts: Attempts,
    ) -> None:
        self._node = node
        self._feed = feed
        self._builds = builds
        self._sessions = sessions
        self._tickets = tickets
        self._database = database
        self._attempts = attempts
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)

    def routes(self) -> list[web.RouteDef]:
        one = "/api/workspaces/{id}"
        return [
            web.post("/api/login", self._login),
            web.post("/api/logout", self._logout),
            web.get("/api/workspaces", self._list),
            web.post("/api/workspaces", self._launch),
            web.delete(one, self._remove),
            web.post(one + "/fork", self._fork),
            web.get(one + "/logs", self._logs),
            web.post(one + "/ticket", self._ticket),
            web.get("/api/images", self._images),
            web.post("/api/images/{name}/build", self._build),
        ]

    # Login

    async def _login(self, request: web.Request) -> web.Response:
        body = await json_body(request, "user", "password")
        user, password = body.get("user"), body.get("password")
        if not isinstance(user, str) or not isinstance(password, str) or not user or len(user) > 64:
            raise Malformed("user and password must be strings")
        address = security.address_of(request)
        wait = self._attempts.take(address, user)
        if wait:
            audit.record("login-limited", user=user, address=address)
            raise TooMany(f"too many attempts; try again in {wait:.0f} s", retry_after=wait)
        stored = await self._database.run(lambda db: accounts.stored_hash(db, user))
        async with self._hashing:
            good = await asyncio.to_thread(accounts.verify, stored, password)
        if not good:
            audit.record("login-refused", user=user, address=address)
            raise WrongPassword("user or password is wrong")
        self._attempts.clear(address, user)
        earlier = security.session_by_cookie(request)
        if earlier is not None:
            await self._end(earlier)
        made = await self._sessions.create(user)
        audit.record("login", user=user, address=address, session=made.session.id)
        response = web.json_response({"key": made.key})
        security.set_cookie(response, made.cookie)
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        session = session_of(request)
        await self._end(session)
        audit.record("logout", user=session.user, session=session.id)
        response = web.Response(status=204)
        security.delete_cookie(response)
        # The page's key and whatever else this origin kept in the browser.
        response.headers["Clear-Site-Data"] = '"storage"'
        return response

    async def _end(self, session: Session) -> None:
        self._tickets.forget(session.id)
        await self._sessions.end(session, "logout")

    # Workspaces

    async def _list(self, request: web.Request) -> web.Response:
        session_of(request)
        return web.json_response(await self._node.workspaces())

    async def _launch(self, request: web.Request) -> web.Response:
        session = session_of(request)
        body = await json_body(request, "image", "name", "ports", "memory")
        image, ports, memory = body.get("image"), body.get("ports", []), body.get("memory")
        if not isinstance(image, str) or not image:
            raise Malformed("image must be the name of an image")
        if not isinstance(ports, list) or len(ports) > _MOST_PORTS or not all(_is_port(port) for port in ports):
            raise Malformed("ports must be a list of at most 64 numbers from 1 to 65535")
        if memory is not None and not _is_integer(memory):
            raise Malformed("memory must be a number of bytes")
        made = await self._node.launch(image, _name(body), sorted(set(ports)), memory)  # type: ignore[arg-type]
        audit.record("launch", user=session.user, workspace=made["id"], image=image)
        return web.json_response(made, status=201)

    async def _remove(self, request: web.Request) -> web.Response:
        session = session_of(request)
        identity = _identity(request)
        await self._node.remove(identity)
        audit.record("discard", user=session.user, workspace=identity)
        return web.Response(status=204)

    async def _fork(self, request: web.Request) -> web.Response:
        session = session_of(request)
        identity = _identity(request)
        body = await json_body(request, "copies", "name", "tcp_close")
        copies, close = body.get("copies", 1), body.get("tcp_close", False)
        if not _is_integer(copies) or not isinstance(close, bool):
            raise Malformed("copies must be a number, tcp_close true or false")
        result = await self._node.fork(identity, copies, _name(body), close)  # type: ignore[arg-type]
        made = [branch.get("id") for branch in result["branches"]]
        audit.record("fork", user=session.user, workspace=identity, branches=made)
        return web.json_response(result, status=201)

    async def _logs(self, request: web.Request) -> web.Response:
        session_of(request)
        tail = request.query.get("tail", "200")
        if not tail.isdecimal() or not 1 <= int(tail[:6]) <= _LONGEST_TAIL:
            raise Malformed(f"tail must be a number from 1 to {_LONGEST_TAIL}")
        return web.Response(text=await self._node.logs(_identity(request), int(tail)))

    async def _ticket(self, request: web.Request) -> web.Response:
        session = session_of(request)
        identity = _identity(request)
        workspace = await self._node.workspace(identity)
        if not workspace["desktop"]:
            raise Conflicting(f"{identity} has no desktop: its image {workspace['image']} is headless")
        if workspace["state"] not in ("ready", "forking"):
            raise Conflicting(f"the desktop of {identity} is not ready; it is {workspace['state']}")
        origin = hosts.desktop_origin(identity, request.headers.get(hdrs.HOST, ""))
        return web.json_response({"action": f"{origin}/__tclone/enter", "code": self._tickets.issue(session, identity)})

    # Images

    async def _images(self, request: web.Request) -> web.Response:
        session_of(request)
        return web.json_response(await self._builds.list())

    async def _build(self, request: web.Request) -> web.Response:
        session = session_of(request)
        name = request.match_info["name"]
        await self._builds.start(name)
        audit.record("build", user=session.user, image=name)
        return web.json_response({"image": name}, status=202)


def _identity(request: web.Request) -> str:
    identity = request.match_info["id"]
    if not _ID.fullmatch(identity):
        raise Malformed("a workspace's id looks like ws-3")
    return identity


def _name(body: dict[str, object]) -> str | None:
    name = body.get("name")
    if name is not None and not isinstance(name, str):
        raise Malformed("name must be a string")
    return name or None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_port(value: object) -> bool:
    return _is_integer(value) and 1 <= value <= 65535  # type: ignore[operator]
