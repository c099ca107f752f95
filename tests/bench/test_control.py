"""What bench/control.py counts and says; its figures are of a running TClone."""

from __future__ import annotations

import pytest

from bench import control
from bench.control import Series


async def test_kinds_take_turns_and_the_first_call_of_each_does_not_count() -> None:
    called: list[tuple[str, int]] = []

    async def move(number: int) -> None:
        called.append(("move", number))

    async def shot(number: int) -> bytes:
        called.append(("shot", number))
        return bytes(1000 + number)

    found = await control.in_turns({"move": move, "shot": shot}, 25)
    assert called[:2] == [("move", 0), ("shot", 0)]
    assert [kind for kind, _ in called[2:]] == ["move"] * 10 + ["shot"] * 10 + ["move"] * 10 + ["shot"] * 10 + ["move"] * 5 + ["shot"] * 5
    assert len(found["move"].times) == 25 == len(found["shot"].sizes) and not found["move"].sizes and all(time > 0 for time in found["shot"].times)
    assert found["shot"].figures()["bytes"] == 1012


def test_figures_of_a_series() -> None:
    figures = Series([float(number) for number in range(101)], [10, 30, 20]).figures()
    assert figures == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "bytes": 20, "calls": 101}


@pytest.mark.parametrize(("median", "said"), [(40.0, "met"), (40.1, "MISSED")])
def test_the_table_names_the_rivals_and_the_target(median: float, said: str) -> None:
    def one(p50: float, size: int = 0) -> dict[str, float]:
        return {"p50": p50, "p90": p50 * 2, "p99": p50 * 3, "bytes": size, "calls": 20}

    told = control.text(
        {"move, REST": one(8), "move, socket": one(4), "PNG, REST": one(median, 250_000), "PNG, Pillow by exec": one(median * 5, 200_000)}, {"scrot": "not in this image"}
    )
    lines = told.splitlines()
    assert lines[1].split() == ["move,", "REST", "8.00", "16.00", "24.00", "20"] and lines[3].split()[-2:] == ["250", "20"]
    assert "move, socket against REST: 0.50 (p50)" in lines and "PNG, Pillow by exec takes 5.0 times as long as PNG by REST (p50)" in lines
    assert "scrot: not in this image" in lines and lines[-1].endswith(f"target 40 ms: {said}")
