"""What programs hold in namespaces of their own, and no branch could have, is refused by name before anything stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.refusal import NotRefusedError, refusal

pytestmark = [pytest.mark.root, pytest.mark.slow]

_STATES = {
    "owned table": ("the packet filter table inet fence (nftables, iptables), which belongs to a running program", "nft delete table inet fence"),
    "old table": ("the packet filter table filter of IPv4", "let it use nftables"),
    "discipline": ("the queueing discipline pfifo on the interface lo", "tc qdisc delete dev lo root"),
    "format": ("the binary format .hidden", "remove it"),
    "formats off": ("has its binary formats (binfmt_misc) switched off", "write 1 to its file status"),
}

# Of what a kernel can be built without.
_OPTIONAL = {"owned table", "old table", "discipline", "format", "formats off"}
_NAMELESS = {"format", "formats off"}  # a mount is named by its place


@pytest.mark.parametrize("name", _STATES)
def test_state_is_refused_by_name(name: str, tmp_path: Path) -> None:
    what, remedy = _STATES[name]
    try:
        message = refusal("nested_state", name, tmp_path / "harness")
    except NotRefusedError as error:
        assert name in _OPTIONAL, error
        assert "it was forked" in str(error) and "(made)" not in str(error), error
        return
    assert ("/tmp/formats" if name in _NAMELESS else "(nested_state)") in message
    assert what in message
    assert remedy in message.split(what, 1)[1]
