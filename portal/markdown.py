"""The Markdown of TClone's guides as HTML, by markdown-it-py: HTML that is written in one stays text, headings have names that links reach."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

# The address that a link's target has here; None: it leads nowhere here, and its text is left.
Resolve = Callable[[str], str | None]


@dataclass(frozen=True)
class Document:
    """A title, and everything below it."""

    title: str
    body: Markup


def anchor(heading: str) -> str:
    """The name by which links reach a heading, made as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def document(text: str, resolve: Resolve) -> Document:
    """A whole file; its first heading is the title."""
    tokens = _MARKDOWN.parse(text)
    title = ""
    if tokens and tokens[0].type == "heading_open":
        title, tokens = _words(tokens[1]), tokens[3:]
    names: set[str] = set()
    for index, token in enumerate(tokens):
        # Columns would be aligned by style attributes, which the pages' content security policy forbids.
        token.attrs.pop("style", None)
        if token.children is not None:
            token.children = _led(token.children, resolve)
        if token.type == "heading_open":
            token.attrs["id"] = _free(anchor(_words(tokens[index + 1])), names)
        elif token.type == "th_open" and not tokens[index + 1].content:
            # An empty head names nothing.
            token.tag = tokens[index + 2].tag = "td"
    return Document(title, Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})))


def _words(heading: Token) -> str:
    return "".join(part.content for part in heading.children or ())


def _free(name: str, taken: set[str]) -> str:
    made, count = name, 0
    while made in taken:
        count += 1
        made = f"{name}-{count}"
    taken.add(made)
    return made


def _led(parts: list[Token], resolve: Resolve) -> list[Token]:
    """What stands in a line, with links to where they lead here. Pictures are left out."""
    made: list[Token] = []
    leads: list[bool] = []
    for part in parts:
        if part.type == "link_open":
            address = resolve(str(part.attrs["href"]))
            leads.append(address is not None)
            if address is None:
                continue
            part.attrs["href"] = address
        elif part.type == "link_close" and not leads.pop():
            continue
        elif part.type == "image":
            continue
        made.append(part)
    return made


def _code(tokens: Sequence[Token], index: int, *_: Any) -> str:
    # It may be wider than the page: the keyboard has to reach what scrolls.
    return f'<pre class="docs-code" tabindex="0">{escape(tokens[index].content)}</pre>\n'


def _table_begins(*_: Any) -> str:
    return '<div class="scrolls" tabindex="0"><table>\n'


def _table_ends(*_: Any) -> str:
    return "</table></div>\n"


def _made() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    for name, rule in (("fence", _code), ("table_open", _table_begins), ("table_close", _table_ends)):
        markdown.renderer.rules[name] = rule
    return markdown


_MARKDOWN = _made()
