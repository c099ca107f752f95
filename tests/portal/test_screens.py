"""Pictures of screens by the portal's API."""

from __future__ import annotations

import pytest

from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine

PATH = "/api/v1/workspaces/ws-1/screenshot"


async def test_a_picture_has_a_tag_and_is_not_sent_twice(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    first = await client.request("GET", f"{PATH}?format=jpeg&width=320&max_age_ms=700")
    assert (first.status, first.content_type, first.headers["Screen-Size"]) == (200, "image/jpeg", "1280x800")
    assert int(first.headers["Content-Length"]) > 100
    known = {"If-None-Match": first.headers["ETag"]}
    assert (await client.request("GET", f"{PATH}?format=jpeg&width=320", headers=known)).status == 304
    engine.screens["ws-1"] = 200
    again = await client.request("GET", f"{PATH}?format=jpeg&width=320", headers=known)
    assert again.status == 200 and again.headers["ETag"] != first.headers["ETag"]
    whole = await client.request("GET", PATH)
    assert whole.content_type == "image/png"
    assert engine.calls[0] == ("screenshot", {"width": "320", "format": "jpeg", "max_age_ms": "700"})


async def test_a_strange_tag_is_no_tag(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    assert (await client.request("GET", PATH, headers={"If-None-Match": '"' + "x" * 500 + '"'})).status == 200


@pytest.mark.parametrize("query", ["width=0", "width=8000", "width=x", "format=gif", "max_age_ms=99999", "other=1"])
async def test_malformed_questions_do_not_reach_the_engine(portal: Portal, engine: FakeEngine, query: str) -> None:
    engine.add()
    client = await portal.login()
    assert (await client.request("GET", f"{PATH}?{query}")).status == 400
    assert engine.calls == []


async def test_who_may_look(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    assert (await portal.client().request("GET", PATH)).status == 401
    client = await portal.login()
    assert (await client.request("GET", PATH.replace("ws-1", "ws-9"))).status == 404
    engine.changed(engine.workspaces["ws-1"], state="forking")
    assert (await client.request("GET", PATH)).status == 409
