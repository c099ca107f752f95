"""HTML pages and static files. Pages are empty shells: all data comes by the API, which also wants the session key."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from aiohttp import hdrs, web
from markupsafe import Markup

from portal import described, hosts
from portal.errors import Forbidden
from portal.guides import PREFIX as GUIDES
from portal.guides import Guides
from portal.prose import prose
from portal.routes import PREFIX
from portal.security import MESSAGE, Handler, session_by_cookie
from portal.sessions import Session

REPO = Path(__file__).resolve().parent.parent
_ID = re.compile(r"ws-[0-9]{1,18}")
_TYPES = {".css", ".js", ".svg", ".png", ".woff2"}
_ADMIN_PARTS = ("workspaces", "users", "settings", "audit")
_TITLES = {
    400: "That address is not usable",
    403: "Not for you",
    404: "There is nothing here",
    429: "Too much at once",
    500: "The portal made a mistake",
    503: "Not just now",
}


# Said where nobody has said anything better.
_TEXTS = {404: "The address may have a mistake in it, or what was here is gone."}


class Pages:
    """Templates and static files are read once, at start: what is served never depends on a path from a request."""

    def __init__(
        self, is_admin: Callable[[Session], bool], templates: Path = REPO / "templates", static: Path = REPO / "static", by_provider: bool = False
    ) -> None:
        """`is_admin`: who is shown the admins' pages; `by_provider`: the login page offers a login by the identity provider."""
        self._is_admin = is_admin
        self._by_provider = by_provider
        self._described: dict[str, Any] = {}
        self._guides = Guides(REPO / "docs")
        self._files = _load(static)
        # Changes with any static file, so that a browser never mixes scripts of two versions.
        self._version = hashlib.sha256(repr(sorted(self._files.items())).encode()).hexdigest()[:12]
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(templates), autoescape=True, undefined=jinja2.StrictUndefined
        )

    def describe(self, document: dict[str, Any]) -> None:
        """The OpenAPI document that `/docs` shows."""
        self._described = {"parts": described.parts(document), "refusals": described.refusals(document)}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._home),
            web.get("/w/{id}", self._workspace),
            web.get("/compare", self._compare),
            web.get("/compare/{left}/{right}", self._compare),
            web.get("/login", self._login),
            web.get("/share", self._share),
            web.get("/docs", self._docs),
            web.get(GUIDES + "{name:.+}", self._guide),
            web.get("/account", self._account),
            web.get("/admin", self._admin),
            web.get("/admin/{part}", self._admin),
            web.get("/favicon.ico", self._icon),
            web.get("/static/{version}/{path:.+}", self._static),
        ]

    async def _home(self, request: web.Request) -> web.Response:
        return self._shell(request, "home.html", workspace="")

    async def _workspace(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        if not _ID.fullmatch(identity):
            raise web.HTTPNotFound
        return self._shell(request, "workspace.html", workspace=identity)

    async def _compare(self, request: web.Request) -> web.Response:
        sides = {side: request.match_info.get(side, "") for side in ("left", "right")}
        if not all(_ID.fullmatch(identity) or not identity for identity in sides.values()):
            raise web.HTTPNotFound
        return self._shell(request, "compare.html", workspace="", **sides)

    def _shell(self, request: web.Request, template: str, **values: object) -> web.Response:
        if session_by_cookie(request) is None:
            return web.Response(status=303, headers={"Location": "/login"})
        return self.render(template, **values)

    async def _login(self, _: web.Request) -> web.Response:
        return self.render("login.html", by_provider=self._by_provider)

    async def _share(self, _: web.Request) -> web.Response:
        """Which workspace it is stands behind the `#` of the address, which no browser sends."""
        return self.render("share.html")

    async def _account(self, request: web.Request) -> web.Response:
        return self._shell(request, "account.html", workspace="")

    async def _docs(self, request: web.Request) -> web.Response:
        origin = hosts.portal_origin(request.headers.get(hdrs.HOST, ""))
        return self._shell(request, "docs.html", workspace="", prefix=PREFIX, origin=origin, guides=self._guides.parts(), **self._described)

    async def _guide(self, request: web.Request) -> web.Response:
        guide = self._guides.page(request.match_info["name"], hosts.portal_origin(request.headers.get(hdrs.HOST, "")))
        if guide is None:
            raise web.HTTPNotFound
        return self._shell(request, "guide.html", workspace="", guide=guide)

    async def _admin(self, request: web.Request) -> web.Response:
        part = request.match_info.get("part", "workspaces")
        if part not in _ADMIN_PARTS:
            raise web.HTTPNotFound
        session = session_by_cookie(request)
        if session is not None and not self._is_admin(session):
            raise Forbidden("these pages are for admins")
        return self._shell(request, "admin.html", workspace="", part=part)

    async def _icon(self, _: web.Request) -> web.Response:
        content, kind = self._files["icon.svg"]
        return web.Response(body=content, content_type=kind)

    async def _static(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["path"])
        if found is None:
            raise web.HTTPNotFound
        current = request.match_info["version"] == self._version
        caching = "public, max-age=31536000, immutable" if current else "no-store"
        return web.Response(body=found[0], content_type=found[1], charset="utf-8", headers={hdrs.CACHE_CONTROL: caching})

    def render(self, template: str, status: int = 200, **values: object) -> web.Response:
        """A page; templates know `static` (the prefix of static files)."""
        text = self._templates.get_template(template).render(static=f"/static/{self._version}", **values)
        return web.Response(status=status, text=text, content_type="text/html", charset="utf-8")

    @web.middleware
    async def html_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """An error page instead of JSON for a person who opened an address."""
        response = await handler(request)
        wants_html = request.method == "GET" and "text/html" in request.headers.get(hdrs.ACCEPT, "")
        if response.status < 400 or not wants_html or request.path.startswith("/api/"):
            return response
        title = _TITLES.get(response.status, "That did not work")
        return self.render("error.html", status=response.status, title=title, code=response.status, message=Markup(prose(response.get(MESSAGE) or _TEXTS.get(response.status, ""))))


def _load(directory: Path) -> dict[str, tuple[bytes, str]]:
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.suffix in _TYPES and path.is_file():
            kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
            files[path.relative_to(directory).as_posix()] = (path.read_bytes(), kind or "application/octet-stream")
    return files
