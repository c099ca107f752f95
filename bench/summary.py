"""Medians, spreads and ratios of repeated measurements, and their text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

ABSENT = "-"


@dataclass(frozen=True)
class Summary:
    """What is told of a series: its median and both ends, in the series' unit (ms), and how many values it had."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary | None":
        """None for an empty series: there is no median of nothing."""
        if not values:
            return None
        return cls(round(statistics.median(values), 3), min(values), max(values), len(values))

    def to_json(self) -> dict[str, float | int]:
        return asdict(self)


def phases(runs: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    """A summary of each phase over the runs that have it, in the order in which phases first appear."""
    names = dict.fromkeys(name for run in runs for name in run)
    found = {name: Summary.of([run[name] for run in runs if name in run]) for name in names}
    return {name: summary for name, summary in found.items() if summary is not None}


def paired_ratio(
    ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]], phase: str
) -> Summary | None:
    """How many times longer the rival took: the ratios within each round, summarised.

    Both were measured one after the other in a round, so a machine that becomes slower between rounds changes both; a
    ratio of two medians would mix rounds. Rounds where either is missing, or ours is zero, do not count.
    """
    ratios = []
    for our, their in zip(ours, theirs, strict=False):
        if our.get(phase) and phase in their:
            ratios.append(round(their[phase] / our[phase], 3))
    return Summary.of(ratios)


def milliseconds(summary: Summary | None) -> str:
    """`12.3`, whole numbers from 100 on: more digits than the spread supports would mislead."""
    if summary is None:
        return ABSENT
    return _short(summary.median)


def spread(summary: Summary | None) -> str:
    """`12.3 (11.0-19.8)`."""
    if summary is None:
        return ABSENT
    return f"{_short(summary.median)} ({_short(summary.low)}-{_short(summary.high)})"


def times(summary: Summary | None) -> str:
    """`5.2x`."""
    if summary is None:
        return ABSENT
    return f"{summary.median:.2f}x" if summary.median < 10 else f"{summary.median:.0f}x"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first column to the left, numbers to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    if any(len(line) != len(header) for line in lines):
        raise ValueError("every row needs a cell for each column")
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def text(line: list[str]) -> str:
        first, *others = (cell for cell in line)
        padded = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        return "  ".join(padded).rstrip()

    return "\n".join([text(lines[0]), "  ".join("-" * width for width in widths), *(text(line) for line in lines[1:])])
