"""Routes of an OSWorld server about the desktop: its picture, its windows, its wallpaper, a recording of it."""

from __future__ import annotations

import asyncio
import os
import posixpath
import shlex
from typing import Any

import pydantic
from aiohttp import web

from engine.desktop.actions import Activate
from portal.accessibility import as_xml
from portal.osworld import chrome
from portal.osworld.files import Files
from portal.osworld.server import Ground, failure, object_of

_OPEN_SECONDS, _LOOK_SECONDS = 1800.0, 0.5
_SHORT_SECONDS = 20.0
# As much as the engine reads.
_NODES = 5000
_WALLPAPERS = "xfconf-query -c xfce4-desktop -l | grep '/last-image$'"
_GET_WALLPAPER = f'name=$({_WALLPAPERS} | head -1); [ -n "$name" ] && exec xfconf-query -c xfce4-desktop -p "$name"'
_SET_WALLPAPER = f'set -e; [ -r {{path}} ]; for name in $({_WALLPAPERS}); do xfconf-query -c xfce4-desktop -p "$name" -s {{path}}; done'
_TERMINALS = ("term", "console", "konsole", "tilix", "guake", "kgx")
# A directory of the user's own: nobody else can lay a link where the file will be.
_RECORDINGS = 'd="$HOME/.cache/tclone-osworld"; mkdir -p "$d"; '
_START_RECORDING = (
    _RECORDINGS + 'command -v ffmpeg >/dev/null || { echo "no ffmpeg in this workspace: install the package ffmpeg to record" >&2; exit 127; }; '
    '[ ! -e "$d/pid" ] || ! kill -0 "$(cat "$d/pid")" 2>/dev/null || { echo "a recording is under way" >&2; exit 1; }; rm -f "$d/recording.mp4"; '
    'setsid ffmpeg -y -loglevel error -f x11grab -draw_mouse 1 -framerate 30 -video_size SIZE -i "$DISPLAY" -c:v libx264 -preset ultrafast -pix_fmt yuv420p '
    '"$d/recording.mp4" </dev/null >"$d/log" 2>&1 & echo $! >"$d/pid"; sleep 0.5; kill -0 $! || { tail -3 "$d/log" >&2; exit 1; }'
)
_END_RECORDING = (
    _RECORDINGS + '[ -e "$d/pid" ] || { echo "no recording is under way" >&2; exit 1; }; pid=$(cat "$d/pid"); rm -f "$d/pid"; kill -INT "$pid"; '
    'for i in $(seq 150); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done; [ -s "$d/recording.mp4" ] || { tail -3 "$d/log" >&2; exit 1; }; printf %s "$d/recording.mp4"'
)


class _Path(pydantic.BaseModel):
    path: str = pydantic.Field(min_length=1, max_length=4096)


class _Window(pydantic.BaseModel):
    window_name: str = pydantic.Field(min_length=1, max_length=1024)
    strict: bool = False
    by_class: bool = False

    def fits(self, window: dict[str, Any]) -> bool:
        """Chromium's windows are Chrome's, too."""
        text = str(window.get("program" if self.by_class else "title", ""))
        names = {text, (chrome.class_of if self.by_class else chrome.title_of)(text)}
        return self.window_name in names if self.strict else any(self.window_name.lower() in name.lower() for name in names)


