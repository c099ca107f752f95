"""What the report says of measured, failed and absent figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import report
from bench.rounds import Measured, Series
from bench.workload import FULL, Workload, choose
from engine.errors import BadRequest


def _measured() -> list[Measured]:
    good = Measured(
        Workload("3 processes", processes=3), 1, facts={"processes": 4, "threads": 5, "bytes_copied": 2_000_000, "mode": "copy"},
        load_before=[1.0, 1.0, 1.0], load_after=[2.5, 1.0, 1.0],
    )  # fmt: skip
    good.series["tclone"] = Series([{"pause": 5.0, "usable": 10.0}, {"pause": 6.0, "usable": 12.0}])
    good.series["criu"] = Series([{"pause": 50.0, "usable": 80.0}, {"pause": 60.0, "usable": 96.0}])
    good.series["fresh start"] = Series([{"usable": 30.0}])
    refused = Measured(Workload("desktop", image="webtop-xfce", desktop=True), 4)
    refused.series["tclone"] = Series(error="unsupported: a socket of an unknown kind")
    return [good, refused]


def _row(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(start)]


def test_figures_rivals_and_phases_are_in_the_text() -> None:
    figures, rivals, phases = _row(report.text(_measured()), "3 processes, 1 copy")
    assert figures[4:] == ["4", "5", "2", "2", "5.5", "(5.0-6.0)", "11.0", "(10.0-12.0)", "-", "1.0-2.5"]
    assert rivals[4:] == ["55.0", "10x", "88.0", "8.00x", "30.0", "3.00x"]
    assert " ".join(phases).endswith("pause 5.5, usable 11.0")


def test_a_refusal_is_told_and_shows_no_figures() -> None:
    text = report.text(_measured())
    assert "desktop, 4 copies: tclone: unsupported: a socket of an unknown kind" in text
    figures, rivals, _ = _row(text, "desktop, 4 copies")
    assert not any(cell.replace(".", "").isdigit() and float(cell) for cell in figures[3:] + rivals[3:])


def test_json_keeps_every_run_and_the_ratios(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report.write_json(path, report.to_json(_measured(), {"complete": True}))
    written = json.loads(path.read_text())
    first, second = written["results"]
    assert written["complete"] is True
    assert first["contenders"]["tclone"]["runs"] == [{"pause": 5.0, "usable": 10.0}, {"pause": 6.0, "usable": 12.0}]
    assert first["contenders"]["tclone"]["summary"]["usable"]["median"] == 11.0
    assert first["ratios"]["criu"]["usable"]["median"] == 8.0
    assert second["contenders"]["tclone"]["error"].startswith("unsupported")
    assert second["ratios"] == {}
    assert list(tmp_path.iterdir()) == [path]


def test_only_chooses_by_name_and_names_what_there_is() -> None:
    assert [workload.name for workload in choose(FULL, ["desktop"])] == ["desktop"]
    assert choose(FULL, []) == list(FULL)
    with pytest.raises(BadRequest, match="`desktop`"):
        choose(FULL, ["laptop"])
