"""The byte relay by itself, on asyncio's own loop and on uvloop where it is installed."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import importlib.util
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.network.relay import HIGH_WATER, Relay, relay_sockets, reset, tune

REPO = Path(__file__).resolve().parents[2]
Scenario = Callable[[], Awaitable[None]]


def _loops() -> list[Any]:
    found = [pytest.param(None, id="asyncio")]
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        found.append(pytest.param(uvloop.new_event_loop, id="uvloop"))
    return found


@pytest.fixture(params=_loops())
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Run a scenario on the loop under test; descriptors must be back to their number afterwards."""

    def runner(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as first:
            # libuv keeps two descriptors for the life of the process from its first loop on.
            first.run(asyncio.sleep(0))
        before = len(os.listdir("/proc/self/fd"))
        with asyncio.Runner(loop_factory=request.param) as loop:

            async def bounded() -> None:
                async with asyncio.timeout(20):
                    await scenario()
                    # Transports give their sockets back in a later turn of the loop.
                    await asyncio.sleep(0.05)

            loop.run(bounded())
        assert len(os.listdir("/proc/self/fd")) == before

    return runner


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection over the loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


async def read_all(sock: socket.socket) -> bytes:
    parts = []
    while part := await asyncio.get_running_loop().sock_recv(sock, 65536):
        parts.append(part)
    return b"".join(parts)


def test_both_directions_carry_and_each_end_is_passed_on(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        client, left = pair()
        server, right = pair()
        task = asyncio.create_task(relay_sockets(left, right))
        up = os.urandom(3_000_000)
        down = os.urandom(2_000_000)

        async def talk(sock: socket.socket, data: bytes) -> bytes:
            async def send() -> None:
                await loop.sock_sendall(sock, data)
                sock.shutdown(socket.SHUT_WR)

            _, received = await asyncio.gather(send(), read_all(sock))
            return received

        at_client, at_server = await asyncio.gather(talk(client, down), talk(server, up))
        assert hashlib.sha256(at_server).digest() == hashlib.sha256(down).digest()
        assert hashlib.sha256(at_client).digest() == hashlib.sha256(up).digest()
        assert await task == (2_000_000, 3_000_000)
        client.close()
        server.close()

    run(scenario)


def test_one_direction_goes_on_after_the_other_has_ended(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        client, left = pair()
        server, right = pair()
        task = asyncio.create_task(relay_sockets(left, right))
        client.shutdown(socket.SHUT_WR)
        assert await loop.sock_recv(server, 10) == b""
        for _ in range(3):
            await loop.sock_sendall(server, b"late")
            assert await loop.sock_recv(client, 10) == b"late"
        assert not task.done()
        server.close()
        assert await loop.sock_recv(client, 10) == b""
        assert await task == (0, 12)
        client.close()

    run(scenario)


def test_a_reset_is_passed_on_as_a_reset(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        client, left = pair()
        server, right = pair()
        task = asyncio.create_task(relay_sockets(left, right))
        await loop.sock_sendall(client, b"x")
        assert await loop.sock_recv(server, 10) == b"x"
        reset(server)
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(client, 10)
        await task
        client.close()

    run(scenario)


def test_cancelling_resets_both_sides(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        client, left = pair()
        server, right = pair()
        task = asyncio.create_task(relay_sockets(left, right))
        await asyncio.sleep(0.05)
        task.cancel()
        for sock in (client, server):
            with pytest.raises(ConnectionResetError):
                await loop.sock_recv(sock, 10)
            sock.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario)


def test_cancelled_before_it_began(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        for turns in range(4):
            client, left = pair()
            server, right = pair()
            task = asyncio.create_task(relay_sockets(left, right))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if turns == 0:
                # Never started: the sockets are still the caller's.
                left.close()
                right.close()
            client.close()
            server.close()

    run(scenario)


def test_a_reader_that_stops_makes_the_writer_stop(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        client, left = pair()
        server, right = pair()
        for sock in (client, left, server, right):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
        relay = Relay()
        await loop.create_connection(lambda: relay.right, sock=right)
        await loop.create_connection(lambda: relay.left, sock=left)
        most = 0
        sent = 0
        refused = 0
        # Turns of the loop, not time: while this process does not run, the relay takes nothing either.
        while refused < 300:
            try:
                sent += client.send(bytes(65536))
                refused = 0
            except BlockingIOError:
                refused += 1
            await asyncio.sleep(0.001)
            most = max(most, relay.right.transport.get_write_buffer_size())
        assert HIGH_WATER // 2 < most <= 256 * 1024
        assert sent < 32 * 1024 * 1024
        received = 0
        while received < sent:
            received += len(await loop.sock_recv(server, 1 << 20))
        client.close()
        server.close()
        await relay.finished()

    run(scenario)


def _certificate(directory: Path) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = directory / "test.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_a_tls_transport_is_taken_over_with_its_early_bytes(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    """As the stream process does after an upgrade: TLS towards the browser, plain towards the workspace."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(_certificate(tmp_path))
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE

    class TakesOver(asyncio.Protocol):
        def __init__(self, upstream: socket.socket, finished: asyncio.Future[Relay]) -> None:
            self.upstream, self.finished = upstream, finished

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def data_received(self, data: bytes) -> None:
            self.transport.pause_reading()
            asyncio.get_running_loop().create_task(self._relay(data))

        async def _relay(self, early: bytes) -> None:
            relay = Relay()
            await asyncio.get_running_loop().create_connection(lambda: relay.right, sock=self.upstream)
            relay.left.attach(self.transport, early)
            self.finished.set_result(relay)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        workspace, right = pair()
        taken: asyncio.Future[Relay] = loop.create_future()
        server = await loop.create_server(lambda: TakesOver(right, taken), "127.0.0.1", 0, ssl=server_context)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=client_context)
        writer.write(b"early")
        assert await loop.sock_recv(workspace, 5) == b"early"
        data = os.urandom(1_000_000)
        writer.write(data)
        received = b""
        while len(received) < len(data):
            received += await loop.sock_recv(workspace, 65536)
        assert received == data
        await loop.sock_sendall(workspace, data)
        workspace.close()
        assert await reader.read() == data
        writer.close()
        relay = await taken
        assert await relay.finished() == (len(data) + 5, len(data))
        server.close()
        await server.wait_closed()

    run(scenario)


def test_sockets_are_tuned() -> None:
    near, far = pair()
    with near, far:
        tune(near)
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        tune(near, stalled=30)
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


@pytest.mark.parametrize("module", ["engine.network.relay", "engine.network.fdclient"])
def test_what_the_portal_imports_is_unprivileged(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('pyroute2', 'engine.syscalls', 'ctypes') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['ctypes']")
