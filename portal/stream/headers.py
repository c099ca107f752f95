"""What of a request's and a response's headers passes the proxy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

from engine.answers import SERVER
from portal import hosts

# Every cookie of ours begins so; a workspace neither sees nor sets one.
COOKIE_PREFIX = "__host-tclone"

_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "proxy-authentication-info",
        "te", "trailer", "transfer-encoding", "upgrade", "http2-settings",
    }
)  # fmt: skip
# Who the peer is and how it came is ours to say; Forwarded would say it a second time.
_PEER_CLAIMS = frozenset({"forwarded", "x-real-ip", "x-client-ip", "true-client-ip"})
# Never dropped because a Connection header names them: without them the request would mean something else upstream.
_NOT_CONNECTION_OPTIONS = frozenset({"host", "content-length", "content-type", "cookie", "authorization", "origin"})
# Credentials that only the proxy may put on a request to a desktop.
_DESKTOP_CREDENTIALS = frozenset({"authorization", "selkies-authorization"})
# What a hostile desktop could do to the portal next to it: framing rules, transport rules of the host, other sites' data. And what tells which
# versions run.
_DESKTOP_DROPPED = frozenset(
    {"server", "x-powered-by", "x-frame-options", "strict-transport-security", "public-key-pins", "alt-svc", "clear-site-data", "service-worker-allowed"}
)


def connection_tokens(headers: CIMultiDict[str]) -> set[str]:
    """The options named by every Connection header, in lower case."""
    return {token.strip().lower() for value in headers.getall("Connection", ()) for token in value.split(",") if token.strip()}


def _end_to_end(headers: CIMultiDict[str]) -> Iterable[tuple[str, str]]:
    named = connection_tokens(headers) - _NOT_CONNECTION_OPTIONS
    for name, value in headers.items():
        if name.lower() not in _HOP_BY_HOP and name.lower() not in named:
            yield name, value


def _cookie_name(pair: str) -> str:
    return pair.partition("=")[0].strip()


def cookie_value(headers: CIMultiDict[str], name: str) -> str | None:
    """The value of cookie `name`. None when it is missing or sent twice: then one of them is not ours."""
    found = [
        pair.partition("=")[2].strip()
        for header in headers.getall("Cookie", ())
        for pair in header.split(";")
        if _cookie_name(pair) == name
    ]
    return found[0] if len(found) == 1 else None


def strip_our_cookies(value: str) -> str:
    """A Cookie header without the cookies whose name is ours."""
    return "; ".join(
        pair.strip() for pair in value.split(";") if pair.strip() and not _cookie_name(pair).lower().startswith(COOKIE_PREFIX)
    )


def request_headers(headers: CIMultiDict[str], host: str, peer: str, desktop: bool) -> CIMultiDict[str]:
    """Headers for upstream. `host`: the public host as the client named it; `peer`: the client's address.

    For a desktop the client's credentials for us are left out too; control needs them.
    """
    result: CIMultiDict[str] = CIMultiDict()
    for name, value in _end_to_end(headers):
        lower = name.lower()
        if lower == "host" or lower in _PEER_CLAIMS or lower.startswith("x-forwarded-"):
            continue
        if desktop and lower in _DESKTOP_CREDENTIALS:
            continue
        if desktop and lower == "cookie":
            value = strip_our_cookies(value)
            if not value:
                continue
        result.add(name, value)
    result["Host"] = host
    result["X-Forwarded-For"] = peer
    result["X-Forwarded-Proto"] = "https"
    result["X-Forwarded-Host"] = host
    return result


def _safe_cookie(value: str) -> str | None:
    """A workspace's Set-Cookie without Domain; None for one with our name, or with none (`=__Host-…` once forged a prefix)."""
    parts = value.split(";")
    name = _cookie_name(parts[0])
    if "=" not in parts[0] or not name or name.lower().startswith(COOKIE_PREFIX):
        return None
    return ";".join(part for index, part in enumerate(parts) if index == 0 or _cookie_name(part).lower() != "domain")


def _without_frame_ancestors(value: str) -> str:
    """A Content-Security-Policy header's policies without their frame-ancestors directive."""
    policies = []
    for policy in value.split(","):
        kept = [d.strip() for d in policy.split(";") if d.strip() and d.split()[0].lower() != "frame-ancestors"]
        if kept:
            policies.append("; ".join(kept))
    return ", ".join(policies)


def desktop_policy(portal_origin: str) -> Mapping[str, str]:
    """Headers that every response of a desktop host carries.

    `'self'`: the viewer shows its file list in a frame of its own inside the portal's frame, and each ancestor has to be allowed.
    """
    return {
        "Content-Security-Policy": f"frame-ancestors 'self' {portal_origin}",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        **hosts.transport_policy(),
    }


def response_headers(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """End-to-end headers of a response of control's: all of them, every value of each."""
    result = CIMultiDict(_end_to_end(headers))
    result["Server"] = SERVER
    return result


def desktop_response_headers(headers: CIMultiDict[str], portal_origin: str) -> CIMultiDict[str]:
    """Headers of a desktop's response that may reach the browser, with our framing rules in place of its own."""
    policy = desktop_policy(portal_origin)
    replaced = {name.lower() for name in policy} - {"content-security-policy"}
    result: CIMultiDict[str] = CIMultiDict()
    for name, value in _end_to_end(headers):
        lower = name.lower()
        if lower in _DESKTOP_DROPPED or lower in replaced:
            continue
        if lower == "set-cookie":
            safe = _safe_cookie(value)
            if safe is None:
                continue
            value = safe
        if lower == "content-security-policy":
            value = _without_frame_ancestors(value)
            if not value:
                continue
        result.add(name, value)
    for name, value in policy.items():
        result.add(name, value)
    result["Server"] = SERVER
    return result
