"""Messages in pages that no script makes."""

from __future__ import annotations

import pytest

from portal.prose import prose


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("", ""),
        ("these pages are for admins", "These pages are for admins."),
        ("it is over.", "It is over."),
        ("no workspace <b>; `tclone ls` lists them", "No workspace &lt;b&gt;; <code>tclone ls</code> lists them."),
        ("`tclone ls` lists them", "<code>tclone ls</code> lists them."),
        ("one ` alone & nothing else", "One ` alone &amp; nothing else."),
    ],
)
def test_a_message_is_told_as_people_read_it(message: str, shown: str) -> None:
    assert prose(message) == shown
