"""Image builds that somebody started in a page. A build goes on when the page is closed; it ends with the portal. How far it is the engine tells by its
events, as of builds that somebody started elsewhere."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from portal.errors import NotThere, PortalError
from portal.feed import Feed
from portal.node import Node

log = logging.getLogger(__name__)


_LONGEST_ABOUT = 300


class Builds:
    """`recipes` is the directory with one folder for each image that can be built."""

    def __init__(self, node: Node, feed: Feed, recipes: Path) -> None:
        self._node = node
        self._feed = feed
        self._recipes = recipes
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def list(self) -> list[dict[str, Any]]:
        """Images: built ones as the engine has them, the others by name; each with `built`, what it is `about`, and the build under way or failed."""
        built = await self._node.images()
        names = await asyncio.to_thread(self._recipes_here)
        found: dict[str, dict[str, Any]] = {}
        for image in built:
            # The engine lists the newest first; an older one of the same name cannot be launched by name.
            found.setdefault(image["name"], {**_shown(image), "built": True})
        for name in names:
            found.setdefault(name, {"name": name, "built": False})
        for name, image in found.items():
            image["recipe"] = name in names
            image["about"] = names.get(name, "")
            image["build"] = self._feed.builds.get(name)
        return sorted(found.values(), key=lambda image: (not image.get("desktop"), image["name"]))

    async def start(self, name: str) -> None:
        """Begin a build unless one of that name is under way. Raises NotThere for a name that has no recipe."""
        if name not in await asyncio.to_thread(self._recipes_here):
            raise NotThere(f"there is no recipe for an image {name!r}")
        if name in self._tasks:
            return
        self._feed.build({"image": name, "phase": "start", "elapsed_ms": 0})
        task = asyncio.create_task(self._run(name), name=f"build {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, name: str) -> None:
        error = "the engine ended its answer early; its log has more"
        try:
            async for line in self._node.build(name):
                if "done" in line or isinstance(line.get("error"), dict):
                    return
        except (EngineError, PortalError) as failure:
            error = failure.message
        except Exception:  # noqa: BLE001 - the page must hear of it, whatever it was
            log.exception("build of %s failed", name)
            error = "the build failed; the portal's log has more"
        self._feed.build({"image": name, "error": error})

    def _recipes_here(self) -> dict[str, str]:
        """Name of each image that can be built to what its recipe says of it."""
        return {path.parent.name: _about(path) for path in self._recipes.glob("*/recipe.toml")}


def _about(recipe: Path) -> str:
    """What an image is, for people: the first line of the README.md beside its recipe, else the comment on the recipe's first line; "" without either."""
    readme = recipe.with_name("README.md")
    if readme.is_file():
        with readme.open(errors="replace") as file:
            return file.readline(_LONGEST_ABOUT).lstrip("#").strip()
    with recipe.open(errors="replace") as file:
        first = file.readline(_LONGEST_ABOUT)
    return first.lstrip("#").strip() if first.startswith("#") else ""


def _shown(image: dict[str, Any]) -> dict[str, Any]:
    ports = image.get("ports")
    return {
        "name": image["name"],
        "digest": str(image.get("digest", ""))[:12],
        "size": image.get("size") if isinstance(image.get("size"), int) else None,
        "desktop": bool(image.get("desktop")),
        "ports": [port for port in ports if isinstance(port, int)] if isinstance(ports, list) else [],
    }
