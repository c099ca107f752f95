"""One workspace's OSWorld server: who may ask it, on whose account, and how its errors look."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
from aiohttp import hdrs, web

from engine.desktop.actions import Action, Batch, problem_of
from engine.errors import EngineError
from portal import audit
from portal.api.actions import Actions, succeeded
from portal.errors import Forbidden, PortalError
from portal.inside import Inside
from portal.lost import Lost
from portal.node import Node
from portal.osworld.guest import Done, Guest
from portal.owners import Owners
from portal.principal import Principal, Role, Scope, closure
from portal.rates import Rates
from portal.routes import Call, Router
from portal.sockets import Limited
from portal.users import Users

log = logging.getLogger(__name__)

# Commands and scripts; uploads are streamed.
_BODY_LIMIT = 32 << 20
# Under way in one workspace.
MOST_REQUESTS = 64
_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
# A browser says where a request comes from; OSWorld's clients are none.
_OF_BROWSERS = (hdrs.ORIGIN, "Sec-Fetch-Site", "Sec-Fetch-Mode", hdrs.REFERER)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Ground:
    """What the servers of all workspaces stand on."""

    def __init__(self, node: Node, inside: Inside, actions: Actions, router: Router, owners: Owners, users: Users, rates: Rates) -> None:
        self.node = node
        self.inside = inside
        self.guest = Guest(node)
        self._actions = actions
        self._router = router
        self._owners = owners
        self._users = users
        self._rates = rates

    def principal(self, workspace: str) -> Principal:
        """A program of whoever owns the workspace; an admin's where nobody does. It can do nothing but drive this workspace.

        Raises Forbidden when the owner has been disabled.
        """
        owner = self._owners.of(workspace)
        if owner is not None and self._users.enabled(owner) is None:
            raise Forbidden(f"the owner of {workspace} is disabled")
        return Principal(owner or "admin", Role.USER, closure([Scope.CONTROL]), token=f"osworld-{workspace}")

    def call(self, request: web.Request, workspace: str) -> Call:
        return Call(request, self.principal(workspace), workspace, None)

    def admit(self, workspace: str, asked: str) -> None:
        """Before anything is done in a workspace. Raises Held while a person has control."""
        self._router.act(self.principal(workspace), workspace, asked)

    async def act(self, request: web.Request, workspace: str, actions: list[Action]) -> dict[str, Any]:
        """Actions at its desktop, all of which must succeed: the engine's answer. Raises PortalError, EngineError."""
        answer = await self._actions.act_by_key(self.call(request, workspace), actions, None, None)
        succeeded(answer)
        return answer

    async def run(self, request: web.Request, workspace: str, command: dict[str, Any]) -> Done:
        """A command inside, on record, whose programs may act at the desktop meanwhile. Raises as Guest.run, and Held."""
        self.admit(workspace, request.path)
        principal = self.principal(workspace)
        try:
            self._rates.take(principal.grant, 1)
            done = await self.guest.run(workspace, command, lambda question: self._asked(request, workspace, question))
        except (PortalError, EngineError) as error:
            audit.record("command", user=principal.user, token=principal.token, workspace=workspace, outcome=error.code)
            raise
        audit.record("command", user=principal.user, token=principal.token, workspace=workspace, outcome="late" if done.late else str(done.returncode))
        return done

    async def _asked(self, request: web.Request, workspace: str, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a program inside: what it asks is checked like everybody's."""
        try:
            if question.get("screenshot") is True:
                region = question.get("region")
                shot = await self.node.screenshot(workspace, region=_box(region) if region is not None else None)
                return {"png": base64.b64encode(shot.content).decode() if shot is not None else ""}
            batch = Batch.model_validate(question)
            return await self.act(request, workspace, batch.actions)
        except pydantic.ValidationError as error:
            return {"error": problem_of(error)}
        except (PortalError, EngineError) as error:
            return {"error": error.message}


def _box(region: object) -> list[int]:
    """pyautogui's (left, top, width, height) as our left, top, right, bottom."""
    if not isinstance(region, list) or len(region) != 4 or not all(isinstance(part, int) and 0 <= part < 65536 for part in region):
        raise PortalError("region must be left, top, width and height")
    left, top, width, height = region
    return [left, top, left + width, top + height]


def application(routes: Callable[[Ground, str, Lost[web.Response]], list[web.RouteDef]], ground: Ground) -> Callable[[str], web.Application]:
    """A function that makes a workspace's application."""

    def made(workspace: str) -> web.Application:
        lost, busy = Lost[web.Response](), Limited("request", MOST_REQUESTS)

        @web.middleware
        async def of_somebody(request: web.Request, handler: Handler) -> web.StreamResponse:
            ground.principal(workspace)
            # A request goes on when its client goes, some for half an hour.
            with busy.another(workspace):
                return await handler(request)

        app = web.Application(middlewares=[_errors, _local, of_somebody], client_max_size=_BODY_LIMIT)
        app.add_routes(routes(ground, workspace, lost))

        async def close(_: web.Application) -> None:
            await lost.close()

        app.on_shutdown.append(close)
        return app

    return made


def failure(message: str, status: int) -> web.Response:
    """An error as OSWorld's server tells it."""
    return web.json_response({"status": "error", "message": message, "error": message}, status=status)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except PortalError as error:
        return failure(error.message, error.status)
    except EngineError as error:
        return failure(error.message, error.http_status)
    except pydantic.ValidationError as error:
        return failure(problem_of(error), 400)
    except web.HTTPException as answer:
        if answer.status < 400:
            raise
        return failure(answer.reason or "refused", answer.status)
    except Exception:  # noqa: BLE001 - a defect must be told to the caller and logged
        log.exception("OSWorld server: %s %s failed", request.method, request.path)
        return failure("the OSWorld server failed; the portal's log has more", 500)


@web.middleware
async def _local(request: web.Request, handler: Handler) -> web.StreamResponse:
    """There is no login here, so no web page may make a browser of this machine speak to it: not across sites, not by a name that it rebinds."""
    if not _HOST.fullmatch(request.headers.get(hdrs.HOST, "")):
        return failure("ask for 127.0.0.1 or localhost by name", 421)
    if any(name in request.headers for name in _OF_BROWSERS):
        return failure("this server is not for browsers", 403)
    return await handler(request)


async def object_of(request: web.Request) -> tuple[bytes, dict[str, Any]]:
    """The body and the JSON object in it. Raises HTTPException."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(reason="the body must be application/json")
    body = await request.read()
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise web.HTTPBadRequest(reason="the body must be a JSON object")
    return body, value
