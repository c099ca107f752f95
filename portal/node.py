"""The engine as the portal sees it: every call bounded in time, every answer checked before it reaches a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from engine.client import EngineClient, Screenshot
from engine.errors import EngineError, Unavailable
from portal.errors import BadAnswer, Conflicting, TimedOut

T = TypeVar("T")

STATES = {"created", "starting", "ready", "forking", "removing", "gone", "stopped", "failed"}
_TEXT_FIELDS = ("id", "name", "kind", "state", "image")
_LONGEST_TEXT = 4096
_MOST_PORTS = 64
LOG_BYTES = 64 * 1024


@dataclass(frozen=True)
class Patience:
    """Seconds to wait for the engine: `read` for what it has at hand, `work` for launch, fork and removal."""

    read: float = 10.0
    work: float = 180.0


class Node:
    """One engine. Raises EngineError as it is, Unavailable when it is down, TimedOut, BadAnswer."""

    def __init__(self, socket: Path, patience: Patience = Patience()) -> None:
        self._client = EngineClient(socket)
        self._patience = patience

    async def __aenter__(self) -> Node:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.__aexit__(*exception)

    async def workspaces(self) -> list[dict[str, Any]]:
        answer = await self._bounded(self._client.list(), self._patience.read)
        return [checked_workspace(item) for item in _list(answer)]

    async def workspace(self, identity: str) -> dict[str, Any]:
        return checked_workspace(await self._bounded(self._client.get(identity), self._patience.read))

    async def health(self) -> None:
        """Returns when the engine answers."""
        await self._bounded(self._client.health(), self._patience.read)

    async def launch(
        self, image: str, name: str | None, ports: list[int], memory: int | None, network: str = "open", disk: int | None = None,
        env: dict[str, str] | None = None, request_id: str | None = None, osworld: bool = False, cpus: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Begin a launch; the answer is the workspace in state `starting`.

        `memory` and `disk` are in bytes, `cpus` processors, `network` what it may reach: `open` or `none`, `env` for its programs, `osworld`: with an OSWorld server.
        """
        wanted: list[dict[str, int | None]] = [{"container": port, "host": None} for port in ports]
        call = self._client.launch(
            image, name=name, ports=wanted, memory=memory, network=network, disk=disk, cpus=cpus, env=env or None, request_id=request_id, osworld=osworld
        )
        return checked_workspace(await self._bounded(call, self._patience.work))

    async def fork(
        self, identity: str, copies: int, name: str | None, tcp_close: bool, network: str | None = None, labels: list[str] | None = None,
        request_id: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        call = self._client.fork(identity, copies=copies, name=name, tcp_close=tcp_close, network=network, labels=labels, request_id=request_id)
        return checked_fork(await self._bounded(call, self._patience.work))

    async def screenshot(self, identity: str, tag: str | None = None, **options: Any) -> Screenshot | None:
        """A picture of the desktop's screen; None when it is still the one with `tag`. `options` as the client's."""
        waits = (options.get("settle_ms") or 0) + (options.get("wait_change_ms") or 0)
        return await self._bounded(self._client.screenshot(identity, tag=tag, **options), self._patience.read + waits / 1000)

    async def act(self, identity: str, actions: list[dict[str, Any]], size: list[int] | None, request_id: str | None) -> dict[str, Any]:
        """Mouse, keys, windows, clipboard: the engine's answer, a result for each action (none when it was interrupted)."""
        call = self._client.act(identity, actions, size=(size[0], size[1]) if size else None, request_id=request_id)
        return checked_results(await self._bounded(call, self._patience.work))

    async def release(self, identity: str) -> None:
        """Stop actions that are under way and let go of what they hold."""
        await self._bounded(self._client.release(identity), self._patience.read)

    async def windows(self, identity: str) -> list[dict[str, Any]]:
        """The windows of its desktop."""
        return [item for item in _list(await self._bounded(self._client.windows(identity), self._patience.read)) if isinstance(item, dict)]

    async def pause(self, identity: str) -> dict[str, Any]:
        """Let its programs stand still; the workspace."""
        return checked_workspace(await self._bounded(self._client.pause(identity), self._patience.read))

    async def resume(self, identity: str) -> dict[str, Any]:
        """Let them go on; the workspace."""
        return checked_workspace(await self._bounded(self._client.resume(identity), self._patience.read))

    async def accessibility(self, identity: str, showing: bool, nodes: int) -> dict[str, Any]:
        """What the programs of its desktop say of what they show, as portal.accessibility renders it."""
        # The reader inside takes its time.
        answer = await self._bounded(self._client.accessibility(identity, showing=showing, nodes=nodes), self._patience.read + 15.0)
        if not isinstance(answer, dict) or not isinstance(answer.get("nodes"), list) or not answer["nodes"]:
            raise BadAnswer("the engine's answer has no nodes; see its log")
        return answer

    async def remove(self, identity: str) -> None:
        await self._bounded(self._client.remove(identity), self._patience.work)

    async def idle(self, identity: str) -> float | None:
        """Seconds since somebody used mouse or keyboard of its desktop; None when it has none."""
        answer = await self._bounded(self._client.idle(identity), self._patience.read)
        seconds = answer.get("idle_seconds") if isinstance(answer, dict) else None
        return float(seconds) if isinstance(seconds, int | float) and seconds >= 0 else None

    async def images(self) -> list[dict[str, Any]]:
        answer = _list(await self._bounded(self._client.images(), self._patience.read))
        return [item for item in answer if isinstance(item, dict) and isinstance(item.get("name"), str)]

    async def logs(self, identity: str, tail: int) -> str:
        """The last lines, at most 64 KiB, without control characters (the workspace writes them)."""
        text = await self._bounded(self._tail(identity, tail), self._patience.read)
        return "".join(character for character in text if character in "\n\t" or character.isprintable())

    async def _tail(self, identity: str, tail: int) -> str:
        kept = bytearray()
        async for chunk in self._client.logs(identity, tail=tail):
            kept += chunk
            del kept[: max(0, len(kept) - LOG_BYTES)]
        return kept.decode(errors="replace")

    async def build(self, image: str) -> AsyncIterator[dict[str, Any]]:
        """Progress of a build as the engine reports it; ends after `done` or `error`."""
        with translated():
            async for line in self._client.build(image):
                yield line if isinstance(line, dict) else {}

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The engine's events for ever; `{"type": "disconnected"}` when the connection is lost. Raises BadAnswer."""
        with translated():
            async for event in self._client.events():
                yield event

    @property
    def client(self) -> EngineClient:
        """For what has no time limit; within `translated()`."""
        return self._client

    async def bounded(self, call: Awaitable[T], work: bool = False) -> T:
        """Wait for a call of the client as long as patience goes (`work`: as for launch and removal)."""
        return await self._bounded(call, self._patience.work if work else self._patience.read)

    async def _bounded(self, call: Awaitable[T], seconds: float) -> T:
        with translated():
            try:
                async with asyncio.timeout(seconds):
                    return await call
            except TimeoutError:
                raise TimedOut(
                    f"the engine did not answer within {seconds:.0f} s; it may still be at work: wait, then try again"
                ) from None


@contextlib.contextmanager
def translated():
    """Turn what a broken or absent engine causes into the exceptions named above."""
    try:
        yield
    except EngineError:
        raise
    except (ConnectionError, FileNotFoundError, aiohttp.ClientConnectionError) as error:
        raise Unavailable(f"the engine does not answer ({error}); `tclone doctor` may say why") from error
    except (aiohttp.ClientError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"the engine's answer makes no sense ({type(error).__name__}); see its log") from error


def _list(answer: object) -> list[Any]:
    if not isinstance(answer, list):
        raise BadAnswer("the engine's answer is not a list; see its log")
    return answer


def opens(workspace: dict[str, Any]) -> None:
    """Return when the workspace's desktop can be looked at. Raises Conflicting."""
    identity = workspace["id"]
    if not workspace["desktop"]:
        raise Conflicting(f"{identity} has no desktop: its image {workspace['image']} is headless")
    if workspace["state"] not in ("ready", "forking"):
        raise Conflicting(f"the desktop of {identity} is not ready; it is {workspace['state']}")
    if workspace["paused"]:
        raise Conflicting(f"{identity} is paused; resume it to look at its desktop")


def checked_workspace(item: object) -> dict[str, Any]:
    """A workspace object with the fields pages rely on, of the right types. Raises BadAnswer."""
    if not isinstance(item, dict) or not all(isinstance(item.get(name), str) for name in _TEXT_FIELDS):
        raise BadAnswer("the engine sent a workspace without its id, name, kind, state or image; see its log")
    if item["state"] not in STATES:
        raise BadAnswer(f"the engine sent workspace {item['id'][:40]} in an unknown state; see its log")
    ports = item.get("ports") if isinstance(item.get("ports"), dict) else {}
    return {
        **{name: item[name][:_LONGEST_TEXT] for name in _TEXT_FIELDS},
        "phase": _text(item.get("phase")) or "",
        "label": _text(item.get("label")) or "",
        "parent": _text(item.get("parent")),
        "batch": _text(item.get("batch")),
        "index": item["index"] if isinstance(item.get("index"), int) else None,
        "generation": item["generation"] if isinstance(item.get("generation"), int) else 0,
        "desktop": item.get("desktop") is True,
        "ports": {
            str(inside)[:5]: outside
            for inside, outside in list(ports.items())[:_MOST_PORTS]
            if isinstance(outside, int) and 0 < outside < 65536
        },
        "osworld": item["osworld"] if isinstance(item.get("osworld"), int) else None,
        "network": _text(item.get("network")) or "",
        "paused": item.get("paused") is True,
        "created": item.get("created") if isinstance(item.get("created"), str | int | float) else None,
        "memory_limit": item["memory_limit"] if isinstance(item.get("memory_limit"), int) else None,
        "disk_limit": item["disk_limit"] if isinstance(item.get("disk_limit"), int) else None,
        "cpu_limit": item["cpu_limit"] if isinstance(item.get("cpu_limit"), int | float) else None,
        "error": _text(item.get("error")),
    }


def checked_fork(answer: object) -> dict[str, Any]:
    """A fork result whose branches are a list of objects and whose milestones are numbers. Raises BadAnswer."""
    if not isinstance(answer, dict) or not isinstance(answer.get("branches"), list):
        raise BadAnswer("the engine's fork result has no branches; see its log")
    ms = answer.get("ms") if isinstance(answer.get("ms"), dict) else {}
    figures = {str(name)[:40]: value for name, value in ms.items() if isinstance(value, int | float)}
    branches = [branch for branch in answer["branches"] if isinstance(branch, dict)]
    return {**answer, "ms": figures, "branches": branches}


def checked_results(answer: object) -> dict[str, Any]:
    """The answer to actions, each result with its name, whether it went well, and an error if one is told. Raises BadAnswer."""
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not isinstance(results, list) or not all(_is_result(item) for item in results):
        raise BadAnswer("the engine's results of actions make no sense; see its log")
    return answer


def _is_result(item: object) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("action"), str) or not isinstance(item.get("ok"), bool):
        return False
    error = item.get("error")
    return error is None or isinstance(error, dict) and {"code", "message"} <= error.keys()


def _text(value: object) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None
