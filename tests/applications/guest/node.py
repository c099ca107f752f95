"""A Node development server: watches its sources, serves them, and has a worker thread and a child process."""

from __future__ import annotations

import json

from application import HOME, alive, background, expect, get, grows, log, main, wait_for

_PORT = 3000
_PROGRAM = """
const fs = require('fs'), http = require('http'), { fork } = require('child_process'), { Worker } = require('worker_threads');
if (process.argv[2] === 'child') {
    let n = 0;
    process.on('message', () => process.send(++n));
} else {
    let state = { text: fs.readFileSync('source', 'utf8'), reloads: 0, ticks: 0, worker: 0, child: 0 };
    fs.watch('.', (event, name) => {
        if (name !== 'source') return;
        state.text = fs.readFileSync('source', 'utf8');
        state.reloads++;
    });
    setInterval(() => state.ticks++, 20);
    const worker = new Worker("const { parentPort } = require('worker_threads'); let n = 0; setInterval(() => parentPort.postMessage(++n), 20)", { eval: true });
    worker.on('message', n => { state.worker = n; });
    const child = fork(__filename, ['child']);
    child.on('message', n => { state.child = n; setTimeout(() => child.send('more'), 20); });
    child.send('more');
    http.createServer((request, response) => response.end(JSON.stringify(state))).listen(3000, '127.0.0.1');
}
"""


def _state() -> dict:
    return json.loads(get(f"http://127.0.0.1:{_PORT}/"))


def start() -> None:
    HOME.mkdir(exist_ok=True)
    (HOME / "source").write_text("first")
    (HOME / "server.js").write_text(_PROGRAM)
    background("server", "node", "server.js")
    wait_for("the server", lambda: all(_state()[part] > 5 for part in ("ticks", "worker", "child")))


def check(side: str) -> None:
    for part in ("ticks", "worker", "child"):
        grows(part, lambda key=part: _state()[key])
    expect(_state()["text"] == "first", f"served {_state()}")
    (HOME / "source").write_text(side)
    wait_for("the watcher", lambda: _state()["text"] == side)
    expect(alive("server"), log("server"))


def verify(side: str) -> None:
    expect(_state()["text"] == side and _state()["reloads"] <= 3, f"served {_state()}")


if __name__ == "__main__":
    main(start, check, verify)
