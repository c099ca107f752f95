"""Mouse, keys, windows and clipboard of desktops, for programs: every action under its lease, its rate and the audit log."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable
from typing import Annotated, Any

import pydantic
from aiohttp import web

from engine.desktop.actions import MOST_ACTIONS, MOST_CLIPBOARD, Action, GetClipboard, SetClipboard, Size
from engine.errors import EngineError, Unavailable, from_wire
from engine.waiting import seen
from portal import audit
from portal.bodies import Body
from portal.errors import Forbidden, Malformed, PortalError
from portal.node import Node
from portal.once import KEY_HEADER
from portal.principal import Scope
from portal.rates import Rates
from portal.routes import LONGEST_TEXT_BODY, Call, Route, Router

log = logging.getLogger(__name__)

# Ids of batches that are in the audit log already: a repetition is the same batch.
_MOST_NOTED = 10_000
# A program's actions end within moments of a release; one that does not is told of in the log.
_STOPPED_SECONDS, _RELEASE_AGAIN_SECONDS = 10.0, 0.2


class Acts(Body):
    """`size`: width and height of the picture that places are pixels of; the screen's own without it."""

    actions: Annotated[list[Action], pydantic.Field(min_length=1, max_length=MOST_ACTIONS)]
    size: Size | None = None


class Text(Body):
    """What the clipboard shall hold."""

    text: Annotated[str, pydantic.Field(max_length=MOST_CLIPBOARD)]


