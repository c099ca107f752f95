"""The Markdown that TClone's guides are written in, as HTML: headings, paragraphs, lists of one level, tables, code, links. Anything else stays text.

It is for our own files, not for what others write; a library would be a dependency more for what these few rules do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

_INLINE = re.compile(r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)|\*\*(?P<strong>.+?)\*\*|!\[[^\]]*\]\([^)]*\)|\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"(#{1,6}) +(.+)")
_ITEM = re.compile(r"(?:\*|-|(\d+)\.) +(.+)")
_TABLE_RULE = re.compile(r"\|[-:| ]+\|")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_FENCE = "```"

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
    lines = text.splitlines()
    title = ""
    if lines and (found := _HEADING.fullmatch(lines[0])):
        title, lines = _plain(found[2]), lines[1:]
    return Document(title, Markup("\n").join(_Blocks(lines, resolve)))


def _plain(text: str) -> str:
    return text.replace("`", "").replace("**", "")


def inline(text: str, resolve: Resolve) -> Markup:
    """What stands in a line: code, strong words, links. Pictures are left out."""
    made, end = Markup(), 0
    for found in _INLINE.finditer(text):
        made += escape(text[end : found.start()])
        end = found.end()
        if found["code"] is not None:
            made += Markup("<code>{}</code>").format(found["code"])
        elif found["strong"] is not None:
            made += Markup("<strong>{}</strong>").format(inline(found["strong"], resolve))
        elif found["target"] is not None:
            words, address = inline(found["text"], resolve), resolve(found["target"])
            made += words if address is None else Markup('<a href="{}">{}</a>').format(address, words)
    return made + escape(text[end:])


class _Blocks:
    """The blocks of a text, one after the other."""

    def __init__(self, lines: list[str], resolve: Resolve) -> None:
        self._lines = lines
        self._resolve = resolve
        self._at = 0
        self._anchors: set[str] = set()

    def __iter__(self) -> Iterator[Markup]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not line.strip():
                self._at += 1
            elif line.lstrip().startswith(_FENCE):
                yield self._code()
            elif found := _HEADING.fullmatch(line):
                self._at += 1
                yield self._heading(len(found[1]), found[2])
            elif self._is_table():
                yield self._table()
            elif found := _ITEM.fullmatch(line):
                yield self._list(found[1])
            else:
                yield Markup("<p>{}</p>").format(self._inline(" ".join(self._until_break())))

    def _inline(self, text: str) -> Markup:
        return inline(text, self._resolve)

    def _until_break(self) -> list[str]:
        """This line and those that go on with it."""
        taken = [self._lines[self._at].strip()]
        self._at += 1
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not line.strip() or line.lstrip().startswith(_FENCE) or line.startswith("|") or _HEADING.fullmatch(line) or _ITEM.fullmatch(line):
                break
            taken.append(line.strip())
            self._at += 1
        return taken

    def _code(self) -> Markup:
        """Below an item of a list it is moved in, as far as its fence."""
        indent = self._lines[self._at].index(_FENCE)
        self._at += 1
        begin = self._at
        while self._at < len(self._lines) and not self._lines[self._at].lstrip().startswith(_FENCE):
            self._at += 1
        text = "\n".join(line[indent:] if not line[:indent].strip() else line for line in self._lines[begin : self._at])
        self._at += 1
        # It may be wider than the page: the keyboard has to reach what scrolls.
        return Markup('<pre class="docs-code" tabindex="0">{}</pre>').format(text)

    def _heading(self, level: int, text: str) -> Markup:
        name = made = anchor(text)
        count = 0
        while name in self._anchors:
            count += 1
            name = f"{made}-{count}"
        self._anchors.add(name)
        return Markup('<h{level} id="{name}">{text}</h{level}>').format(level=level, name=name, text=self._inline(text))

    def _list(self, first: str | None) -> Markup:
        items = Markup()
        while self._at < len(self._lines) and (found := _ITEM.fullmatch(self._lines[self._at])) and (found[1] is None) == (first is None):
            _, *more = self._until_break()
            items += Markup("<li>{}</li>").format(self._inline(" ".join([found[2].strip(), *more])))
        if first is None:
            return Markup("<ul>{}</ul>").format(items)
        return Markup('<ol start="{}">{}</ol>').format(int(first), items)

    def _is_table(self) -> bool:
        return self._lines[self._at].startswith("|") and self._at + 1 < len(self._lines) and _TABLE_RULE.fullmatch(self._lines[self._at + 1].strip()) is not None

    def _table(self) -> Markup:
        head = self._row("th")
        self._at += 1
        rows = Markup()
        while self._at < len(self._lines) and self._lines[self._at].startswith("|"):
            rows += self._row("td")
        return Markup('<div class="scrolls" tabindex="0"><table><thead>{}</thead><tbody>{}</tbody></table></div>').format(head, rows)

    def _row(self, kind: str) -> Markup:
        line = self._lines[self._at].strip()
        self._at += 1
        cells = [cell.strip().replace("\\|", "|") for cell in _CELL_BORDER.split(line)[1:-1]]
        # An empty head names nothing.
        made = [Markup("<{kind}>{text}</{kind}>").format(kind=kind if cell else "td", text=self._inline(cell)) for cell in cells]
        return Markup("<tr>{}</tr>").format(Markup().join(made))
