"""Messages as people read them in a page of HTML; `prose` in static/js/dom.js does the same where scripts make the page."""

from __future__ import annotations

import html


def prose(message: str) -> str:
    """HTML of a message: a capital first, a full stop last, what stands between back-ticks as code; everything else is text."""
    if not message:
        return ""
    whole = message[0].upper() + message[1:]
    if whole[-1] not in ".!?":
        whole += "."
    parts = [html.escape(part) for part in whole.split("`")]
    if len(parts) % 2 == 0:
        # An odd count of back-ticks is no pair: such a text is left alone.
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
