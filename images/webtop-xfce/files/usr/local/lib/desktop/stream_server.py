"""Selkies as it is, but that it follows the screen instead of ruling it.

By itself it puts a logical monitor of its own over the screen for its first viewer, and takes it away after the last one. XFCE takes
that for another monitor: the desktop's window, its icons and its wallpaper are thrown away and made anew, black meanwhile, and sometimes
for good. A screen of an odd width it would resize to what its encoder can take, and one that a program resizes it would go on reading at
the old size. Here the screen is the desktop's. Viewers see it as it is, without its last column or row when their number is odd.
"""

from __future__ import annotations

import asyncio
from typing import Any

from selkies import __main__ as program
from selkies import websockets_mode
from selkies.websockets_mode import DataStreamingServer

_LOOK_SECONDS = 0.5


async def _done(*_: Any, **__: Any) -> bool:
    return True


def leave_the_screen_alone() -> None:
    """Everything by which Selkies changes the screen, its modes, its monitors and where windows are: it hears that it was done."""
    for name in (
        "apply_output_layout", "ensure_mode", "follow_display_moves", "grow_framebuffer", "refresh_output_mode", "replace_selkies_monitors",
        "resize_display", "retire_displays", "window_snapshot",
    ):  # fmt: skip
        if not hasattr(websockets_mode, name):
            raise SystemExit(f"this version of Selkies has no {name} to be kept from the screen")
        setattr(websockets_mode, name, _done)


async def _follow(server: DataStreamingServer) -> None:
    """While there are viewers: show the whole screen when its size has changed."""
    while server.display_clients:
        await asyncio.sleep(_LOOK_SECONDS)
        shown = server.display_clients.get("primary")
        wide, high = (side & ~1 for side in await websockets_mode.read_realized_root((0, 0)))
        if shown is None or not wide or not high or (wide, high) == (shown.get("width"), shown.get("height")):
            continue
        shown["width"], shown["height"] = wide, high
        server.app.display_width, server.app.display_height = wide, high
        await server.reconfigure_displays()


def follow_the_screen() -> None:
    """Have each server look at the screen's size from its first viewer to its last."""
    original = DataStreamingServer.reconfigure_displays
    followers: dict[DataStreamingServer, asyncio.Task[None]] = {}

    async def reconfigure(self: DataStreamingServer) -> None:
        await original(self)
        follower = followers.get(self)
        if self.display_clients and (follower is None or follower.done()):
            followers[self] = asyncio.create_task(_follow(self))

    DataStreamingServer.reconfigure_displays = reconfigure


leave_the_screen_alone()
follow_the_screen()
program.main()
