"""Errors of the system become errors with a code and a next step."""

from __future__ import annotations

import errno

import pytest

from engine.errors import Internal, NoSpace, from_oserror


@pytest.mark.parametrize("number, remedy", [(errno.ENOSPC, "tclone rm"), (errno.EDQUOT, "tclone run --disk")])
def test_a_full_disk_says_what_to_do(number: int, remedy: str) -> None:
    """The host's disk, and a workspace's own limit: other workspaces have nothing to do with that one."""
    error = from_oserror("cannot write /run/tclone/branch.json of ws-2", OSError(number, "full"))
    assert isinstance(error, NoSpace) and error.http_status == 507 and error.exit_status == 8
    assert "ws-2" in error.message and remedy in error.message
    assert ("tclone rm" in error.message) == (number == errno.ENOSPC)


def test_other_failures_are_told_as_they_are() -> None:
    error = from_oserror("cannot write x", OSError(errno.EIO, "bad disk"))
    assert type(error) is Internal and "bad disk" in error.message
