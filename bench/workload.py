"""What is forked: how many processes, how much memory, how many copies at once."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import BadRequest

MEGABYTE = 1 << 20
# What a run of small processes dirties besides `dirty`: for warming memory only, so a bound is enough.
_PER_PROCESS = MEGABYTE
_DESKTOP_BYTES = 900 * MEGABYTE


@dataclass(frozen=True)
class Workload:
    """`processes` and `dirty` (bytes in one region) of the load program; a desktop has its own instead."""

    name: str
    image: str = "workspace"
    processes: int = 1
    dirty: int = 0
    copies: tuple[int, ...] = (1,)
    desktop: bool = False

    def memory(self, copies: int) -> int:
        """About how many bytes one measurement newly uses."""
        one = _DESKTOP_BYTES if self.desktop else self.dirty + self.processes * _PER_PROCESS
        return one * copies


def _processes(count: int) -> Workload:
    return Workload(f"{count} process{'es' if count > 1 else ''}", processes=count)


def _memory(megabytes: int) -> Workload:
    return Workload(f"{megabytes} MB dirty", dirty=megabytes * MEGABYTE)


DESKTOP = Workload("desktop", image="webtop-xfce", copies=(1, 4, 8), desktop=True)
COPIES = Workload("20 processes, 64 MB", processes=20, dirty=64 * MEGABYTE, copies=(1, 4, 8))

FULL = (_processes(1), _processes(20), _processes(100), _memory(256), _memory(1024), COPIES, DESKTOP)
QUICK = (
    _processes(1),
    _processes(20),
    _memory(64),
    Workload("5 processes, 16 MB", processes=5, dirty=16 * MEGABYTE, copies=(1, 4)),
    Workload("desktop", image="webtop-xfce", desktop=True),
)


def choose(workloads: tuple[Workload, ...], wanted: list[str]) -> list[Workload]:
    """The workloads whose name contains one of `wanted`, all when it is empty. Raises BadRequest for one that matches none."""
    for text in wanted:
        if not any(text in workload.name for workload in workloads):
            names = ", ".join(f"`{workload.name}`" for workload in workloads)
            raise BadRequest(f"no workload has `{text}` in its name; there are {names}")
    return [workload for workload in workloads if not wanted or any(text in workload.name for text in wanted)]
