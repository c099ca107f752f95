"""The supervisor: order, restart, backoff, failure to start, stopping what does not want to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.cli import supervisor
from engine.cli.supervisor import Service, StartFailure, Supervisor
from tests.leaks import LeakCounter


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_BACKOFF", 0.05)
    monkeypatch.setattr(supervisor, "_STOP_SECONDS", 0.5)
    monkeypatch.setattr(supervisor, "_HEALTH_POLL", 0.02)


class Fleet:
    """Services that are small programs; each is healthy once it has made its file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reports: list[str] = []
        self.phases: list[str] = []
        self.running: list[Supervisor] = []

    def service(self, name: str, then: str = "time.sleep(60)", seconds: float = 10, first: str = "") -> Service:
        ready = self.directory / name
        code = f"""
import os, pathlib, signal, sys, time
{first}
with open({str(self.directory / "order")!r}, "a") as file: file.write("start {name}\\n")
def stop(*_):
    with open({str(self.directory / "order")!r}, "a") as file: file.write("stop {name}\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path({str(ready)!r} + ".new").write_text(str(os.getpid()))
os.replace({str(ready)!r} + ".new", {str(ready)!r})
{then}
"""

        async def healthy() -> bool:
            return ready.exists()

        log = self.directory / "log" / f"{name}.log"
        return Service(name, [sys.executable, "-c", code], log, healthy, dict(os.environ), seconds)

    def pid(self, name: str) -> int:
        return int((self.directory / name).read_text())

    def order(self) -> list[str]:
        return (self.directory / "order").read_text().splitlines()

    def supervisor(self, *services: Service) -> Supervisor:
        made = Supervisor(list(services), self.reports.append)
        self.running.append(made)
        return made


@pytest.fixture
async def fleet(leaks: LeakCounter, tmp_path: Path) -> AsyncIterator[Fleet]:
    """What a test that failed left running is stopped: it would be a leak, and a warning in some later test."""
    made = Fleet(tmp_path)
    yield made
    for running in made.running:
        await running.stop()


async def test_services_start_in_order_and_stop_in_reverse(fleet: Fleet) -> None:
    running = fleet.supervisor(fleet.service("one"), fleet.service("two"), fleet.service("three"))
    await running.start(fleet.phases.append)
    assert fleet.phases == ["one", "two", "three"]
    await running.stop()
    await running.stop()
    assert fleet.order() == ["start one", "start two", "start three", "stop three", "stop two", "stop one"]


async def test_a_killed_service_comes_back_and_the_others_do_not_notice(fleet: Fleet) -> None:
    running = fleet.supervisor(fleet.service("one"), fleet.service("two"))
    await running.start(fleet.phases.append)
    first, other = fleet.pid("one"), fleet.pid("two")
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while fleet.pid("one") == first:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    os.kill(other, 0)
    assert fleet.pid("two") == other
    await running.stop()
    assert "one ended with status -9; starting it again in" in fleet.reports[0]


async def test_the_wait_between_restarts_grows(fleet: Fleet) -> None:
    running = fleet.supervisor(fleet.service("one", then="time.sleep(0.05); sys.exit(3)"))
    await running.start(fleet.phases.append)
    deadline = time.monotonic() + 30
    while len(fleet.reports) < 4:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await running.stop()
    waits = [float(line.rpartition(" in ")[2].split()[0]) for line in fleet.reports[:4]]
    assert waits == sorted(waits) and waits[-1] >= 4 * 0.05


async def test_one_that_cannot_start_fails_with_its_last_words_and_stops_the_rest(fleet: Fleet) -> None:
    bad = fleet.service("bad", first="print('address in use: 8443'); sys.exit(1)")
    running = fleet.supervisor(fleet.service("good"), bad)
    with pytest.raises(StartFailure, match=r"(?s)bad ended before it answered; .*bad\.log ends with:\n.*address in use: 8443"):
        await running.start(fleet.phases.append)
    assert fleet.order() == ["start good", "stop good"]


async def test_one_that_never_answers_fails_in_time(fleet: Fleet) -> None:
    hanging = fleet.service("hanging", first="time.sleep(60)", seconds=0.5)
    began = time.monotonic()
    with pytest.raises(StartFailure, match="hanging did not answer within"):
        await fleet.supervisor(hanging).start(fleet.phases.append)
    assert time.monotonic() - began < 5


async def test_one_that_ignores_sigterm_is_killed(fleet: Fleet) -> None:
    stubborn = fleet.service("stubborn", then="signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)")
    running = fleet.supervisor(stubborn)
    await running.start(fleet.phases.append)
    while "deaf" not in supervisor.tail(stubborn.log):
        await asyncio.sleep(0.02)
    await running.stop()
    assert fleet.reports == ["stubborn did not stop within 0 s; killed"]


async def test_stopping_while_it_starts_leaves_nothing(fleet: Fleet) -> None:
    hanging = fleet.service("hanging", first="time.sleep(60)")
    running = fleet.supervisor(fleet.service("good"), hanging)
    start = asyncio.create_task(running.start(fleet.phases.append))
    while fleet.phases != ["good", "hanging"]:
        await asyncio.sleep(0.02)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert fleet.order() == ["start good", "stop good"]


async def test_the_first_signal_is_remembered(fleet: Fleet) -> None:
    running = fleet.supervisor()
    with running.signals():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(running.wait(), 30) in (signal.SIGTERM, signal.SIGINT)


def test_a_full_log_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LOG_LIMIT", 10)
    log = tmp_path / "log" / "engine.log"
    for text in (b"first 012345", b"second"):
        with supervisor._open_log(log) as file:
            file.write(text)
    assert log.read_bytes() == b"second"
    assert log.with_name("engine.log.1").read_bytes() == b"first 012345"
    assert log.stat().st_mode & 0o007 == 0
