"""Commands on workspaces from outside: run, fork, ls, inspect, port, stats, rm."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from engine.cli import guess, output, values
from engine.cli.output import Progress
from engine.client import EngineClient
from engine.config import Config
from engine.errors import BadRequest, EngineError, Internal, NotFound, Unsupported

_LISTED = ("id", "name", "kind", "state", "paused", "parent", "image", "ports", "created")


class _Filter:
    """Which progress events belong to this command: others may launch and fork at the same time.

    `wanted` is a workspace's id or name. Its id is learned from the events themselves; until it is known, and for a launch without a name,
    everything of the right kind is shown.
    """

    def __init__(self, operation: str, wanted: str | None) -> None:
        self._operation = operation
        self._wanted = wanted
        self._id: str | None = None

    def shows(self, event: dict[str, Any]) -> bool:
        if event["type"] == "snapshot":
            self._learn(event.get("workspaces", []))
        elif event["type"] == "workspace":
            self._learn([event["data"]])
        if event["type"] != "progress" or event["data"]["operation"] != self._operation:
            return False
        return self._id is None or event.get("workspace") in (None, self._id)

    def _learn(self, workspaces: list[dict[str, Any]]) -> None:
        for workspace in workspaces:
            if self._wanted is not None and self._wanted in (workspace.get("id"), workspace.get("name")):
                self._id = workspace.get("id")


@contextlib.asynccontextmanager
async def following(client: EngineClient, progress: Progress, operation: str, wanted: str | None) -> AsyncIterator[None]:
    """Show the engine's progress events of an operation on a workspace while inside. Losing the event stream costs the display only."""
    mine = _Filter(operation, wanted)

    async def follow() -> None:
        with contextlib.suppress(EngineError, OSError):
            async for event in client.events():
                if mine.shows(event):
                    data = event["data"]
                    progress.phase(data["phase"], data.get("detail"), data.get("elapsed_ms"))

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        progress.close()


