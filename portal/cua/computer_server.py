"""The commands of cua's computer server, each carried out for one workspace: {"command", "params"} to {"success", …}."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any

from engine.account import DESKTOP_USER
from engine.errors import EngineError, NotFound
from portal import audit, pieces
from portal.api.actions import Actions, succeeded
from portal.errors import Malformed, PortalError
from portal.inside import Inside
from portal.models.plan import action_of
from portal.node import Node
from portal.pressed import Pressed
from portal.rates import Rates
from portal.routes import Call, Router

VERSION = "0.1.25"
LARGEST = 8 << 20
_MOST_NOTCHES = 100
_MOST_NODES = 2000
_BUTTONS = ("left", "middle", "right")

Params = dict[str, Any]
Command = Callable[[Call, Params], Awaitable[dict[str, Any]]]


class ComputerServer:
    """`run` answers each command; what is wrong with it is an answer, too, as the client has no other way to hear of it."""

    def __init__(self, actions: Actions, node: Node, inside: Inside, router: Router, rates: Rates) -> None:
        self._actions = actions
        self._node = node
        self._inside = inside
        self._router = router
        self._rates = rates
        # Whether it changes something inside: then a person's hold keeps it out, as it does for actions by themselves.
        self._commands: dict[str, tuple[Command, bool]] = {
            "version": (self._version, False), "screenshot": (self._screenshot, False), "get_screen_size": (self._screen, False),
            "get_cursor_position": (self._cursor, False), "copy_to_clipboard": (self._copied, False), "set_clipboard": (self._clipboard, False),
            "get_active_window_bounds": (self._bounds, False), "get_accessibility_tree": (self._tree, False), "run_command": (self._run, True),
            "file_exists": (self._file_exists, False), "directory_exists": (self._directory_exists, False), "list_dir": (self._list, False),
            "get_file_size": (self._size, False), "read_bytes": (self._read, False), "read_text": (self._read_text, False),
            "write_bytes": (self._write, True), "write_text": (self._write_text, True), "create_dir": (self._create, True),
            "delete_file": (self._delete, True), "delete_dir": (self._delete, True),
        }  # fmt: skip

    async def run(self, call: Call, message: object, pressed: Pressed | None = None) -> dict[str, Any]:
        """The answer to one message of a client. `pressed`: of its connection, where what it holds is noted."""
        try:
            if not isinstance(message, dict) or not isinstance(message.get("command"), str):
                raise Malformed("a message has command and params")
            params = message.get("params") or {}
            if not isinstance(params, dict):
                raise Malformed("params must be an object")
            found = self._commands.get(message["command"])
            if found is None:
                return {"success": True, **await self._act(call, _planned(message["command"], params), pressed)}
            command, acts = found
            if acts:
                self._router.act(call.principal, call.workspace, message["command"])
            return {"success": True, **await command(call, params)}
        except (PortalError, EngineError) as error:
            return {"success": False, "error": error.message, "code": error.code}

    def changes(self, message: object) -> bool:
        """Whether doing it twice would be something else than doing it once."""
        name = message.get("command") if isinstance(message, dict) else None
        return isinstance(name, str) and (name not in self._commands or self._commands[name][1])

    async def let_go(self, call: Call, pressed: Pressed) -> None:
        """Release what a connection that has ended held."""
        for part in pressed.releases():
            await self._actions.let_go(call, part)

    # The screen

    async def _act(self, call: Call, planned: list[Params], pressed: Pressed | None = None) -> dict[str, Any]:
        actions = [action_of(action) for action in planned]
        answer = await self._actions.act_by_key(call, actions, None, None)
        if pressed is not None:
            pressed.note(actions, answer["results"])
        return {"results": succeeded(answer), "cursor": answer["cursor"], "screen": answer["screen"]} if planned else {}

    async def _version(self, call: Call, params: Params) -> dict[str, Any]:
        return {"protocol": 1, "package": VERSION}

    async def _screenshot(self, call: Call, params: Params) -> dict[str, Any]:
        shot = await self._node.screenshot(call.workspace, None)
        assert shot is not None, "only a picture that is asked for with a tag can be the one that is known"
        return {"image_data": base64.b64encode(shot.content).decode()}

    async def _screen(self, call: Call, params: Params) -> dict[str, Any]:
        shot = await self._node.screenshot(call.workspace, None, width=16, format="jpeg")
        assert shot is not None, "as above"
        return {"size": {"width": shot.screen[0], "height": shot.screen[1]}}

    async def _cursor(self, call: Call, params: Params) -> dict[str, Any]:
        x, y = (await self._act(call, [{"action": "cursor"}]))["cursor"]
        return {"position": {"x": x, "y": y}}

    async def _copied(self, call: Call, params: Params) -> dict[str, Any]:
        return {"content": (await self._act(call, [{"action": "get_clipboard"}]))["results"][0]["text"]}

    async def _clipboard(self, call: Call, params: Params) -> dict[str, Any]:
        await self._act(call, [{"action": "set_clipboard", "text": _text(params, "text")}])
        return {}

    async def _bounds(self, call: Call, params: Params) -> dict[str, Any]:
        active = next((window for window in await self._node.windows(call.workspace) if window.get("active")), None)
        if active is None:
            raise NotFound("no window is active")
        return {"bounds": {name: active[name] for name in ("x", "y", "width", "height")}}

    async def _tree(self, call: Call, params: Params) -> dict[str, Any]:
        return {"tree": await self._node.accessibility(call.workspace, True, _MOST_NODES)}

    # Commands and files

    async def _run(self, call: Call, params: Params) -> dict[str, Any]:
        words = ["/bin/sh", "-c", _text(params, "command")]
        with audit.outcome("exec", call.principal, call.workspace, account=DESKTOP_USER):
            self._rates.take(call.principal.grant, 1)
            status, out, err = await self._inside.run(call.workspace, words, user=DESKTOP_USER)
        return {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace"), "return_code": status}

    async def _kind(self, call: Call, params: Params) -> str | None:
        try:
            return str((await self._inside.entry(call.workspace, await self._path(call, params)))["kind"])
        except NotFound:
            return None

    async def _file_exists(self, call: Call, params: Params) -> dict[str, Any]:
        return {"exists": await self._kind(call, params) == "file"}

    async def _directory_exists(self, call: Call, params: Params) -> dict[str, Any]:
        return {"exists": await self._kind(call, params) == "directory"}

    async def _list(self, call: Call, params: Params) -> dict[str, Any]:
        listed = await self._inside.list_files(call.workspace, await self._path(call, params))
        return {"files": [item["name"] for item in listed["entries"]]}

    async def _size(self, call: Call, params: Params) -> dict[str, Any]:
        async with self._inside.read_file(call.workspace, await self._path(call, params), {}) as source:
            return {"size": source.content_length or 0}

    async def _bytes(self, call: Call, params: Params) -> bytes:
        offset, length = params.get("offset") or 0, params.get("length")
        if not isinstance(offset, int) or offset < 0 or not (length is None or (isinstance(length, int) and 0 <= length <= LARGEST)):
            raise Malformed(f"offset and length are whole numbers, length at most {LARGEST}")
        if length == 0:
            return b""
        asked = {"Range": f"bytes={offset}-{'' if length is None else offset + length - 1}"} if offset or length is not None else {}
        kept = bytearray()
        async with self._inside.read_file(call.workspace, await self._path(call, params), asked) as source:
            async for piece in source.content.iter_chunked(256 << 10):
                kept += piece
                if len(kept) > LARGEST:
                    raise Malformed(f"at most {LARGEST} bytes are read at once: give offset and length")
        return bytes(kept)

    async def _read(self, call: Call, params: Params) -> dict[str, Any]:
        return {"content_b64": base64.b64encode(await self._bytes(call, params)).decode()}

    async def _read_text(self, call: Call, params: Params) -> dict[str, Any]:
        return {"content": (await self._bytes(call, params)).decode(errors="replace")}

    async def _write(self, call: Call, params: Params) -> dict[str, Any]:
        try:
            content = base64.b64decode(_text(params, "content_b64"), validate=True)
        except (binascii.Error, ValueError):
            raise Malformed("content_b64 must be base64") from None
        return await self._put(call, params, content)

    async def _write_text(self, call: Call, params: Params) -> dict[str, Any]:
        return await self._put(call, params, _text(params, "content").encode(errors="surrogatepass"))

    async def _put(self, call: Call, params: Params, content: bytes) -> dict[str, Any]:
        path = await self._path(call, params)
        with audit.outcome("upload", call.principal, call.workspace, size=len(content)):
            if params.get("append") is True:
                words = ["/bin/sh", "-c", 'cat >>"$0"', path.decode(errors="surrogateescape")]
                status, _, said = await self._inside.run(call.workspace, words, stdin=content, user=DESKTOP_USER)
                if status != 0:
                    raise Malformed(said.decode(errors="replace").strip()[-300:] or f"it ended with {status}")
            else:
                await self._inside.write_file(call.workspace, path, pieces.of_whole(content), len(content), True)
        return {}

    async def _create(self, call: Call, params: Params) -> dict[str, Any]:
        path = await self._path(call, params)
        with audit.outcome("make-directory", call.principal, call.workspace):
            if await self._kind(call, params) != "directory":
                await self._inside.make_directory(call.workspace, path)
        return {}

    async def _delete(self, call: Call, params: Params) -> dict[str, Any]:
        with audit.outcome("remove-file", call.principal, call.workspace):
            await self._inside.remove_file(call.workspace, await self._path(call, params), recursive=False)
        return {}

    async def _path(self, call: Call, params: Params) -> bytes:
        return await self._inside.path(call.workspace, params.get("path"))


def _planned(command: str, params: Params) -> list[Params]:
    """The actions of a command of mouse or keyboard. Raises Malformed."""
    place = {} if params.get("x") is None and params.get("y") is None else {"x": _whole(params, "x"), "y": _whole(params, "y")}
    match command:
        case "left_click" | "right_click" | "middle_click":
            return [{"action": "click", "button": command.partition("_")[0], **place}]
        case "double_click":
            return [{"action": "click", "count": 2, **place}]
        case "move_cursor":
            return [{"action": "move", "x": _whole(params, "x"), "y": _whole(params, "y")}]
        case "mouse_down" | "mouse_up":
            return [{"action": command, "button": _button(params), **place}]
        case "drag_to":
            # From where the pointer is: it is pressed there, moved and released.
            button = _button(params)
            there = {"x": _whole(params, "x"), "y": _whole(params, "y")}
            return [{"action": "mouse_down", "button": button}, {"action": "move", **there}, {"action": "mouse_up", "button": button}]
        case "drag":
            path = params.get("path")
            if not isinstance(path, list) or not all(isinstance(point, list | tuple) and len(point) == 2 for point in path):
                raise Malformed("path must be a list of places")
            return [{"action": "drag", "button": _button(params), "path": [[_rounded(x), _rounded(y)] for x, y in path]}]
        case "key_down" | "key_up":
            return [{"action": command, "keys": _key(_text(params, "key"))}]
        case "press_key":
            return [{"action": "key", "keys": _key(_text(params, "key"))}]
        case "hotkey":
            keys = params.get("keys")
            if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
                raise Malformed("keys must be a list of names")
            return [{"action": "key", "keys": "+".join(_key(key) for key in keys)}]
        case "type_text":
            return [{"action": "type", "text": _text(params, "text")}]
        case "scroll":
            # Notches: right and up, as the client has it.
            return [{"action": "scroll", "dx": _notches(_whole(params, "x")), "dy": -_notches(_whole(params, "y"))}]
        case "scroll_down" | "scroll_up":
            clicks = _notches(_whole(params, "clicks") if params.get("clicks") is not None else 1)
            return [{"action": "scroll", "dy": clicks if command == "scroll_down" else -clicks}]
    raise Malformed(f"there is no command {command[:60]!r} here")


def _text(params: Params, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise Malformed(f"{name} must be a text")
    return value


def _whole(params: Params, name: str) -> int:
    return _rounded(params.get(name))


def _rounded(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 31:
        raise Malformed("places and clicks are numbers")
    return round(value)


def _notches(value: int) -> int:
    return max(-_MOST_NOTCHES, min(_MOST_NOTCHES, value))


def _button(params: Params) -> str:
    button = params.get("button") or "left"
    if button not in _BUTTONS:
        raise Malformed(f"button must be one of {', '.join(_BUTTONS)}")
    return str(button)


def _key(name: str) -> str:
    """The client pastes by the key Command, which Linux has not: what it means is Control."""
    return "ctrl" if name == "command" else name
