"""The documentation is true in what can be checked: links lead somewhere, commands parse, every option is described."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli import main, parser
from engine.config import REPO

_PAGES = [REPO / "README.md", REPO / "CHANGELOG.md", *sorted((REPO / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Pictures are made by the end-to-end tests and put in when they show a release.
_PICTURES = ".png"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        if "://" in link or link.endswith(_PICTURES):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} in {page}"
        if anchor:
            assert anchor in _anchors(target), f"{link} in {page}"


def test_the_readme_leads_to_every_page() -> None:
    text = (REPO / "README.md").read_text()
    pages = [str(page.relative_to(REPO)) for page in (REPO / "docs").rglob("*.md")]
    assert [page for page in pages if page not in text] == [] and len(pages) > 30


def _commands(text: str) -> Iterator[list[str]]:
    """Each `tclone …` of the code blocks as words: at the start of a line, in `$(…)`, or indented in a loop."""
    for block in _CODE.findall(text):
        lines = block.splitlines()
        for number, line in enumerate(lines):
            for start in re.finditer(r"(?:^|\$\()\s*(?=tclone )", line):
                yield _words([line[start.end() :], *lines[number + 1 :]])


def _words(lines: list[str]) -> list[str]:
    """What a command that begins with the first line has behind `tclone`. It ends with that line, unless a quotation goes on in the next."""
    for end in range(1, len(lines) + 1):
        lexer = shlex.shlex("\n".join(lines[:end]), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            return list(itertools.takewhile(lambda word: not set(word) <= set("()<>|&;"), lexer))[1:]
        except ValueError:
            continue
    raise ValueError(f"a quotation without an end: {lines[0]}")


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_commands_in_examples_parse(page: Path) -> None:
    for words in _commands(page.read_text()):
        try:
            main._parse([word.replace("$branch", "ws-1").replace("$ws", "ws-1") for word in words])
        except SystemExit as stop:
            assert stop.code == 0, f"tclone {shlex.join(words)} in {page}"


def test_examples_are_found_at_all() -> None:
    found = [words for page in _PAGES for words in _commands(page.read_text())]
    assert ["fork", "desk", "--copies", "2"] in found and len(found) > 20


def _options(command: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, str]]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield (f"{path} {name}".strip(), "")
                yield from _options(below, f"{path} {name}".strip())
        elif action.help is not argparse.SUPPRESS:
            for option in action.option_strings:
                if option not in ("-h", "--help", "--version"):
                    yield (path, option)


def test_the_reference_has_every_command_and_option() -> None:
    reference = (REPO / "docs" / "reference" / "cli.md").read_text()
    rows = [row for row in reference.splitlines() if row.startswith("| `")]
    for command, option in _options(parser.build()):
        if command == "image":
            continue
        described = [row for row in rows if re.search(rf"`{re.escape(command)}\b", row)]
        assert described, command
        assert any(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", row) for row in described), (command, option)
