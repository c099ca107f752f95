"""Firefox with its sandbox: two tabs, a WebSocket each, IndexedDB."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from application import HOME, PATIENCE, alive, background, expect, get, grows, log, main, wait_for

_MARIONETTE = ("127.0.0.1", 2828)
_TABS = ("one", "two")


class Marionette:
    """A session of Firefox's own remote protocol: JSON with its length before it."""

    def __init__(self) -> None:
        self._socket = socket.create_connection(_MARIONETTE, timeout=PATIENCE)
        self._number = 0

    def __enter__(self) -> "Marionette":
        self._receive()
        self.call("WebDriver:NewSession", {"capabilities": {"alwaysMatch": {}}})
        return self

    def __exit__(self, *_: object) -> None:
        self.call("WebDriver:DeleteSession")
        self._socket.close()

    def call(self, method: str, parameters: dict | None = None):
        """The result of a command. Raises Failed."""
        self._number += 1
        text = json.dumps([0, self._number, method, parameters or {}])
        self._socket.sendall(f"{len(text.encode())}:{text}".encode())
        _, _, error, result = self._receive()
        expect(error is None, f"{method}: {error}")
        return result

    def _receive(self):
        size = b""
        while not size.endswith(b":"):
            block = self._socket.recv(1)
            expect(block, "the browser closed the connection")
            size += block
        text = b""
        while len(text) < int(size[:-1]):
            block = self._socket.recv(65536)
            expect(block, "the browser closed the connection")
            text += block
        return json.loads(text)

    def switch(self, tab: str) -> None:
        """Make this tab the one that scripts run in."""
        for handle in self.call("WebDriver:GetWindowHandles"):
            self.call("WebDriver:SwitchToWindow", {"handle": handle, "focus": False})
            if self.call("WebDriver:GetTitle")["value"] == f"tab {tab}":
                return
        expect(False, f"there is no tab {tab}")

    def script(self, text: str):
        """The value of a piece of the page's own JavaScript."""
        return self.call("WebDriver:ExecuteScript", {"script": text, "args": [], "newSandbox": False, "sandbox": None})["value"]


def _evaluate(tab: str, expression: str):
    with Marionette() as browser:
        browser.switch(tab)
        return browser.script(f"return window.wrappedJSObject ? window.wrappedJSObject.eval({json.dumps(expression)}) : eval({json.dumps(expression)})")


def _state(tab: str) -> dict:
    return json.loads(_evaluate(tab, "JSON.stringify(state)"))


def start() -> None:
    HOME.mkdir(exist_ok=True)
    background("site", sys.executable, str(Path(__file__).with_name("site.py")))
    wait_for("the site", lambda: get("http://127.0.0.1:8000/"))
    background("screen", "Xvfb", ":9", "-screen", "0", "1024x768x24", "-nolisten", "tcp")
    wait_for("the screen", Path("/tmp/.X11-unix/X9").exists)
    (HOME / "profile").mkdir()
    background("browser", "firefox-esr", "--marionette", "--no-remote", "--profile", str(HOME / "profile"), "about:blank", DISPLAY=":9", HOME=str(HOME))
    wait_for("the browser", lambda: Marionette().__enter__().call("WebDriver:DeleteSession") or True)
    with Marionette() as browser:
        for tab in _TABS:
            handle = browser.call("WebDriver:NewWindow", {"type": "tab", "focus": True})["handle"]
            browser.call("WebDriver:SwitchToWindow", {"handle": handle})
            browser.call("WebDriver:Navigate", {"url": f"http://127.0.0.1:8000/#{tab}"})
    for tab in _TABS:
        wait_for(f"tab {tab}", lambda name=tab: _state(name)["stored"] and _state(name)["received"] > 3)


def check(side: str) -> None:
    for tab in _TABS:
        grows(f"the WebSocket of tab {tab}", lambda name=tab: _state(name)["received"])
        state = _state(tab)
        expect(state["closed"] == 0 and state["gaps"] == 0, f"the WebSocket of tab {tab}: {state}")
        expect(_evaluate(tab, f"take('note-{tab}')") == "kept", f"tab {tab} lost what it stored")
    expect(_evaluate("one", "take('mark')") is None, "another side's mark is here")
    _evaluate("one", f"put('mark', '{side}')")
    expect(alive("browser") and alive("screen"), log("browser")[-2000:])


def verify(side: str) -> None:
    expect(_evaluate("two", "take('mark')") == side, f"mark: {_evaluate('two', 'take(`mark`)')}")


if __name__ == "__main__":
    main(start, check, verify)
