"""Fixtures, first what a test usually wants:

`engine`   a fake engine that behaves (tests/portal/fake_engine.py says how it can be made not to)
`portal`   the control process's two sockets, served in this process, with a client for each: `.client()`, `.private()`, `.login()`
`front`    TLS and hosts before it, as the stream process does, for clients of others
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pwd
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import argon2
import pytest

from engine.config import REPO, Config
from portal import accounts
from portal.app import Control, Options
from portal.control import serving
from portal.node import Patience
from portal.places import Places
from portal.setup import prepare
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front

HOST = "tclone.localhost:8443"
ORIGIN = f"https://{HOST}"
# How long a test waits for what must come, in seconds: long, because test machines can be busy.
PATIENCE = 30.0
OWN_PASSWORD = "four words of my choosing"


@pytest.fixture(autouse=True)
def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords hashed with next to no work: what is slow in that is the library's, and has a test of its own."""
    quick = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(accounts, "_hasher", quick)
    monkeypatch.setattr(accounts, "_nobodys", lambda: quick.hash("nobody's"))


@pytest.fixture
def plain_config(short_path: Path) -> Config:
    """Own directories, with room for the path of a Unix socket."""
    base = Config.from_environment()
    user = pwd.getpwuid(os.geteuid()).pw_name
    made = replace(base, data=short_path / "data", run=short_path / "run", images=REPO / "images", portal_user=user)
    made.run.mkdir()
    return made


@pytest.fixture
def config(plain_config: Config) -> Config:
    """What the portal is served with; tests change it."""
    return plain_config


@pytest.fixture
async def engine(config: Config) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(config.socket) as fake:
        yield fake


class Client:
    """A browser without a page: keeps cookies and the session key, sends what a page of the portal would send."""

    def __init__(self, socket: Path, host: str = HOST) -> None:
        self.host = host
        self.cookies: dict[str, str] = {}
        self.key = ""
        self.address = "192.0.2.7"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(socket)), cookie_jar=aiohttp.DummyCookieJar()
        )

    def headers(self, **changes: str | None) -> dict[str, str]:
        values: dict[str, str | None] = {
            "Host": self.host,
            "Origin": f"https://{self.host}",
            "Sec-Fetch-Site": "same-origin",
            "X-Forwarded-For": self.address,
            "X-TClone-Key": self.key,
            "Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()),
        }
        values.update(changes)
        return {name: value for name, value in values.items() if value}

    async def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str | None] | None = None, **options: Any
    ) -> aiohttp.ClientResponse:
        """One request, its body read. `headers`: changes to the usual ones, None leaves one out."""
        sent = self.headers(**(headers or {}))
        if body is not None:
            options["data"] = io.BytesIO(json.dumps(body).encode())
            sent.setdefault("Content-Type", "application/json")
        async with self._session.request(
            method, f"http://control{path}", headers=sent, allow_redirects=False, **options
        ) as answer:
            await answer.read()
            for name, morsel in answer.cookies.items():
                self.cookies[name] = morsel.value
            return answer

    async def login(self, password: str, user: str = "admin", **more: str) -> aiohttp.ClientResponse:
        answer = await self.request("POST", "/api/v1/login", {"user": user, "password": password, **more})
        if answer.status == 200:
            self.key = (await answer.json())["key"]
        return answer

    @contextlib.asynccontextmanager
    async def socket(self, path: str = "/ws", **changes: str | None) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with self._session.ws_connect(f"http://control{path}", headers=self.headers(**changes)) as socket:
            yield socket

    async def close(self) -> None:
        await self._session.close()


class Program(Client):
    """A program with an API token."""

    def __init__(self, socket: Path, token: str) -> None:
        super().__init__(socket)
        self._token = token

    def headers(self, **changes: str | None) -> dict[str, str]:
        values: dict[str, str | None] = {"Host": self.host, "X-Forwarded-For": self.address, "Authorization": f"Bearer {self._token}", **changes}
        return {name: value for name, value in values.items() if value}


class Portal:
    """A served portal. `password` is the first one."""

    def __init__(self, config: Config, password: str, control: Control) -> None:
        self.config = config
        self.places = Places(config)
        self.password = password
        self.control = control
        self._clients: list[Client] = []

    def client(self, host: str = HOST) -> Client:
        return self._keep(Client(self.places.control_socket, host))

    def private(self) -> Client:
        return self._keep(Client(self.places.private_socket))

    async def login(self) -> Client:
        """A client that is logged in."""
        client = self.client()
        answer = await client.login(self.password)
        assert answer.status == 200
        return client

    async def user(self, admin: Client, name: str, role: str = "user") -> Client:
        """A client of a new user who has chosen a password (`OWN_PASSWORD`) and is logged in."""
        answer = await admin.request("POST", "/api/v1/users", {"user": name, "role": role})
        assert answer.status == 201, await answer.text()
        client = self.client()
        entered = await client.login((await answer.json())["password"], name, new_password=OWN_PASSWORD)
        assert entered.status == 200, await entered.text()
        return client

    def program(self, token: str) -> Client:
        """A client that sends an API token and nothing that a browser has."""
        return self._keep(Program(self.places.control_socket, token))

    def _keep(self, client: Client) -> Client:
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


async def answers(socket: aiohttp.ClientWebSocketResponse) -> list[Any]:
    """All messages to the end: bytes, and objects."""
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        async for message in socket:
            found.append(message.data if message.type is aiohttp.WSMsgType.BINARY else json.loads(message.data))
    return found


async def token_of(person: Client, *scopes: str, **more: object) -> str:
    """A new API token of whoever is logged in."""
    answer = await person.request("POST", "/api/v1/tokens", {"name": "agent", "scopes": list(scopes), **more})
    assert answer.status == 201, await answer.text()
    return str((await answer.json())["token"])


async def program(portal: Portal, person: Client, *scopes: str) -> Client:
    """A client with such a token."""
    return portal.program(await token_of(person, *scopes))


@pytest.fixture
def options() -> Options:
    """Patient: few tests are about a slow engine, and test machines can be busy."""
    return Options(patience=Patience(read=PATIENCE, work=PATIENCE))


@contextlib.asynccontextmanager
async def served(config: Config, options: Options) -> AsyncIterator[Portal]:
    """A portal that has seen its engine."""
    prepared = await asyncio.to_thread(prepare, config)
    assert prepared.password is not None
    async with serving(config, options) as control:
        made = Portal(config, prepared.password, control)
        async with asyncio.timeout(PATIENCE):
            while control.feed.engine != "up":
                await asyncio.sleep(0.01)
        yield made
        await made.close()


@pytest.fixture
async def portal(config: Config, options: Options, engine: FakeEngine) -> AsyncIterator[Portal]:
    async with served(config, options) as made:
        yield made


@pytest.fixture
async def front(portal: Portal) -> AsyncIterator[Front]:
    async with Front(portal.places) as made:
        yield made
