"""A web site for the browsers' tests: pages, a WebSocket that counts, and a download that stands still in its middle until it is let go on.

    python3 site.py            pages on 127.0.0.1:8000, the WebSocket on 127.0.0.1:8001
"""

from __future__ import annotations

import asyncio
import http.server
import threading
import time

from websockets.asyncio.server import ServerConnection, serve

from application import HOME

_BLOCKS = 400
# The download waits for this file, so that it is under way whenever the fork comes.
_GOES_ON = HOME / "download-goes-on"
_PAGE = b"""<!doctype html><meta charset=utf-8><title>tab</title>
<script>
const name = location.hash.slice(1);
document.title = 'tab ' + name;
window.state = { name, ticks: 0, received: 0, first: 0, closed: 0, gaps: 0, stored: false };
setInterval(() => state.ticks++, 50);
const socket = new WebSocket('ws://127.0.0.1:8001/');
socket.onmessage = message => {
    const number = Number(message.data);
    if (!state.first) state.first = number;
    else if (number !== state.received + 1) state.gaps++;
    state.received = number;
};
socket.onclose = () => state.closed++;
const opening = indexedDB.open('notes', 1);
opening.onupgradeneeded = () => opening.result.createObjectStore('notes');
opening.onsuccess = () => {
    window.notes = opening.result;
    const writing = notes.transaction('notes', 'readwrite');
    writing.objectStore('notes').put('kept', 'note-' + name);
    writing.oncomplete = () => { state.stored = true; };
};
window.put = (key, value) => new Promise((done, failed) => {
    const writing = notes.transaction('notes', 'readwrite');
    writing.objectStore('notes').put(value, key);
    writing.oncomplete = () => done(true);
    writing.onerror = failed;
});
window.take = key => new Promise((done, failed) => {
    const asking = notes.transaction('notes').objectStore('notes').get(key);
    asking.onsuccess = () => done(asking.result === undefined ? null : asking.result);
    asking.onerror = failed;
});
</script><input id=field><p>page</p>"""


class Pages(http.server.BaseHTTPRequestHandler):
    """Every path is the page, except /download."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # noqa: N802 - the base class names it
        if self.path == "/download":
            self._download()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)

    def _download(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Disposition", "attachment; filename=big.bin")
        self.send_header("Content-Length", str(_BLOCKS * 16384))
        self.end_headers()
        for number in range(_BLOCKS):
            while number >= _BLOCKS // 2 and not _GOES_ON.exists():
                time.sleep(0.05)
            self.wfile.write(bytes([number % 251]) * 16384)
            time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


async def _count(connection: ServerConnection) -> None:
    number = 0
    while True:
        number += 1
        await connection.send(str(number))
        await asyncio.sleep(0.05)


async def _run() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with serve(_count, "127.0.0.1", 8001):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run())
