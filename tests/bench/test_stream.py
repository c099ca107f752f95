"""That the stream benchmark measures what it says, and the relay's cost: a message-level proxy's is the yardstick."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from bench import stream, stream_report
from bench.viewers import percentile, read_samples
from engine.errors import Unavailable


def _turns(*costs: float) -> list[dict[str, float]]:
    return [{"cpu_per_gbit": cost} for cost in costs]


def test_costs_are_compared_within_each_round() -> None:
    turns = {"relay": _turns(0.2, 0.6, 0.3), "aiohttp": _turns(0.4, 0.8)}
    found = stream_report.cost_ratio(turns, "aiohttp")
    assert found is not None and (found.low, found.high, found.count) == (0.5, 0.75, 2)
    assert stream_report.cost_ratio(turns, "haproxy") is None


def test_percentiles_and_samples(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    file.write_bytes(struct.pack("=QII", 3_000_000_000, 1500, 7) + struct.pack("=QII", 1_000_000_000, 250, 8))
    assert [(one.arrival, one.milliseconds) for one in read_samples(file)] == [(1.0, 0.25), (3.0, 1.5)]
    assert percentile([float(number) for number in range(1, 101)], 0.99) == 100.0
    assert percentile([5.0], 0.5) == 5.0
    with pytest.raises(ValueError):
        percentile([], 0.5)


@pytest.mark.parametrize("argv", [["--runs", "0"], ["--streams", "-1"], ["--megabits", "0"], ["--mode", "quic"], ["--json", "/proc/none/x"]])
def test_bad_options_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        stream.arguments(argv)
    assert refused.value.code == 2


# How often the costs are compared: a busy machine makes a round worse than it is, hardly better, so that one good round proves it.
_ROUNDS = 3


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_the_relay_costs_much_less_than_a_message_level_proxy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gate against a relay that has become dear: measured at 0.46 (0.48 with TLS, where both encrypt the same bytes), with a tenth for noise
    and other processors."""
    best = {"plain": 1.0, "tls": 1.0}
    rest: list[str] = []
    for _ in range(_ROUNDS):
        report = _compared(tmp_path / "report.json", rest, capsys)
        for mode, ratios in report["ratios"].items():
            best[mode] = min(best[mode], ratios["aiohttp"]["low"])
        for turns in report["results"].values():
            assert min(turn["bytes"] for turn in turns["relay"]) > 0.9 * 50 * 15e6 / 8 * 1.5
            assert all(turn["frames"]["count"] and turn["input"]["count"] for turn in turns["relay"])
        if not rest:
            assert report["churn"]["cycles"] == 200
            assert report["churn"]["after"]["descriptors"] <= report["churn"]["before"]["descriptors"] + 2
            assert len(report["stalled"]) == 1
        rest = ["--skip", "stalled", "--skip", "churn"]
        if best["plain"] <= 0.56 and best["tls"] <= 0.58:
            return
    pytest.fail(f"the relay costs {best} of what the proxy does")


def _compared(file: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    """The report of one round."""
    words = ["--only", "relay", "--only", "aiohttp", "--runs", "1", "--seconds", "1.5", "--cycles", "200", "--realtime", "--skip", "fork", *options]
    assert stream.main([*words, "--json", str(file)]) == 0, capsys.readouterr()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    report = json.loads(file.read_text())
    assert report["complete"] and not report["failures"]
    printed = capsys.readouterr().out
    assert "plain: the relay costs" in printed and ("200 viewers came and went" in printed) != bool(options)
    return report


@pytest.mark.parametrize("name", [contender.name for contender in stream.CONTENDERS if contender.name.startswith(("relay", "aiohttp"))])
async def test_every_proxy_of_ours_carries_the_streams(name: str, tmp_path: Path) -> None:
    """With and without TLS, however slowly: what a figure is made of arrives."""
    options = stream.arguments(["--streams", "3", "--seconds", "0.5", "--only", name, "--skip", "stalled", "--skip", "churn", "--skip", "fork", "--runs", "1"])
    bench = stream.Bench(options, tmp_path)
    await bench.go()
    assert not bench.failures
    for turns in bench.results.values():
        assert set(turns) == {"direct", name}
        (turn,) = turns[name]
        assert turn["frames"]["count"] > 0 and turn["cpu_per_gbit"] > 0 and turn["frames"]["p50"] > 0


async def test_a_proxy_that_does_not_start_is_told(tmp_path: Path) -> None:
    broken = stream.Contender("broken", lambda place: ["/bin/sh", "-c", "echo no such port >&2; exit 3"])
    with pytest.raises(Unavailable, match="broken did not start: no such port"):
        async with stream.Running(broken, stream.Place(1, 2, tmp_path, None)):
            pass
