"""How the tests are dealt out to several processes (pytest-xdist): in which order, and what must stay together."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

# Directories whose tests share one stack, which takes longer to start than most of them.
_ONE_STACK = ("e2e", "applications", "agents")
# What takes longest comes first, so that no process is left with it at the end; all else follows in pytest's own order. The longest by far are the
# agents: whoever is done first with the first three takes them, which have few tests, but build what others wait for. Where no image is in the
# cache they wait for the desktop's, three minutes, which the first builds. The third stack with desktops begins when the first has ended: fewer
# desktops at once take less memory.
_LONGEST_FIRST = (
    "tests/e2e/", "tests/fidelity/test_storms", "tests/images/test_build", "tests/agents/", "tests/judges/test_api", "tests/sanitize/",
    "tests/applications/", "tests/fidelity/", "tests/pages/test_accessibility", "tests/fuzz/test_native", "tests/faults/", "tests/pages/", "tests/judges/",
    "tests/cli/", "tests/engine/", "tests/stream/",
)  # fmt: skip


def unit(nodeid: str) -> str:
    """What a test is kept in one process with: its file, or its directory where that has one stack."""
    path = nodeid.partition("::")[0]
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 and parts[1] in _ONE_STACK else path


def rank(nodeid: str) -> int:
    """Sorts tests by how long their directory takes, the longest first."""
    for place, start in enumerate(_LONGEST_FIRST):
        if nodeid.startswith(start):
            return place
    return len(_LONGEST_FIRST)


class Dealing(LoadScopeScheduling):
    """Deals out units instead of single tests."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
