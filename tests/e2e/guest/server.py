"""Runs inside the desktop: a development server on port 3000 of the loopback. Its state is in memory only.

/next answers the number of times it was asked; / is a page with a word made up at loading, which a click changes.
"""

import http.server
import itertools

PAGE = b"""<!doctype html><meta charset="utf-8"><title>loading</title>
<style>body{margin:0;height:100vh;display:grid;place-items:center;font:600 40px sans-serif;background:#fdf6e3}body.on{background:#b8e6c9}</style>
<p></p><script>
const word = "page-" + Math.random().toString(36).slice(2, 10);
const show = (text) => { document.title = text; document.querySelector("p").textContent = text; };
show(word);
document.addEventListener("click", () => { document.body.className = "on"; show(word + "-clicked"); });
</script>"""
numbers = itertools.count(1)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        next_one = self.path == "/next"
        body = str(next(numbers)).encode() if next_one else PAGE
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if next_one else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal is for typing."""


http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
