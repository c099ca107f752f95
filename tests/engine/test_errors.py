"""Errors of the system become errors with a code and a next step."""

from __future__ import annotations

import errno

import pytest

from engine.errors import Internal, NoSpace, from_oserror


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_what_to_do(number: int) -> None:
    error = from_oserror("cannot write /run/tclone/branch.json of ws-2", OSError(number, "full"))
    assert isinstance(error, NoSpace) and error.http_status == 507 and error.exit_status == 8
    assert "ws-2" in error.message and "tclone rm" in error.message


def test_other_failures_are_told_as_they_are() -> None:
    error = from_oserror("cannot write x", OSError(errno.EIO, "bad disk"))
    assert type(error) is Internal and "bad disk" in error.message
