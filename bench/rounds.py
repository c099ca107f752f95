"""Measuring: contenders take turns within a round, so that what the machine does besides hits all of them alike."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine
from bench.contenders import Contender, Fork, FreshStart, reason
from bench.criu import Criu
from bench.launch import launch
from bench.own_engine import OwnEngine
from bench.workload import Workload
from engine.errors import EngineError

# A fresh desktop takes tens of seconds, and eight at once do not come up in time on two cores.
_FRESH_DESKTOP_RUNS = 3
_FRESH_DESKTOP_COPIES = 1
# More than the measurement itself needs: page tables, and what both sides of a pipe hold.
_WARM_FACTOR = 1.25

Say = Callable[[str], None]


@dataclass
class Series:
    """One contender's runs, ms by phase each; `error` is why it stopped, if it did."""

    runs: list[dict[str, float]] = field(default_factory=list)
    error: str | None = None


@dataclass
class Measured:
    """One line of the report: a workload with a number of copies. `facts` are of the last fork."""

    workload: Workload
    copies: int
    series: dict[str, Series] = field(default_factory=dict)
    facts: dict[str, int | str] = field(default_factory=dict)
    load_before: list[float] = field(default_factory=list)
    load_after: list[float] = field(default_factory=list)

    def runs(self, contender: str) -> list[dict[str, float]]:
        return self.series[contender].runs if contender in self.series else []


@dataclass(frozen=True)
class Bench:
    """What all measurements share. `criu` is None when there is none that works; `contain` and `load` are our built programs."""

    engine: OwnEngine
    load: Path
    contain: Path
    criu: Path | None
    runs: int
    say: Say

    async def measure(self, workload: Workload, into: list[Measured]) -> None:
        """Measure a workload with each of its numbers of copies; failures are told in the lines, not raised.

        The lines are put into `into` at once, so that what was measured before an interruption is not lost.
        """
        lines = [Measured(workload, copies, load_before=machine.load_average()) for copies in workload.copies]
        into.extend(lines)
        try:
            await self.engine.have_image(workload.image, self.say)
            async with self._contenders(workload, lines) as contenders:
                for number in range(-1, self.runs):
                    for line in lines:
                        await self._round(number, line, contenders)
        except EngineError as error:
            for line in lines:
                series = line.series.setdefault(Fork.name, Series())
                series.error = series.error or reason(error)
        for line in lines:
            line.load_after = machine.load_average()

    @contextlib.asynccontextmanager
    async def _contenders(self, workload: Workload, lines: list[Measured]) -> AsyncIterator[list[Contender]]:
        self.say(f"{workload.name}: launching the source")
        source = await launch(self.engine.client, workload, self.load)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.engine.client.remove, source.id)
            contenders: list[Contender] = [Fork(self.engine, workload, source)]
            if self.criu is not None and not workload.desktop:
                try:
                    contenders.append(await stack.enter_async_context(Criu(self.criu, self.contain, self.load, workload)))
                except (EngineError, OSError) as error:
                    for line in lines:
                        line.series[Criu.name] = Series(error=reason(error))
            contenders.append(FreshStart(self.engine, workload, self.load))
            yield contenders

    async def _round(self, number: int, line: Measured, contenders: list[Contender]) -> None:
        """One turn for each contender. Round -1 is not counted: it fills caches, and makes the engine's spare containers."""
        for contender in contenders:
            series = line.series.setdefault(contender.name, Series())
            if series.error is not None or not _takes_part(contender, line, number):
                continue
            counted = f"run {number + 1} of {self.runs}" if number >= 0 else "warming up"
            self.say(f"{line.workload.name}, {line.copies} cop{'ies' if line.copies > 1 else 'y'}: {contender.name}, {counted}")
            try:
                # Before each measurement: a guest gives free memory back to its host within seconds, and it is cold again.
                await machine.touch(self.load, int(line.workload.memory(line.copies) * _WARM_FACTOR))
                figures = await contender.measure(line.copies)
            except EngineError as error:
                series.error = reason(error)
                continue
            if number >= 0:
                series.runs.append(figures)
            if isinstance(contender, Fork):
                line.facts = contender.last


def _takes_part(contender: Contender, line: Measured, number: int) -> bool:
    if not isinstance(contender, FreshStart):
        return True
    if number < 0:
        return False
    if line.workload.desktop:
        return number < _FRESH_DESKTOP_RUNS and line.copies <= _FRESH_DESKTOP_COPIES
    return True