class Actions:
    """`/workspaces/{id}/actions`, `/windows`, `/clipboard`. `act` is how every other face of them acts, too."""

    def __init__(self, node: Node, router: Router, rates: Rates) -> None:
        self._node = node
        self._router = router
        self._rates = rates
        self._acting: dict[str, set[asyncio.Future[Any]]] = {}
        self._releasing: Counter[str] = Counter()
        self._released = asyncio.Condition()
        self._noted: OrderedDict[str, None] = OrderedDict()

    def routes(self) -> list[Route]:
        one = "/workspaces/{id}"
        board = one + "/clipboard"
        return [
            Route("POST", one + "/actions", Scope.CONTROL, self._act, f"Mouse, keys, windows, clipboard; once for each {KEY_HEADER}", Acts,
                  {200: "a result for each action"}, once="memory", longest=LONGEST_TEXT_BODY),
            Route("GET", one + "/windows", Scope.READ, self._windows, "Its windows, the lowest first", answers={200: "the windows"}),
            # Not for `read`: who only watches is sent no clipboard either.
            Route("GET", board, Scope.CONTROL, self._clipboard, "The text of its clipboard", answers={200: "the text"}),
            Route("PUT", board, Scope.CONTROL, self._put, "Put a text into its clipboard", Text, {204: "it is there"}, longest=LONGEST_TEXT_BODY),
        ]  # fmt: skip

    async def act(self, call: Call, actions: list[Action], size: list[int] | None = None) -> dict[str, Any]:
        """Carry actions out, once for each key of the request: the engine's answer. Every one of them is in the audit log, refused ones too.

        Raises Held, TooMany, Malformed, EngineError: then nothing was done.
        """
        return await self.act_by_key(call, actions, size, call.request.headers.get(KEY_HEADER))

    async def act_by_key(self, call: Call, actions: list[Action], size: list[int] | None, key: str | None) -> dict[str, Any]:
        """The same for requests that share one connection, each with a key of its own or none. Raises Forbidden, too."""
        request_id = call.identified(key)
        await self._no_release(call.workspace)
        try:
            if not call.principal.may(Scope.CONTROL):
                raise Forbidden(f"this needs the scope {Scope.CONTROL}")
            self._router.may_act(call.principal, call.workspace)
            self._rates.take(call.principal.grant, len(actions))
            answer = await self._under_way(call, self._node.act(call.workspace, _wire(actions), size, request_id))
        except (PortalError, EngineError) as error:
            for action in actions:
                _record(call, action.action, error.code)
            raise
        if request_id is None or not self._known(request_id):
            self._record_results(call, answer)
        return answer

    async def let_go(self, call: Call, actions: list[Action]) -> None:
        """Release what a program held when its connection ended: at no rate, and not when a person has taken control, for whom it was released."""
        try:
            self._router.may_act(call.principal, call.workspace)
            self._record_results(call, await self._node.act(call.workspace, _wire(actions), None, None))
        except (PortalError, EngineError) as error:
            log.info("nothing to let go of in %s: %s", call.workspace, error)

    def _record_results(self, call: Call, answer: dict[str, Any]) -> None:
        for result in answer["results"]:
            _record(call, result["action"], "ok" if result["ok"] else "skipped" if result.get("skipped") else str(result["error"]["code"]))

    async def _under_way(self, call: Call, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Wait for actions, known to `release` meanwhile when they are a program's."""
        if call.principal.is_person:
            return await work
        task = asyncio.ensure_future(work)
        task.add_done_callback(seen)
        acting = self._acting.setdefault(call.workspace, set())
        acting.add(task)
        try:
            return await asyncio.shield(task)
        finally:
            acting.discard(task)
            if not acting and self._acting.get(call.workspace) is acting:
                del self._acting[call.workspace]

    def _known(self, request_id: str) -> bool:
        """Whether this batch was noted before; it is from now on."""
        if request_id in self._noted:
            return True
        self._noted[request_id] = None
        while len(self._noted) > _MOST_NOTED:
            self._noted.popitem(last=False)
        return False

    async def release(self, workspace: str) -> None:
        """A person took control: what a program still does there is stopped, and what it holds let go of. A dead desktop holds nothing.

        Actions that were let through just before may reach the engine after the release: it is done again until none of them is under way.
        """
        deadline = asyncio.get_running_loop().time() + _STOPPED_SECONDS
        while True:
            await self._release(workspace)
            acting = self._acting.get(workspace)
            if not acting:
                return
            await asyncio.wait(set(acting), timeout=_RELEASE_AGAIN_SECONDS)
            if asyncio.get_running_loop().time() > deadline:
                log.warning("actions in %s go on although a person took control", workspace)
                return

    async def ending(self, workspace: str) -> None:
        """A person's hold ends: what it left pressed is let go of, unless a program (whom a hold whose time is over keeps out no more) acts there already."""
        if not self._acting.get(workspace):
            await self._release(workspace)

    async def _release(self, workspace: str) -> None:
        """What begins meanwhile waits: a release would stop it."""
        self._releasing[workspace] += 1
        try:
            await self._node.release(workspace)
        except (PortalError, EngineError) as error:
            log.info("nothing to release in %s: %s", workspace, error)
        finally:
            async with self._released:
                self._releasing[workspace] -= 1
                if not self._releasing[workspace]:
                    del self._releasing[workspace]
                self._released.notify_all()

    async def _no_release(self, workspace: str) -> None:
        """Return when none is under way there."""
        if workspace in self._releasing:
            async with self._released:
                await self._released.wait_for(lambda: workspace not in self._releasing)

    async def _act(self, call: Call) -> web.Response:
        wanted: Acts = call.body
        return web.json_response(await self.act(call, wanted.actions, wanted.size))

    async def _windows(self, call: Call) -> web.Response:
        return web.json_response({"windows": await self._node.windows(call.workspace)})

    async def _clipboard(self, call: Call) -> web.Response:
        answer = await self.act(call, [GetClipboard(action="get_clipboard")])
        return web.json_response({"text": succeeded(answer)[0]["text"]})

    async def _put(self, call: Call) -> web.Response:
        wanted: Text = call.body
        try:
            action = SetClipboard(action="set_clipboard", text=wanted.text)
        except pydantic.ValidationError:
            raise Malformed("text: half of a surrogate pair is no character") from None
        succeeded(await self.act(call, [action]))
        return web.Response(status=204)


def succeeded(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The results, when all is well. Raises the engine's error of the one that failed, Unavailable when it was ended in the midst of them."""
    if answer.get("interrupted"):
        raise Unavailable("the engine was ended in the midst of these actions: look at the screen, they are not done again")
    for result in answer["results"]:
        if not result["ok"] and "error" in result:
            raise from_wire(str(result["error"]["code"]), str(result["error"]["message"]))
    return answer["results"]


def _wire(actions: list[Action]) -> list[dict[str, Any]]:
    return [action.model_dump(exclude_none=True) for action in actions]


def _record(call: Call, action: str, outcome: str) -> None:
    audit.record("action", user=call.principal.user, token=call.principal.token, workspace=call.workspace, action=action, outcome=outcome)
