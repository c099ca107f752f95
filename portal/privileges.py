"""Giving up root before anything listens."""

from __future__ import annotations

import ctypes
import os
import pwd

_PR_SET_NO_NEW_PRIVS = 38


def forbid_new_privileges() -> None:
    """Set no_new_privs: nothing this process starts can gain rights. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot set no_new_privs: {os.strerror(number)}")


def drop(user: str) -> None:
    """Become `user` for good when we are root; in any case forbid new privileges.

    Groups first, user last: after setuid the others are no longer allowed. Raises KeyError when there is no such user, OSError.
    """
    if os.geteuid() == 0:
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        if os.geteuid() == 0 and account.pw_uid != 0:
            raise OSError(f"still root after changing to {user}")
    forbid_new_privileges()
