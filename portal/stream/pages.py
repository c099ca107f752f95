"""The proxy's own answers: refusals, the page that waits for a desktop, and their two files."""

from __future__ import annotations

import html
import json
from string import Template

from aiohttp import web

from portal.prose import prose
from portal.stream.errors import NoSession, NotReady, StreamError
from portal.stream.viewer import FILES as VIEWER_FILES

SCRIPT_PATH = "/__tclone/wait.js"
STYLE_PATH = "/__tclone/page.css"
STATE_PATH = "/__tclone/state"
ENTER_PATH = "/__tclone/enter"

_RETRY_SECONDS = {503: 2, 504: 2, 502: 2}
_WAIT_SECONDS = 1

# The colours are those of the portal's pages (static/css/base.css), which are on another host.
_STYLE = """\
:root { color-scheme: light dark; font: 14px/1.45 system-ui, sans-serif; }
body { min-height: 100vh; margin: 0; display: grid; place-items: center; background: light-dark(#ffffff, #14171e); color: light-dark(#171a21, #e8ebf1); }
main { max-width: 60ch; padding: 1.5rem; text-align: center; }
h1 { font-size: 1.1rem; font-weight: 650; margin: 0 0 .5rem; }
p { margin: .25rem 0; color: light-dark(#565e6e, #9ba4b4); overflow-wrap: anywhere; }
#state::first-letter { text-transform: uppercase; }
a { color: light-dark(#2450d6, #8fabff); }
code { padding: 1px 4px; border-radius: 4px; background: light-dark(#eaecf1, #0a0c10); }
progress { width: 12rem; margin-top: 1rem; accent-color: #3f69f0; }
"""

# Asks until the desktop is there, then loads it. Without scripts the page's refresh does the same.
_SCRIPT = """\
"use strict";
const state = document.getElementById("state");
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
(async () => {
  for (;;) {
    try {
      const answer = await fetch("/__tclone/state", { cache: "no-store" });
      if (answer.status === 401 || answer.status === 404) { location.reload(); return; }
      if (answer.ok) {
        const now = await answer.json();
        if (now.ready) { location.reload(); return; }
        state.textContent = [now.state, now.phase].filter(Boolean).join(": ");
      }
    } catch (error) { state.textContent = "No connection to the portal; trying again"; }
    await wait(500);
  }
})();
"""

_PAGE = Template(
    """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$title</title><link rel="stylesheet" href="$style">$head</head>
<body><main><h1>$title</h1>$body</main></body></html>
"""
)

_PAGE_POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"


def wants_page(request: web.BaseRequest) -> bool:
    """Whether a person's browser asks for a document; everything else gets JSON."""
    if request.method != "GET":
        return False
    destination = request.headers.get("Sec-Fetch-Dest")
    if destination is not None:
        return destination in ("document", "iframe", "frame")
    return "text/html" in request.headers.get("Accept", "")


def own_file(path: str) -> web.Response | None:
    """A script or style of ours; None for another path."""
    files = {SCRIPT_PATH: (_SCRIPT, "text/javascript"), STYLE_PATH: (_STYLE, "text/css"), **VIEWER_FILES}
    if path not in files:
        return None
    text, kind = files[path]
    return web.Response(text=text, content_type=kind, headers={"Cache-Control": "max-age=300"})


def _html(title: str, body: str, status: int, head: str = "") -> web.Response:
    text = _PAGE.substitute(title=html.escape(title), body=body, head=head, style=STYLE_PATH)
    response = web.Response(text=text, content_type="text/html", charset="utf-8", status=status)
    response.headers["Content-Security-Policy"] = _PAGE_POLICY
    return response


def waiting_page(workspace: str, state: str, phase: str) -> web.Response:
    """Becomes the desktop by itself."""
    head = f'<script src="{SCRIPT_PATH}" defer></script><noscript><meta http-equiv="refresh" content="{_WAIT_SECONDS}"></noscript>'
    body = f'<p id="state" role="status">{html.escape(": ".join(filter(None, (state, phase))))}</p><progress></progress>'
    return _html(f"The desktop of {workspace} is starting", body, 503, head)


def _login_page(error: StreamError, portal_origin: str, workspace: str) -> web.Response:
    link = html.escape(f"{portal_origin}/w/{workspace}" if workspace else portal_origin)
    body = f'<p>{prose(error.message)}</p><p><a href="{link}" target="_top">Open it from the portal</a></p>'
    return _html("Not logged in here", body, error.status)


def error_response(request: web.BaseRequest, error: StreamError, portal_origin: str = "", workspace: str = "") -> web.Response:
    """The answer for a refusal: a page for a person, JSON for the rest; never a redirect."""
    if wants_page(request):
        if isinstance(error, NoSession):
            response = _login_page(error, portal_origin, workspace)
        else:
            head = '<meta http-equiv="refresh" content="2">' if error.status in _RETRY_SECONDS else ""
            response = _html("Not available", f"<p>{prose(error.message)}</p>", error.status, head)
    else:
        text = json.dumps({"error": {"code": error.code, "message": error.message}}) + "\n"
        response = web.Response(text=text, content_type="application/json", status=error.status)
    if error.status in _RETRY_SECONDS:
        response.headers["Retry-After"] = str(_WAIT_SECONDS if isinstance(error, NotReady) else _RETRY_SECONDS[error.status])
    response.headers["Cache-Control"] = "no-store"
    if request.body_exists and not request.content.is_eof():
        # An unread body would be taken for the next request's beginning.
        response.force_close()
    return response
