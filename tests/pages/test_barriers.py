"""What the tests of barriers would find: one of each kind is put into a page, in every place and state where it could be alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.pages.barriers import barriers
from tests.portal.browsing import streams
from tests.portal.fake_engine import FakeEngine

_STYLES = Path(__file__).parents[2] / "static" / "css"
_SCHEME = re.compile(r"prefers-color-scheme")
# The whole of what a style sheet may say of a scheme: colours, and shadows of them, by the names that the pages draw with.
_COLOURS = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{\s*(?:--[a-z-]+: (?:#[0-9a-f]{6}|(?:(?:-?\d+(?:px)? )+rgb\([^)]*\)(?:, )?)+);\s*)+\}\s*\}")

# One barrier of each kind: what it is called, elements as their name, attributes and what is in them (these pages take no markup from scripts), a style
# by which it is one in a scheme or at a width alone, and where axe is to find it.
_DARK, _PHONE = "@media (prefers-color-scheme: dark)", "@media (max-width: 500px)"
_WORDS = [["p", {}, ["words that somebody reads"]]]
_LINK = [["p", {}, ["words with ", ["a", {"href": "/link-in-dark"}, ["another page"]], " among them"]]]
_TARGETS = [["button", {}, ["a"]], ["button", {}, ["b"]]]
_NAMELESS = [["button", {}, []]]
_PICTURE = [["img", {"src": "/icon.svg"}, []]]
_KINDS: tuple[tuple[str, list[Any], str, str, set[tuple[str, str]]], ...] = (
    ("pale-in-light", _WORDS, f"# {{ color: #c8c8c8; background: #fff }} {_DARK} {{ # {{ color: #fff; background: #000 }} }}",
     "color-contrast", {("desk", "light"), ("phone", "light")}),
    ("pale-in-dark", _WORDS, f"# {{ color: #000; background: #fff }} {_DARK} {{ # {{ color: #333; background: #000 }} }}",
     "color-contrast", {("desk", "dark"), ("phone", "dark")}),
    ("pale-on-a-dark-phone", _WORDS, f"# {{ color: #000; background: #fff }} {_DARK} and (max-width: 500px) {{ # {{ color: #333; background: #000 }} }}",
     "color-contrast", {("phone", "dark")}),
    ("link-in-dark", _LINK, f"# {{ color: #000; background: #fff }} # a {{ color: #00e; text-decoration: none; font-weight: bold }} {_DARK} {{ # {{ color: #fff; background: #000 }} # a {{ color: #eee; font-weight: inherit }} }}",
     "link-in-text-block", {("desk", "dark"), ("phone", "dark")}),
    ("small-on-phones", _TARGETS, f"# button {{ width: 60px; height: 40px; padding: 0 }} {_PHONE} {{ # button {{ width: 12px; height: 12px; min-height: 0; border: 0; margin: 0; font-size: 8px }} }}",
     "target-size", {("phone", "light")}),
    ("scrolls-on-phones", _WORDS * 4, f"# {{ width: 260px }} {_PHONE} {{ # {{ height: 20px; overflow: auto }} }}",
     "scrollable-region-focusable", {("phone", "light")}),
    ("nameless", _NAMELESS, "# button { width: 60px; height: 40px }", "button-name", {("desk", "light"), ("phone", "light")}),
    ("silent-on-phones", _NAMELESS, f"# {{ display: none }} # button {{ width: 60px; height: 40px }} {_PHONE} {{ # {{ display: block }} }}", "button-name", {("phone", "light")}),
    ("picture", _PICTURE, "", "image-alt", {("desk", "light"), ("phone", "light")}),
)  # fmt: skip
_PLANT = """([place, kinds]) => {
  const made = ([name, attributes, inside]) => {
    const element = document.createElement(name);
    for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
    element.append(...inside.map((part) => (typeof part === "string" ? part : made(part))));
    return element;
  };
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(kinds.map(({ style }) => style).join(" "));
  document.adoptedStyleSheets = [sheet];
  document.querySelector(place).append(made(["div", { id: "planted" }, []]));
  document.getElementById("planted").append(...kinds.map(({ id, content }) => made(["div", { id }, content])));
}"""
_WIDTHS = {"desk": (1280, 800), "phone": (390, 844)}


async def _plant(page: Page, place: str) -> None:
    kinds = [{"id": name, "content": content, "style": re.sub(r"#(?= )", f"#{name}", style)} for name, content, style, _, _ in _KINDS]
    await page.evaluate(_PLANT, [place, kinds])


async def _found(page: Page) -> set[tuple[str, str, str]]:
    """What is found: the name of the planted kind, axe's rule, the scheme."""
    told = []
    for line in await barriers(page, "here"):
        match = re.match(r"here, (light|dark): ([a-z-]+): (.*)", line)
        assert match is not None, line
        # axe tells an element by what tells it from all others: the name of its kind is part of that.
        kind = next((name for name, *_ in _KINDS if name in match[3]), match[3])
        told.append((kind, match[2], match[1]))
    return set(told)


def _wanted(width: str, *, without: str = "") -> set[tuple[str, str, str]]:
    return {(name, rule, scheme) for name, _, _, rule, places in _KINDS for at, scheme in places if at == width and rule not in without.split()}


async def _launch(page: Page) -> None:
    await page.get_by_role("button", name="Launch", exact=True).click()
    await expect(page.get_by_role("radio", name="webtop-xfce")).to_be_checked()


@pytest.mark.slow
@pytest.mark.parametrize("width", list(_WIDTHS))
async def test_each_kind_of_barrier_is_found(page: Page, engine: FakeEngine, width: str) -> None:
    """On a page, in a dialog, and behind a dialog, where nobody sees a colour."""
    engine.add(name="desk")
    await page.set_viewport_size({"width": _WIDTHS[width][0], "height": _WIDTHS[width][1]})
    await streams(page, "ws-1")
    await _plant(page, "main")
    assert await _found(page) == _wanted(width)
    await _launch(page)
    assert await _found(page) == _wanted(width, without="color-contrast link-in-text-block")
    await page.locator("#planted").evaluate("(planted) => planted.remove()")
    await _plant(page, "dialog")
    assert await _found(page) == _wanted(width)


def test_a_scheme_changes_colours_and_nothing_else() -> None:
    """So the rules that are not about colours need no look in the second scheme."""
    for sheet in sorted(_STYLES.glob("*.css")):
        text = sheet.read_text()
        assert len(_SCHEME.findall(text)) == len(_COLOURS.findall(text)), f"{sheet.name} draws more than colours differently in a scheme"
    scripts = [path.name for path in _STYLES.parent.glob("js/**/*.js") if _SCHEME.search(path.read_text())]
    assert scripts == [], "scripts do something else in another scheme"
