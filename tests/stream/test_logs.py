"""What the stream process logs of a request, and by which id control hears of it."""

from __future__ import annotations

import io
import json
import logging

from aiohttp import web

from portal import logs
from tests.stream.world import World


async def test_a_request_has_one_id_on_both_sides_and_no_address(world: World) -> None:
    file = io.StringIO()
    handler = logging.StreamHandler(file)
    handler.setFormatter(logs.JsonLines())
    requests = logging.getLogger("portal.requests")
    before = requests.level
    requests.addHandler(handler)
    requests.setLevel(logging.INFO)
    try:
        assert (await world.ask("GET", "/api/v1/me?x=secret", "", "X-Request-Id: ffffffffffffffff")).status == 200

        async def answer(_: web.Request) -> web.Response:
            return web.Response(text="ok")

        await world.desktop_app(web.get("/{tail:.*}", answer))
        assert (await world.ask("GET", "/api/files/secret")).status == 200
        await world.until(lambda: file.getvalue().count("\n") == 2)
    finally:
        requests.removeHandler(handler)
        requests.setLevel(before)
    control, desktop = (json.loads(line) for line in file.getvalue().splitlines())
    assert world.control.requests[-1].headers.getall("X-Request-Id") == [control["request_id"]]
    assert control["route"] == "portal" and control["request_id"] != "ffffffffffffffff"
    assert (desktop["route"], desktop["workspace"], desktop["status"], desktop["method"]) == ("desktop", "ws-1", 200, "GET")
    assert "secret" not in file.getvalue()
