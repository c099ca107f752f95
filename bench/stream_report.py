"""The tables of `bench/stream.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.proxies import HAPROXY, MESSAGE, RELAY
from bench.summary import ABSENT, Summary, table

if TYPE_CHECKING:
    from bench.stream import Bench

Turns = Mapping[str, Sequence[Mapping[str, Any]]]

# What the relay may cost, as a multiple of these proxies' processor time per Gbit.
TARGETS = {MESSAGE.name: 0.5, HAPROXY.name: 1.3}


def cost_ratio(turns: Turns, rival: str, ours: str = RELAY.name) -> Summary | None:
    """The relay's processor time per Gbit as a multiple of the rival's: the ratios within each round, summarised. None without a round
    that has both."""
    ratios = [
        round(our["cpu_per_gbit"] / their["cpu_per_gbit"], 3)
        for our, their in zip(turns.get(ours, ()), turns.get(rival, ()), strict=False)
        if their["cpu_per_gbit"]
    ]
    return Summary.of(ratios)


def all_ratios(results: Mapping[str, Turns]) -> dict[str, dict[str, Any]]:
    """Of each mode and rival."""
    return {
        mode: {rival: found.to_json() for rival in turns if rival != RELAY.name and (found := _ratio_or_none(turns, rival))}
        for mode, turns in results.items()
    }


def _ratio_or_none(turns: Turns, rival: str) -> Summary | None:
    return cost_ratio(turns, rival) if all("cpu_per_gbit" in turn for turn in turns[rival]) else None


def _median(turns: Sequence[Mapping[str, Any]], *keys: str) -> float | None:
    values = []
    for turn in turns:
        value: Any = turn
        for key in keys:
            value = value.get(key) if value is not None else None
        if value is not None:
            values.append(float(value))
    found = Summary.of(values)
    return found.median if found is not None else None


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return ABSENT if value is None else form.format(value)


def _milliseconds(microseconds: float | None) -> str:
    return ABSENT if microseconds is None else f"{microseconds / 1000:.2f}"


def _proxies(turns: Turns) -> str:
    rows = []
    for name, runs in turns.items():
        ratio = _ratio_or_none(turns, name)
        low, high = min(turn["load"] for turn in runs), max(turn["load"] for turn in runs)
        rows.append([
            name, _number(_median(runs, "cpu_per_gbit"), "{:.3f}"),
            ABSENT if ratio is None or name == RELAY.name else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
            _number(sum(turn["bytes"] * 8 / 1e9 / turn["seconds"] for turn in runs) / len(runs)),
            _number(_median(runs, "dropped"), "{:.0f}"),
            *(_milliseconds(_median(runs, "frames", share)) for share in ("p50", "p99", "p99.9")),
            *(_milliseconds(_median(runs, "input", share)) for share in ("p50", "p99")),
            _number(None if (size := _median(runs, "resident")) is None else size / 1e6, "{:.0f}"),
            f"{low:.1f}-{high:.1f}",
        ])  # fmt: skip
    header = ["proxy", "core s/Gbit", "relay is", "Gbit/s", "dropped", "p50 ms", "p99", "p99.9", "input p50", "p99", "MB", "load"]
    return table(header, rows)


def _verdicts(mode: str, turns: Turns) -> list[str]:
    lines = []
    for rival, most in TARGETS.items():
        ratio = cost_ratio(turns, rival)
        if ratio is not None:
            lines.append(f"{mode}: the relay costs {ratio.median:.2f} x {rival} (target: at most {most}): {'met' if ratio.median <= most else 'MISSED'}")
    return lines


def _stalled(pairs: Sequence[Mapping[str, Any]]) -> str:
    moved = Summary.of([(pair["with"]["frames"]["p99"] - pair["without"]["frames"]["p99"]) / 1000 for pair in pairs])
    assert moved is not None
    both = ", ".join(f"{pair['without']['frames']['p99'] / 1000:.2f} to {pair['with']['frames']['p99'] / 1000:.2f}" for pair in pairs)
    return f"stalled viewers move the others' p99 by {moved.median:+.2f} ms (pairs: {both}; target: less than +1 ms)"


def _churn(found: Mapping[str, Any]) -> str:
    before, after = found["before"], found["after"]
    grown = (after["resident"] - before["resident"]) / 1e6
    return (
        f"{found['cycles']} viewers came and went: descriptors {found['idle_descriptors']} idle, {before['descriptors']} after a tenth,"
        f" {after['descriptors']} at the end; memory {before['resident'] / 1e6:.1f} MB after a tenth, {after['resident'] / 1e6:.1f} MB at the end"
        f" ({grown:+.1f})"
    )


def _fork(found: Mapping[str, Any]) -> str:
    lines = [
        f"fork {number + 1} of a busy desktop ({fork['ms']:.0f} ms, source stopped {fork['pause']:.0f} ms): streams' p99 {fork['before']:.2f} ms in the"
        f" second before, {fork['during']:.2f} ms from its request to a second after it ({fork['during'] - fork['before']:+.2f}; target: less than +20)"
        for number, fork in enumerate(found["forks"])
    ]
    return "\n".join([*lines, f"control groups: {found['groups']}"])


def text(bench: Bench) -> str:
    """The whole report as text."""
    parts = []
    for mode, turns in bench.results.items():
        if turns:
            parts.append(f"{mode}: {bench.shape.streams} streams of {bench.options.megabits:g} Mbit/s, {bench.shape.rate} frames/s\n{_proxies(turns)}")
    verdicts = [line for mode, turns in bench.results.items() for line in _verdicts(mode, turns)]
    parts += ["\n".join(verdicts)] if verdicts else []
    parts += [_stalled(bench.stalled)] if bench.stalled else []
    parts += [_churn(bench.churn)] if bench.churn else []
    parts += [_fork(bench.fork)] if bench.fork else []
    parts += ["not measured:\n" + "\n".join(f"{name}: {why}" for name, why in bench.failures.items())] if bench.failures else []
    parts += [] if bench.finished else ["INCOMPLETE: the run ended early"]
    return "\n\n".join(parts)
