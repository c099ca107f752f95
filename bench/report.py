"""What was measured, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.contenders import Fork, FreshStart
from bench.criu import Criu
from bench.rounds import Measured
from bench.summary import ABSENT, Summary, milliseconds, paired_ratio, phases, spread, table, times

_MAIN = ("pause", "usable", "first_frame")
_RIVALS = (Criu.name, FreshStart.name)


def machine_lines(facts: Mapping[str, Any]) -> list[str]:
    """The machine in two lines."""
    return [
        f"{facts['cores']} cores ({facts['processor']}), {_gigabytes(facts['memory_total'])} of memory,"
        f" {_gigabytes(facts['memory_available'])} available",
        f"{facts['kernel']} {facts['architecture']}, transparent huge pages: {facts['transparent_hugepage']}",
    ]


def _gigabytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def load_text(load: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in load) or ABSENT


def text(measured: Sequence[Measured]) -> str:
    """The tables: figures, rivals, phases, and what failed."""
    parts = [
        "live fork, ms: median (lowest-highest)",
        _figures(measured),
        "rivals, ms: median, and how many times as long as the fork of the same round",
        _rivals(measured),
        "phases of the fork, ms: median",
        "\n".join(_phases(line) for line in measured if line.runs(Fork.name)) or ABSENT,
    ]
    failures = _failures(measured)
    if failures:
        parts += ["not measured", "\n".join(failures)]
    return "\n\n".join(parts)


def _title(line: Measured) -> str:
    return f"{line.workload.name}, {line.copies} cop{'ies' if line.copies > 1 else 'y'}"


def _figures(measured: Sequence[Measured]) -> str:
    rows = []
    for line in measured:
        found = phases(line.runs(Fork.name))
        copied = line.facts.get("bytes_copied")
        rows.append([
            _title(line),
            str(line.facts.get("processes", ABSENT)),
            str(line.facts.get("threads", ABSENT)),
            f"{int(copied) / 1e6:.0f}" if copied is not None else ABSENT,
            str(len(line.runs(Fork.name))),
            *(spread(found.get(phase)) for phase in _MAIN),
            line.load_before and line.load_after and f"{line.load_before[0]:.1f}-{line.load_after[0]:.1f}" or ABSENT,
        ])  # fmt: skip
    return table(["workload", "processes", "threads", "MB copied", "runs", *_MAIN, "load"], rows)


def _rivals(measured: Sequence[Measured]) -> str:
    header = ["workload", "criu pause", "", "criu usable", "", "fresh start", ""]
    rows = []
    for line in measured:
        ours, criu, fresh = line.runs(Fork.name), line.runs(Criu.name), line.runs(FreshStart.name)
        criu_phases, fresh_phases = phases(criu), phases(fresh)
        rows.append([
            _title(line),
            milliseconds(criu_phases.get("pause")), times(paired_ratio(ours, criu, "pause")),
            milliseconds(criu_phases.get("usable")), times(paired_ratio(ours, criu, "usable")),
            milliseconds(fresh_phases.get("usable")), times(paired_ratio(ours, fresh, "usable")),
        ])  # fmt: skip
    return table(header, rows)


def _phases(line: Measured) -> str:
    found = phases(line.runs(Fork.name))
    return f"{_title(line)}: " + ", ".join(f"{name} {milliseconds(summary)}" for name, summary in found.items())


def _failures(measured: Sequence[Measured]) -> list[str]:
    return [
        f"{_title(line)}: {name}: {series.error}"
        for line in measured
        for name, series in line.series.items()
        if series.error is not None
    ]


def to_json(measured: Sequence[Measured], head: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report; `head` is merged in (machine, options, rivals). Each run's figures are kept, not just the medians."""
    return {**head, "unit": "ms", "results": [_line_json(line) for line in measured]}


def _line_json(line: Measured) -> dict[str, Any]:
    ours = line.runs(Fork.name)
    ratios = {
        rival: {phase: ratio.to_json() for phase in _MAIN if (ratio := paired_ratio(ours, line.runs(rival), phase))}
        for rival in _RIVALS
        if line.runs(rival)
    }
    return {
        "workload": line.workload.name,
        "image": line.workload.image,
        "processes": line.workload.processes if not line.workload.desktop else None,
        "dirty_bytes": line.workload.dirty,
        "copies": line.copies,
        "fork": line.facts,
        "load_average": {"before": line.load_before, "after": line.load_after},
        "contenders": {
            name: {"runs": series.runs, "summary": _summaries(phases(series.runs)), "error": series.error}
            for name, series in line.series.items()
        },
        "ratios": ratios,
    }


def _summaries(found: Mapping[str, Summary]) -> dict[str, Any]:
    return {name: summary.to_json() for name, summary in found.items()}


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Write in one step: a reader never sees half of a report. Raises OSError."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(report, indent=1) + "\n")
    beside.replace(path)