class Desktop:
    """The rest of one workspace's server."""

    def __init__(self, ground: Ground, workspace: str, files: Files) -> None:
        self._ground = ground
        self._workspace = workspace
        self._files = files

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/screenshot", self._screenshot),
            web.get("/accessibility", self._accessibility),
            web.get("/terminal", self._terminal),
            web.get("/platform", self._platform),
            web.get("/cursor_position", self._cursor),
            web.post("/screen_size", self._screen_size),
            web.post("/window_size", self._window_size),
            web.post("/wallpaper", self._wallpaper),
            web.post("/start_recording", self._start_recording),
            web.post("/end_recording", self._end_recording),
            web.post("/setup/open_file", self._open_file),
            web.post("/setup/activate_window", self._activate),
            web.post("/setup/close_window", self._close),
            web.post("/setup/change_wallpaper", self._change_wallpaper),
        ]

    async def _windows(self) -> list[dict[str, Any]]:
        return await self._ground.node.windows(self._workspace)

    async def _seen(self) -> dict[str, Any]:
        """Where the pointer is and how large the screen."""
        return await self._ground.node.act(self._workspace, [{"action": "cursor"}], None, None)

    async def _shell(self, request: web.Request, script: str) -> Any:
        return await self._ground.run(request, self._workspace, {"shell": script, "seconds": _SHORT_SECONDS})

    async def _screenshot(self, _: web.Request) -> web.Response:
        shot = await self._ground.node.screenshot(self._workspace, pointer=1)
        assert shot is not None  # no tag was sent
        return web.Response(body=shot.content, content_type=shot.content_type)

    async def _accessibility(self, _: web.Request) -> web.Response:
        return web.json_response({"AT": as_xml(chrome.renamed(await self._tree()))})

    async def _terminal(self, _: web.Request) -> web.Response:
        """What stands in the terminal that has the keyboard, else in one that is shown; null without one.

        DesktopEnv asks for it at each reset, to see whether there is a server: where no terminal has a window nothing need be read.
        """
        if not any(_is_terminal(window) for window in await self._windows()):
            return web.json_response({"output": None, "status": "success"})
        terminals = [node for node in (await self._tree(showing=True))["nodes"] if node.get("role") == "terminal" and "showing" in node.get("states", ())]
        terminals.sort(key=lambda node: "focused" in node["states"])
        return web.json_response({"output": str(terminals[-1].get("text", "")).strip() if terminals else None, "status": "success"})

    async def _tree(self, showing: bool = False) -> dict[str, Any]:
        return await self._ground.node.accessibility(self._workspace, showing, _NODES)

    async def _platform(self, _: web.Request) -> web.Response:
        return web.Response(text="Linux")

    async def _cursor(self, _: web.Request) -> web.Response:
        return web.json_response((await self._seen())["cursor"])

    async def _screen_size(self, _: web.Request) -> web.Response:
        width, height = (await self._seen())["screen"]
        return web.json_response({"width": width, "height": height})

    async def _window_size(self, request: web.Request) -> web.Response:
        name = str((await request.post()).get("app_class_name") or "")
        wanted = _Window(window_name=name, by_class=True) if name else None
        found = next((one for one in reversed(await self._windows()) if wanted is not None and wanted.fits(one)), None)
        if found is None:
            return failure(f"no window of {name[:100]!r}", 404)
        return web.json_response({"width": found["width"], "height": found["height"]})

    async def _wallpaper(self, request: web.Request) -> web.StreamResponse:
        done = await self._shell(request, _GET_WALLPAPER)
        if done.returncode != 0:
            return failure("this desktop has no wallpaper", 404)
        return await self._files.send(request, await self._files.path(done.output.strip()))

    async def _change_wallpaper(self, request: web.Request) -> web.Response:
        _, value = await object_of(request)
        path = await self._files.path(_Path.model_validate(value).path)
        done = await self._shell(request, _SET_WALLPAPER.format(path=shlex.quote(os.fsdecode(path))))
        if done.returncode != 0:
            return failure(f"{path.decode(errors='replace')[:200]} cannot be read, or this desktop has no wallpaper: {done.error.strip()[-300:]}", 404)
        return web.Response(text="Wallpaper changed successfully")

    async def _start_recording(self, request: web.Request) -> web.Response:
        width, height = (await self._seen())["screen"]
        done = await self._shell(request, _START_RECORDING.replace("SIZE", f"{width}x{height}"))
        if done.returncode != 0:
            return failure(done.error.strip()[-500:] or "the recording did not begin", 501 if done.returncode == 127 else 400)
        return web.json_response({"status": "success", "message": "Recording started"})

    async def _end_recording(self, request: web.Request) -> web.StreamResponse:
        done = await self._shell(request, _END_RECORDING)
        if done.returncode != 0:
            return failure(done.error.strip()[-500:] or "there is no recording", 400)
        return await self._files.send(request, await self._files.path(done.output))

    async def _open_file(self, request: web.Request) -> web.Response:
        """Open a file with the program it belongs to; answers when a window shows its name."""
        _, value = await object_of(request)
        path = os.fsdecode(await self._files.path(_Path.model_validate(value).path))
        done = await self._shell(request, f"[ -e {shlex.quote(path)} ]")
        if done.returncode != 0:
            return failure(f"no file {os.fsencode(path).decode(errors='replace')[:200]}", 404)
        await self._ground.run(request, self._workspace, {"argv": ["xdg-open", path], "detach": True})
        name = posixpath.basename(path)
        # Programs show it with or without what comes after the last dot.
        stem = posixpath.splitext(name)[0] or name
        async with asyncio.timeout(_OPEN_SECONDS):
            while not any(stem in str(window.get("title")) for window in await self._windows()):
                await asyncio.sleep(_LOOK_SECONDS)
        return web.Response(text="File opened successfully")

    async def _activate(self, request: web.Request) -> web.Response:
        found = await self._found(request)
        if found is None:
            return failure("no such window", 404)
        await self._ground.act(request, self._workspace, [Activate(action="activate", window=found["id"])])
        return web.Response(text="Window activated successfully")

    async def _close(self, request: web.Request) -> web.Response:
        found = await self._found(request)
        if found is None:
            return failure("no such window", 404)
        done = await self._shell(request, f"wmctrl -i -c {int(found['id'])}")
        if done.returncode != 0:
            return failure(done.error.strip()[-300:] or "the window cannot be closed", 500)
        return web.Response(text="Window closed successfully")

    async def _found(self, request: web.Request) -> dict[str, Any] | None:
        """The topmost window that is meant."""
        _, value = await object_of(request)
        wanted = _Window.model_validate(value)
        return next((window for window in reversed(await self._windows()) if wanted.fits(window)), None)


def _is_terminal(window: dict[str, Any]) -> bool:
    """By its program's class, such as `Xfce4-terminal`, `QTerminal`, `org.gnome.Console`."""
    program = str(window.get("program")).lower()
    return any(word in program for word in _TERMINALS)
