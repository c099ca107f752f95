"""A model in the script's place, by both kinds of messages, at a server that speaks them as the real ones do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.agent_loop import run
from bench.agent_model import Model, actions_of
from bench.agent_tasks import choose
from bench.agent_ways import Desk
from bench.model_endpoint import Endpoint
from engine.errors import BadRequest, Unavailable
from tests.bench.fakes import PICTURE, FakeDesk, FakeWay
from tests.bench.models import KEY, PATHS, Asked, ModelServer, serving

TASK = choose(["form"])[0]


@pytest.fixture(params=list(PATHS))
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ModelServer]:
    async with serving(request.param, lambda asked: "0") as made:
        yield made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


def endpoint_of(variables: dict[str, str]) -> Endpoint:
    found = Endpoint.of_environment(variables)
    assert found is not None
    return found


async def test_a_model_proposes_for_each_branch_and_judges_by_pictures(server: ModelServer, session: aiohttp.ClientSession) -> None:
    words = ['Sure: [{"action":"key","keys":"Return"}]', '```json\n[{"action":"type","text":"Anna"}]\n```']
    server.say = lambda asked: "Of the 2 attempts, this one: 2" if "attempts, numbered" in asked.text else words["You are attempt 2 of" in asked.text]
    model = Model(endpoint_of(server.variables), session)
    desks: list[Desk] = [FakeDesk(TASK, 0), FakeDesk(TASK, 0)]
    first, second = await model.propose(TASK, 0, desks)
    assert first == [{"action": "key", "keys": "Return", "repeat": 1}] and second == [{"action": "type", "text": "Anna", "delay_ms": 3.0}]
    assert await model.judge(TASK, 0, desks) == 1 and not model.over(TASK, 1)
    assert len(server.asked) == 3 and [len(asked.pictures) for asked in server.asked] == [1, 1, 2] and server.asked[0].pictures[0].size == (40, 30)
    assert TASK.instruction in server.asked[0].text and "1280x800" in server.asked[0].text and "Done so far" not in server.asked[0].text
    # What was done goes into the next question; nothing more to do is the end.
    words[:] = ["[]", "[]"]
    assert await model.propose(TASK, 1, desks) == [[], []] and 'Done so far: [[{"action": "type", "text": "Anna"' in server.asked[-1].text
    assert await model.judge(TASK, 1, desks) == 1 and model.over(TASK, 2)
    # The next task begins anew.
    await model.propose(TASK, 0, desks)
    assert "Done so far" not in server.asked[-1].text and not model.over(TASK, 1)


async def test_a_task_is_done_by_a_model(server: ModelServer, session: aiohttp.ClientSession) -> None:
    steps = iter(TASK.steps)

    def say(asked: Asked) -> str:
        if "attempts, numbered" in asked.text:
            return "1"
        return json.dumps(next(steps, TASK.steps[0]).right) if "attempt 1 of" in asked.text else "[]"

    server.say = say
    way = FakeWay()
    outcome = await run(TASK, way, Model(endpoint_of(server.variables), session), 2)
    assert outcome.done and outcome.error is None and len(outcome.branching) == 3 and way.ended == 1


async def test_an_answer_that_nothing_can_be_made_of_is_not_the_end(server: ModelServer, session: aiohttp.ClientSession) -> None:
    answers: list[str | None] = [None, "I would click the button."]
    server.say = lambda asked: "1" if "attempts, numbered" in asked.text else answers["You are attempt 2 of" in asked.text]
    model = Model(endpoint_of(server.variables), session)
    desks: list[Desk] = [FakeDesk(TASK, 0), FakeDesk(TASK, 0)]
    assert await model.propose(TASK, 0, desks) == [[], []]
    assert await model.judge(TASK, 0, desks) == 0 and not model.over(TASK, 1)
    server.say = lambda asked: None
    assert await model.judge(TASK, 1, desks) is None


@pytest.mark.parametrize("busy", [429, 503, 529])
async def test_a_server_that_is_busy_is_asked_again(server: ModelServer, session: aiohttp.ClientSession, busy: int) -> None:
    server.failures = [(busy, "0.2"), (busy, "0")]
    begun = asyncio.get_running_loop().time()
    assert await endpoint_of(server.variables).ask(session, "well?", [PICTURE]) == "0"
    assert asyncio.get_running_loop().time() - begun >= 0.2 and len(server.asked) == 1
    server.failures = [(busy, "0")] * 4
    with pytest.raises(Unavailable, match=str(busy)):
        await endpoint_of(server.variables).ask(session, "well?", [])


@pytest.mark.parametrize(("change", "told"), [
    ({"AGENT_MODEL_KEY": "sk-another-secret"}, "401"), ({"AGENT_MODEL_NAME": "unknown"}, "404"), ({"AGENT_MODEL_URL": "http://127.0.0.1:9/v1/messages"}, "does not answer"),
])  # fmt: skip
async def test_what_is_wrong_is_told_without_the_key(server: ModelServer, session: aiohttp.ClientSession, change: dict[str, str], told: str) -> None:
    """The real servers repeat a wrong key in their error."""
    endpoint = endpoint_of({**server.variables, **change})
    with pytest.raises(Unavailable) as raised:
        await endpoint.ask(session, "well?", [PICTURE])
    assert told in raised.value.message and "sk-" not in raised.value.message and "sk-" not in repr(endpoint)
    assert told != "401" or "error" in raised.value.message


@pytest.mark.parametrize("family", PATHS)
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"no JSON", b'{"content":5}', b'{"choices":[]}', b'{"choices":[{"message":{"content":7}}]}', b'{"content":[{"type":"text"}]}'])
async def test_an_answer_that_is_none_is_told(session: aiohttp.ClientSession, family: str, content: bytes) -> None:
    """Nothing else is behind some addresses that look like a model's."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=content, content_type="application/json")

    app = web.Application()
    app.router.add_post(PATHS[family], answer)
    async with TestServer(app) as other:
        with pytest.raises(Unavailable, match="is none by"):
            await endpoint_of({"AGENT_MODEL_URL": str(other.make_url(PATHS[family])), "AGENT_MODEL_NAME": "m"}).ask(session, "well?", [])


