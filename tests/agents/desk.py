"""A real desktop as the tests use it: actions through the engine's client, effects read from inside."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

from engine.client import EngineClient

GUEST = Path(__file__).parent / "guest"
PATIENCE = 60.0
_EDITOR = "text - Mousepad"
_numbers = itertools.count(1)


class Desk:
    """One workspace, by name or id."""

    def __init__(self, client: EngineClient, ref: str) -> None:
        self.client = client
        self.ref = ref

    async def act(self, *actions: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Actions that must all succeed."""
        answer = await self.client.act(self.ref, list(actions), **options)
        assert all(result["ok"] for result in answer["results"]), answer
        return answer

    async def cursor(self) -> list[int]:
        return (await self.act({"action": "cursor"}))["cursor"]

    async def shell(self, script: str, stdin: bytes = b"") -> str:
        """Output of a script inside, as the desktop's user."""
        status, out, err = await self.client.run(self.ref, ["bash", "-c", script], user="user", cwd="/home/user", stdin=stdin)
        assert status == 0, f"{script!r}: status {status}\n{err.decode()}"
        return out.decode()

    async def viewer(self, seconds: float, **settings: Any) -> dict[str, Any]:
        """What a viewer of the stream sees in so many seconds: {"sizes", "frames", "came"}."""
        argv = ["/opt/selkies/bin/python3", "-", str(seconds), json.dumps(settings)]
        status, out, err = await self.client.run(self.ref, argv, stdin=(GUEST / "viewer.py").read_bytes())
        assert status == 0, err.decode()
        return json.loads(out)

    async def window(self, title: str) -> dict[str, Any]:
        """The window whose title contains `title`, once there is one; in front, with the keyboard."""
        found = await eventually(f"a window {title}", lambda: self.listed(title))
        await self.act({"action": "activate", "window": found["id"]})
        return await eventually(f"{title} in front", lambda: self.listed(title, active=True))

    async def listed(self, title: str, active: bool = False) -> dict[str, Any] | None:
        """The window whose title contains `title`, if there is one."""
        windows = (await self.act({"action": "windows"}))["results"][0]["windows"]
        return next((one for one in windows if title in one["title"] and (one["active"] or not active)), None)

    async def editor(self) -> None:
        """An editor with an empty file and the keyboard."""
        end = "pkill -9 mousepad; while pgrep mousepad; do sleep 0.05; done >/dev/null"
        if await self.listed(_EDITOR):
            await self.shell(end)
            # The window manager lists it a little longer, and the next one may even get its number.
            await eventually("the last editor's window is gone", self._no_editor)
        # What it kept of texts that were not saved it would ask about.
        await self.shell(f"{end}; rm -rf .local/share/Mousepad; : >text; setsid -f mousepad text >/dev/null 2>&1")
        window = await self.window(_EDITOR)
        await self.act({"action": "click", "x": window["x"] + 200, "y": window["y"] + 200})

    async def _no_editor(self) -> bool:
        return await self.listed(_EDITOR) is None

    async def saved(self) -> str:
        """What the editor holds."""
        await self.act({"action": "key", "keys": "ctrl+s"})
        # It ends the last line when it saves; an empty file is one that it has not written yet.
        return (await eventually("the text was saved", lambda: self.shell("cat text"))).removesuffix("\n")

    async def watch(self) -> None:
        """A large window in which `events` are noted. It has a name of its own: the window manager may still list the last one."""
        name = f"watcher-{next(_numbers)}"
        await self.shell(f"setsid -f xev -geometry 900x600+100+60 -name {name} >events 2>&1")
        await self.window(name)

    async def events(self) -> list[str]:
        """Presses, releases and keys that the window got: `ButtonPress 1`, `KeyPress a`."""
        # A mark at the end, so that everything before it has been written.
        await self.act({"action": "key", "keys": "F12"})
        text = await eventually("the events were noted", self._noted)
        found = re.findall(r"^(ButtonPress|ButtonRelease|KeyPress|KeyRelease) event.*?(?:button (\d+)|keysym 0x[0-9a-f]+, (\w+))", text, re.MULTILINE | re.DOTALL)
        return [f"{kind} {button or key}" for kind, button, key in found if key != "F12"]

    async def _noted(self) -> str | None:
        # It writes in blocks to a file: end it, so that the last one is there, too.
        text = await self.shell("pkill xev; while pgrep xev; do sleep 0.05; done >/dev/null; cat events")
        return text if "F12" in text else None

    async def pressed(self) -> dict[str, list[int]]:
        """Keycodes and buttons that the X server holds to be down, asked by a program inside."""
        return json.loads(await self.shell("python3 - ", stdin=(GUEST / "pressed.py").read_bytes()))

    async def holds(self, keys: list[int], buttons: list[int]) -> None:
        """Just these are pressed. At once, but for what the window manager holds up: a press is shown to it before events go on."""

        async def look() -> bool:
            return await self.pressed() == {"keys": keys, "buttons": buttons}

        await eventually(f"keys {keys} and buttons {buttons} are pressed", look, 10)

    async def nothing_is_pressed(self) -> None:
        await self.holds([], [])


async def eventually(what: str, look: Any, seconds: float = PATIENCE) -> Any:
    """Look until something is found."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.1)
    return found