async def run(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Launch a workspace and print its id, when it is ready unless told not to wait."""
    progress = Progress(f"run {arguments.image}", quiet=arguments.no_wait)
    async with following(client, progress, "launch", arguments.name):
        made = await client.launch(
            arguments.image,
            name=arguments.name,
            ports=arguments.publish,
            env=dict(arguments.env),
            memory=arguments.memory,
            shm=arguments.shm_size,
            pids=arguments.pids,
            disk=arguments.disk,
            cpus=arguments.cpus,
            network=arguments.network,
            command=arguments.argv or None,
            osworld=arguments.osworld,
            wait=not arguments.no_wait,
        )
    if arguments.json:
        output.as_json(made)
    else:
        print(made["id"])
    if made["state"] == "failed":
        raise Internal(f"{made['id']} did not start: {made['error']}; `tclone logs {made['id']}` has more")
    return 0


async def fork(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Fork and print the ids of the branches, or the whole result. Status 1 when a branch of the batch failed. With JSON a refusal is printed, too."""
    progress = Progress(f"fork {arguments.workspace}")
    async with following(client, progress, "fork", arguments.workspace):
        try:
            result = await client.fork(
                arguments.workspace,
                copies=arguments.copies,
                name=arguments.name,
                tcp_close=arguments.tcp_close,
                ghost_limit=arguments.ghost_limit,
                hostname=arguments.hostname,
                new_machine_id=arguments.new_machine_id,
                network=arguments.network,
                labels=arguments.label or None,
            )
        except Unsupported as refused:
            if arguments.json:
                output.as_json({"error": refused.to_wire()})
            raise
    failed = [branch for branch in result["branches"] if branch["error"]]
    if arguments.json:
        output.as_json(result)
    else:
        for branch in result["branches"]:
            if not branch["error"]:
                print(branch["id"])
    for branch in result["branches"]:
        if branch.get("hook_error"):
            output.error(f"{branch['name']}: {branch['hook_error']}")
    for branch in failed:
        output.error(f"{branch['name'] or branch['id']}: {branch['error']}")
    return 1 if failed else 0


async def ls(client: EngineClient, arguments: argparse.Namespace) -> int:
    """List workspaces, each under the one it was forked from."""
    found = await client.list()
    if arguments.json:
        output.as_json([{key: workspace.get(key) for key in _LISTED} for workspace in found])
    elif arguments.quiet:
        for workspace in found:
            print(workspace["id"])
    else:
        rows = [
            (
                workspace["id"],
                "  " * depth + workspace["name"],
                workspace["kind"],
                output.state(workspace),
                workspace["image"],
                _origin(workspace, found),
                values.show_ports(workspace["ports"]),
                values.show_age(workspace["created"]),
            )
            for depth, workspace in as_tree(found)
        ]
        output.table(("ID", "NAME", "KIND", "STATE", "IMAGE", "FROM", "PORTS", "AGE"), rows)
    return 0


def _origin(workspace: dict[str, Any], found: list[dict[str, Any]]) -> str:
    """What it was forked from: `ws-1`, or `ws-1 (gone)`, which is why it stands at the top."""
    parent = workspace["parent"]
    if parent is None:
        return "-"
    return parent if any(other["id"] == parent for other in found) else f"{parent} (gone)"


def as_tree(found: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """The workspaces depth first with their depth; one whose parent is gone stands at the top."""
    present = {workspace["id"] for workspace in found}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for workspace in found:
        parent = workspace["parent"] if workspace["parent"] in present else None
        children.setdefault(parent, []).append(workspace)
    ordered: list[tuple[int, dict[str, Any]]] = []
    waiting = [(0, workspace) for workspace in reversed(children.get(None, []))]
    while waiting:
        depth, workspace = waiting.pop()
        ordered.append((depth, workspace))
        waiting.extend((depth + 1, child) for child in reversed(children.get(workspace["id"], [])))
    return ordered


async def inspect(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Everything known, as a JSON list in the order asked for."""
    output.as_json([await client.get(ref) for ref in arguments.workspaces])
    return 0


async def port(client: EngineClient, arguments: argparse.Namespace) -> int:
    """All published ports, or the host side of one; or publish or unpublish one."""
    if arguments.publish or arguments.unpublish:
        if arguments.container is None:
            raise BadRequest("name the port inside the workspace that is to be published or not")
        if arguments.unpublish:
            await client.unpublish(arguments.workspace, arguments.container)
        else:
            print((await client.publish(arguments.workspace, arguments.container))["host"])
        return 0
    workspace = await client.get(arguments.workspace)
    ports: dict[str, int] = workspace["ports"]
    if arguments.container is not None:
        published = ports.get(str(arguments.container))
        if published is None:
            raise NotFound(
                f"{workspace['id']} does not publish port {arguments.container}; published: {values.show_ports(ports)}"
            )
        print(published)
    elif arguments.json:
        output.as_json(ports)
    else:
        for container in sorted(ports, key=int):
            print(f"{container} -> localhost:{ports[container]}")
    return 0


async def stats(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Figures of the named workspaces, or of all. One that goes away meanwhile is left out unless it was asked for by name."""
    if arguments.workspaces:
        chosen = [await client.get(ref) for ref in arguments.workspaces]
    else:
        chosen = await client.list()
    answers = await asyncio.gather(*(client.stats(workspace["id"]) for workspace in chosen), return_exceptions=True)
    found: list[dict[str, Any]] = []
    for workspace, answer in zip(chosen, answers, strict=True):
        if isinstance(answer, dict):
            found.append({"id": workspace["id"], "name": workspace["name"], **answer})
        elif arguments.workspaces or not isinstance(answer, EngineError):
            raise answer
    if arguments.json:
        output.as_json(found)
    else:
        output.table(
            ("ID", "NAME", "CPU", "MEMORY", "PSS", "PROCESSES", "THREADS", "DISK"),
            [
                (
                    one["id"],
                    one["name"],
                    f"{one['cpu_seconds']:.1f} s",
                    values.show_size(one["memory_bytes"]),
                    values.show_size(one["pss_bytes"]),
                    one["processes"],
                    one["threads"],
                    values.show_size(one["disk_bytes"]),
                )
                for one in found
            ],
        )
    return 0


async def pause(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Let workspaces stand still, one after the other; prints the id of each."""
    for ref in arguments.workspaces:
        print((await client.pause(ref))["id"])
    return 0


async def resume(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Let paused workspaces go on; prints the id of each."""
    for ref in arguments.workspaces:
        print((await client.resume(ref))["id"])
    return 0


async def rm(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Remove each workspace, print what is gone; the first error's status when one could not be."""
    refs = arguments.workspaces
    if arguments.all:
        refs = [workspace["id"] for workspace in await client.list()]
    removed, failures = await _remove(client, refs)
    for ref in removed:
        print(ref)
    for failure in failures:
        told = await guess.explained(client, failure, arguments) if isinstance(failure, NotFound) else failure
        output.error(told.message)
    return failures[0].exit_status if failures else 0


async def _remove(client: EngineClient, refs: Iterable[str]) -> tuple[list[str], list[EngineError]]:
    """Remove all at once: what is gone, and the errors of the rest."""
    wanted = list(dict.fromkeys(refs))
    answers = await asyncio.gather(*(client.remove(ref) for ref in wanted), return_exceptions=True)
    removed: list[str] = []
    failures: list[EngineError] = []
    for ref, answer in zip(wanted, answers, strict=True):
        if answer is None:
            removed.append(ref)
        elif isinstance(answer, EngineError):
            failures.append(answer)
        else:
            raise answer
    return removed, failures


async def remove_all(config: Config) -> tuple[list[str], list[str]]:
    """Remove every workspace of the running engine: the ids, and what went wrong. Raises EngineError when the engine does not answer."""
    async with EngineClient(config.socket) as client:
        removed, failures = await _remove(client, [workspace["id"] for workspace in await client.list()])
    return removed, [failure.message for failure in failures]