async def test_a_redirection_does_not_get_the_key(server: ModelServer, session: aiohttp.ClientSession) -> None:
    async def away(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(server.url)

    app = web.Application()
    app.router.add_post(PATHS[server.family], away)
    async with TestServer(app) as other:
        with pytest.raises(Unavailable, match="307"):
            await endpoint_of({**server.variables, "AGENT_MODEL_URL": str(other.make_url(PATHS[server.family]))}).ask(session, "well?", [])
    assert server.asked == []


@pytest.mark.parametrize("words", ["", "no list", "[", '[{"action":"explode"}]', '[{"action":"click","x":-1,"y":0}]', "[1]"])
def test_words_without_usable_actions_are_none(words: str) -> None:
    assert actions_of(words) is None
    assert actions_of("It is done: [ ]") == []


@pytest.mark.parametrize("variables", [
    {"AGENT_MODEL_URL": "https://model.example/v1/messages"},
    {"AGENT_MODEL_URL": "https://model.example", "AGENT_MODEL_NAME": "m"},
    {"AGENT_MODEL_URL": "file:///v1/messages", "AGENT_MODEL_NAME": "m"},
    {"AGENT_MODEL_URL": "http://model.example/v1/messages", "AGENT_MODEL_NAME": "m", "AGENT_MODEL_KEY": KEY},
])  # fmt: skip
def test_half_an_endpoint_is_told(variables: dict[str, str]) -> None:
    with pytest.raises(BadRequest) as raised:
        Endpoint.of_environment(variables)
    assert KEY not in raised.value.message


def test_where_a_model_may_be() -> None:
    assert Endpoint.of_environment({}) is None
    for url in ("http://127.0.0.1:8000/v1/chat/completions", "http://[::1]:8000/v1/messages", "http://localhost/v1/messages", "https://model.example/v1/messages?beta=true"):
        assert endpoint_of({"AGENT_MODEL_URL": url, "AGENT_MODEL_NAME": "m", "AGENT_MODEL_KEY": KEY}).url == url
