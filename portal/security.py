"""What every answer carries and every unsafe request must show: security headers, origin checks, the session."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from engine.answers import left_alone
from engine.errors import EngineError
from portal import hosts
from portal.errors import CrossSite, LoginNeeded, PortalError, WrongType, error_body
from portal.sessions import Session, Sessions

log = logging.getLogger(__name__)

COOKIE = "__Host-tclone"
KEY_HEADER = "X-TClone-Key"
SESSIONS = web.AppKey("sessions", Sessions)
# What was wrong, for the page that a person gets instead of JSON.
MESSAGE = web.ResponseKey("message", str)
_SAFE = {"GET", "HEAD", "OPTIONS"}
_LONGEST_SECRET = 128

# Faces for programs that show a key of their own in a header, which no page of another site can make a browser send. No cookie counts there.
_BY_KEY = ("/e2b/", "/cmd")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PERMISSIONS = (
    "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), microphone=(),"
    " midi=(), payment=(), usb=(), autoplay=*, clipboard-read=*, clipboard-write=*, fullscreen=*, screen-wake-lock=*"
)


def content_security_policy(host: str) -> str:
    """The portal's policy: own scripts and styles only, frames only of desktops, no DOM sinks that take HTML."""
    port = hosts.split(host)[1]
    desktops = f"https://*.{hosts.served()}{port}"
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "font-src 'self'",
            f"connect-src 'self' wss://{hosts.served()}{port}",
            f"frame-src {desktops}",
            f"form-action 'self' {desktops}",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "object-src 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """For every response, errors included (a signal, so that nothing gets past it)."""
    headers = response.headers
    headers["Content-Security-Policy"] = content_security_policy(request.headers.get(hdrs.HOST, ""))
    headers["X-Content-Type-Options"] = "nosniff"
    headers["X-Frame-Options"] = "DENY"
    # Not no-referrer: with it a browser posts the ticket form with `Origin: null`, and the desktop's host checks that origin.
    headers["Referrer-Policy"] = "strict-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Permissions-Policy"] = _PERMISSIONS
    headers.update(hosts.transport_policy())
    headers.setdefault("Cache-Control", "no-store")
    headers.popall("Server", None)


@web.middleware
async def canonical_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One origin for the portal: other names of this machine are sent there, foreign ones refused (DNS rebinding)."""
    host = request.headers.get(hdrs.HOST, "")
    if hosts.is_portal(host) or (hosts.is_alias(host) and request.path.startswith(_BY_KEY)):
        return await handler(request)
    if hosts.is_alias(host) and request.method in ("GET", "HEAD") and request.headers.get(hdrs.UPGRADE) is None:
        return web.Response(status=308, headers={"Location": hosts.portal_origin(host) + request.raw_path})
    return web.json_response(error_body("bad_request", "this host name is not the portal's"), status=421)


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Exceptions as JSON with the status they carry."""
    try:
        return await handler(request)
    except PortalError as error:
        headers = {"Retry-After": str(int(error.retry_after + 0.999))} if error.retry_after else {}
        if isinstance(error, LoginNeeded):
            headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
        refusal = web.json_response(error_body(error.code, error.message, **error.more), status=error.status, headers=headers)
        refusal[MESSAGE] = error.message
        return refusal
    except EngineError as error:
        return web.json_response({"error": error.to_wire()}, status=error.http_status)
    except web.HTTPException as answer:
        if answer.status < 400:
            raise
        code = "not_found" if answer.status == 404 else "bad_request"
        headers = {name: value for name, value in answer.headers.items() if name == hdrs.ALLOW}
        return web.json_response(error_body(code, answer.reason or "refused"), status=answer.status, headers=headers)
    except Exception as error:  # noqa: BLE001 - a defect must be told to the caller and logged
        if (answer_to_nobody := left_alone(request, error)) is not None:
            return answer_to_nobody
        log.exception("%s %s failed", request.method, request.path)
        return web.json_response(error_body("internal", "the portal failed; its log has more"), status=500)


@web.middleware
async def same_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Unsafe methods and WebSockets must come from the portal's own pages, or carry a token: no other site can make a browser send one."""
    if request.path.startswith(_BY_KEY):
        return await handler(request)
    unsafe = request.method not in _SAFE or request.headers.get(hdrs.UPGRADE) is not None
    if unsafe and hdrs.AUTHORIZATION not in request.headers:
        # A program that forgot its token: a browser would have told of an origin, and there is no session to abuse.
        if hdrs.ORIGIN not in request.headers and not request.cookies:
            raise LoginNeeded("send a token; what comes from a page of the portal has an Origin")
        require_same_origin(request)
    # A method that is not there is told as such: there is no body that it would take.
    served = request.match_info.http_exception is None
    if served and request.method not in _SAFE and request.body_exists and request.content_type not in _bodies(request):
        raise WrongType(f"the body is of type {request.content_type}; send it with Content-Type: {' or '.join(_bodies(request))}")
    return await handler(request)


def _bodies(request: web.Request) -> tuple[str, ...]:
    """Types of body that are taken: such as a form of another site cannot send, but for the one that shows the session key itself."""
    if request.method == "PUT":
        return ("application/octet-stream", "application/json")
    if request.path.endswith("/download"):
        return ("application/x-www-form-urlencoded",)
    return ("application/json",)


def require_same_origin(request: web.Request) -> None:
    """Raises CrossSite unless the browser says the request comes from the portal itself."""
    expected = hosts.portal_origin(request.headers.get(hdrs.HOST, ""))
    if request.headers.get(hdrs.ORIGIN) != expected:
        raise CrossSite(f"this request does not come from a page of {expected}")
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise CrossSite("this request comes from another site")


def session_by_cookie(request: web.Request) -> Session | None:
    """Who the browser says it is. Good for nothing but choosing a page: see session_of."""
    return request.app[SESSIONS].find(_short(request.cookies.get(COOKIE)))


def session_of(request: web.Request) -> Session:
    """The session of an API request: cookie *and* key. Raises LoginNeeded."""
    return session_with_key(request, request.headers.get(KEY_HEADER))


def session_with_key(request: web.Request, key: object) -> Session:
    """Raises LoginNeeded unless the cookie's session has this key.

    The cookie alone will not do: cookies ignore ports, so a server in a workspace, reached by its published port, gets to see it.
    """
    session = session_by_cookie(request)
    if session is None or not isinstance(key, str) or len(key) > _LONGEST_SECRET or not session.key_fits(key):
        raise LoginNeeded("log in first")
    return session


def set_cookie(response: web.Response, value: str) -> None:
    """The session cookie, for as long as the browser runs; the server decides how long it is good."""
    response.set_cookie(COOKIE, value, path="/", secure=True, httponly=True, samesite="Strict")


def delete_cookie(response: web.Response) -> None:
    response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")


def address_of(request: web.Request) -> str:
    """The browser's address, as the stream process (the only one that can reach our socket) reports it."""
    return request.headers.get("X-Forwarded-For", "unknown")[:64]


def _short(value: str | None) -> str | None:
    return value if value is not None and len(value) <= _LONGEST_SECRET else None
