"""Chromium with its own sandbox: two tabs, a WebSocket each, a download under way, IndexedDB."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from websockets.sync.client import connect

from application import HOME, PATIENCE, alive, background, expect, get, grows, log, main, wait_for

_DEVTOOLS = "http://127.0.0.1:9222"
_TABS = ("one", "two")
_DOWNLOADS = HOME / "downloads"
_SIZE = 400 * 16384
# site.py lets go on with the download when this is there.
_GOES_ON = HOME / "download-goes-on"


def _targets() -> dict[str, str]:
    """The debugger's address of each tab."""
    pages = json.loads(get(f"{_DEVTOOLS}/json/list"))
    return {page["title"].removeprefix("tab "): page["webSocketDebuggerUrl"] for page in pages if page["title"].startswith("tab ")}


def _call(address: str, method: str, **parameters: object) -> dict:
    with connect(address, open_timeout=PATIENCE, max_size=None) as socket:
        socket.send(json.dumps({"id": 1, "method": method, "params": parameters}))
        while True:
            answer = json.loads(socket.recv(timeout=PATIENCE))
            if answer.get("id") == 1:
                expect("result" in answer, f"{method}: {answer}")
                return answer["result"]


def _evaluate(tab: str, script: str):
    result = _call(_targets()[tab], "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
    expect("exceptionDetails" not in result, f"{script}: {result}")
    return result["result"].get("value")


def _state(tab: str) -> dict:
    return json.loads(_evaluate(tab, "JSON.stringify(state)"))


def _browser() -> str:
    return json.loads(get(f"{_DEVTOOLS}/json/version"))["webSocketDebuggerUrl"]


def _downloaded() -> int:
    return max((path.stat().st_size for path in _DOWNLOADS.iterdir()), default=0)


def start() -> None:
    HOME.mkdir(exist_ok=True)
    _DOWNLOADS.mkdir()
    background("site", sys.executable, str(Path(__file__).with_name("site.py")))
    wait_for("the site", lambda: get("http://127.0.0.1:8000/"))
    background("screen", "Xvfb", ":8", "-screen", "0", "1024x768x24", "-nolisten", "tcp")
    wait_for("the screen", Path("/tmp/.X11-unix/X8").exists)
    preferences = HOME / "profile" / "Default" / "Preferences"
    preferences.parent.mkdir(parents=True)
    preferences.write_text(json.dumps({"download": {"default_directory": str(_DOWNLOADS), "prompt_for_download": False}}))
    background(
        "browser", "chromium", "--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--no-first-run",
         "--disable-gpu", "--remote-debugging-port=9222", f"--user-data-dir={HOME}/profile", "--password-store=basic", "about:blank", DISPLAY=":8", HOME=str(HOME),
    )  # fmt: skip
    wait_for("the browser", _browser)
    for tab in _TABS:
        _call(_browser(), "Target.createTarget", url=f"http://127.0.0.1:8000/#{tab}")
        wait_for(f"tab {tab}", lambda name=tab: _state(name)["stored"] and _state(name)["received"] > 3)
    _evaluate("one", "location.href = 'http://127.0.0.1:8000/download'; 1")
    wait_for("the download's start", lambda: _downloaded() > 32768)
    expect("--no-sandbox" not in _arguments(), "the browser runs without its sandbox")


def _arguments() -> str:
    return Path(f"/proc/{(HOME / 'browser.pid').read_text()}/cmdline").read_text()


def check(side: str) -> None:
    for tab in _TABS:
        before = _state(tab)
        grows(f"the clock of tab {tab}", lambda name=tab: _state(name)["ticks"])
        grows(f"the WebSocket of tab {tab}", lambda name=tab: _state(name)["received"])
        after = _state(tab)
        expect(after["closed"] == 0 and after["gaps"] == 0, f"the WebSocket of tab {tab}: {before} {after}")
        expect(_evaluate(tab, f"take('note-{tab}')") == "kept", f"tab {tab} lost what it stored")
    expect(_evaluate("one", "take('mark')") is None, "another side's mark is here")
    _evaluate("one", f"put('mark', '{side}')")
    expect(32768 < _downloaded() < _SIZE and not (_DOWNLOADS / "big.bin").exists(), f"the download is not under way: {_downloaded()} bytes")
    _GOES_ON.touch()
    expect(alive("browser") and alive("screen"), log("browser")[-2000:])


def verify(side: str) -> None:
    expect(_evaluate("two", "take('mark')") == side, f"mark: {_evaluate('two', 'take(`mark`)')}")
    wait_for("the end of the download", lambda: (_DOWNLOADS / "big.bin").stat().st_size == _SIZE)
    content = (_DOWNLOADS / "big.bin").read_bytes()
    expect(content == b"".join(bytes([number % 251]) * 16384 for number in range(400)), "the download is damaged")


if __name__ == "__main__":
    main(start, check, verify)
