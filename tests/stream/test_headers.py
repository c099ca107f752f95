"""What passes the proxy and what does not, header by header."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from portal.hosts import PORTAL_HOST as HOST
from portal.stream import headers, routing, viewer_api
from portal.stream.viewer_api import Role

PORTAL = "https://localhost:8443"


def sent(*pairs: tuple[str, str], desktop: bool = True) -> CIMultiDict[str]:
    return headers.request_headers(CIMultiDict(pairs), "ws-1.localhost:8443", "192.0.2.1", desktop)


def received(*pairs: tuple[str, str]) -> CIMultiDict[str]:
    return headers.desktop_response_headers(CIMultiDict(pairs), PORTAL)


@pytest.mark.parametrize(
    "name",
    ["Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Authorization", "Proxy-Connection", "Connection", "HTTP2-Settings"],
)
def test_hop_by_hop_headers_stay_here(name: str) -> None:
    assert name not in sent((name, "x"))
    assert name not in received((name, "x"))


@pytest.mark.parametrize("name", ["Server", "X-Powered-By", "server"])
def test_no_answer_tells_which_versions_run(name: str) -> None:
    told = (name, "Python/3.13 websockets/15.0")
    assert received(told)["Server"] == headers.response_headers(CIMultiDict([told]))["Server"] == "TClone"
    assert not [value for value in received(told).values() if "Python" in value]


def test_headers_named_by_connection_stay_here_but_not_the_ones_that_carry_meaning() -> None:
    found = sent(("Connection", "X-Gone, close, Host, Cookie"), ("Connection", "x-too"), ("X-Gone", "1"), ("X-Too", "1"), ("Cookie", "a=b"))
    assert "X-Gone" not in found and "X-Too" not in found
    assert found["Host"] == "ws-1.localhost:8443" and found["Cookie"] == "a=b"


def test_forwarded_headers_are_overwritten_never_appended() -> None:
    found = sent(
        ("Host", "evil"), ("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-Proto", "http"), ("X-Forwarded-Host", "evil"),
        ("X-Forwarded-Prefix", "/x"), ("Forwarded", "for=1.2.3.4"), ("X-Real-IP", "1.2.3.4"),
    )  # fmt: skip
    assert found.getall("X-Forwarded-For") == ["192.0.2.1"]
    assert found.getall("X-Forwarded-Proto") == ["https"]
    assert found.getall("Host") == found.getall("X-Forwarded-Host") == ["ws-1.localhost:8443"]
    assert "X-Forwarded-Prefix" not in found and "Forwarded" not in found and "X-Real-IP" not in found


def test_our_cookies_and_credentials_never_reach_a_workspace_its_own_cookies_do() -> None:
    found = sent(
        ("Cookie", "a=1; __Host-tclone-desk=secret; b=2"), ("Cookie", "__HOST-TCLONE=secret;c=3"),
        ("Authorization", "Bearer secret"), ("Selkies-Authorization", "Bearer secret"),
    )  # fmt: skip
    assert found.getall("Cookie") == ["a=1; b=2", "c=3"]
    assert "secret" not in repr(found)


def test_control_gets_its_cookies_and_authorization() -> None:
    found = sent(("Cookie", "__Host-tclone=x"), ("Authorization", "Bearer t"), desktop=False)
    assert found["Cookie"] == "__Host-tclone=x" and found["Authorization"] == "Bearer t"


@pytest.mark.parametrize("value", ["__Host-tclone=x", "__host-TCLONE-desk=x; Path=/", " __Host-tclone =x", "=__Host-tclone-desk=x", "__Host-tclone", "nameless"])
def test_a_workspace_cannot_set_our_cookies(value: str) -> None:
    assert "Set-Cookie" not in received(("Set-Cookie", value))


def test_every_other_cookie_passes_without_its_domain() -> None:
    found = received(("Set-Cookie", "a=1; Domain=localhost; Path=/"), ("Set-Cookie", "b=2; domain = .localhost;HttpOnly"), ("Set-Cookie", "c=domain=x"))
    assert found.getall("Set-Cookie") == ["a=1; Path=/", "b=2;HttpOnly", "c=domain=x"]


def test_framing_is_the_portals_to_decide() -> None:
    found = received(
        ("X-Frame-Options", "DENY"),
        ("Content-Security-Policy", "default-src 'self'; Frame-Ancestors https://evil; img-src *, frame-ancestors 'none'"),
    )
    assert found.getall("Content-Security-Policy") == ["default-src 'self'; img-src *", f"frame-ancestors 'self' {PORTAL}"]
    assert "X-Frame-Options" not in found
    assert found["Cross-Origin-Opener-Policy"] == found["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("name", ["Strict-Transport-Security", "Clear-Site-Data", "Alt-Svc", "Service-Worker-Allowed"])
def test_headers_that_reach_beyond_the_desktops_origin_are_dropped(name: str) -> None:
    assert name not in received((name, "x"))


def test_a_cookie_sent_twice_counts_as_none() -> None:
    twice = CIMultiDict([("Cookie", "x=1; y=2"), ("Cookie", "x=3")])
    assert headers.cookie_value(twice, "x") is None and headers.cookie_value(twice, "y") == "2"


@pytest.mark.parametrize(
    ("host", "workspace"),
    [(f"ws-3.{HOST}:8443", "ws-3"), (f"WS-3.{HOST.upper()}", "ws-3"), (f"{HOST}:8443", ""), ("127.0.0.1:8443", ""), ("[::1]:8443", "")],
)
def test_hosts_of_ours(host: str, workspace: str) -> None:
    route = routing.resolve(host)
    assert route is not None and route.workspace == workspace


@pytest.mark.parametrize(
    "host",
    ["", "evil", "evil:8443", f"{HOST}.evil", "ws-3.evil", f"ws-3.{HOST}.evil:8443", f"a.ws-3.{HOST}", f"ws-x.{HOST}", f"ws-3.{HOST}:x",
     f"ws-3.{HOST}:123456", f"ws-3.{HOST}@evil", f"{HOST}/", f"ws-3.{HOST}, {HOST}", "192.0.2.1", f"ws--1.{HOST}"],
)  # fmt: skip
def test_other_hosts_are_not_served(host: str) -> None:
    assert routing.resolve(host) is None


def test_the_public_port_stays_in_every_origin() -> None:
    route = routing.resolve(f"ws-3.{HOST}:9443")
    assert route is not None
    assert route.origin == f"https://ws-3.{HOST}:9443" and route.portal_origin == f"https://{HOST}:9443"


@pytest.mark.parametrize(
    "path",
    ["/", "/index.html", "/manifest.json", "/icon.png", "/favicon.ico", "/assets/index-1.js", "/src/a.js", "/codecs/libopus-wasm/index.js",
     "/jsdb/linux/1.json", "/api/status", "/api/health", "/api/websockets", "/api/files/", "/api/files/a/b%20c@;.txt", "/api/files/%C3%BC", "/api/print/doc-1",
     "/api/apps/metadata.yml", "/api/apps/img/x.png"],
)  # fmt: skip
def test_the_viewer_may_read(path: str) -> None:
    decoded = viewer_api.decoded_path(path)
    assert decoded is not None and viewer_api.allows("GET", decoded, Role.CONTROLLER)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/tokens"), ("GET", "/api/tokens"), ("POST", "/api/switch"), ("GET", "/api/sessions"), ("DELETE", "/api/sessions/1"), ("GET", "/api/metrics"),
     ("POST", "/api/recording"), ("POST", "/computer-use"), ("GET", "/api/screenshot"), ("GET", "/api/webrtc/signaling"), ("GET", "/api/ws"), ("GET", "/api/turn"),
     ("POST", "/api/%74okens"), ("POST", "/api//tokens"), ("POST", "/assets/../api/tokens"), ("POST", "/api/upload/../tokens"), ("POST", "/API/TOKENS"),
     ("GET", "/assets/%2e%2e/api/metrics"), ("GET", "/assets/..%2fapi/metrics"), ("GET", "/assets\\..\\api\\metrics"), ("GET", "/assets/%5c..%5capi"), ("GET", "/api/tokens/"),
     ("GET", "/api/files/%00"), ("GET", "/assets/%ff"), ("PUT", "/api/upload"), ("DELETE", "/api/files/x"), ("OPTIONS", "/"), ("CONNECT", "/"), ("TRACE", "/"),
     ("GET", "http://localhost/"), ("GET", "/api/print/../tokens"), ("GET", "/api/files/../tokens")],
)  # fmt: skip
def test_nothing_that_gives_control_is_reachable(method: str, path: str) -> None:
    decoded = viewer_api.decoded_path(path)
    assert decoded is None or not viewer_api.allows(method, decoded, Role.CONTROLLER)
