"""Barriers for people that axe-core knows of (WCAG 2.2 A and AA), on a page as it is drawn, in both colour schemes."""

from __future__ import annotations

from typing import Any, Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_AXE = Axe().axe_script
# A barrier is there at every look; what is drawn just then (a row, a message that fades in) may look like one.
_LOOKS = 3

# Each rule is asked wherever its answer can be another one, and only there: this is most of the time that the tests of pages take.
# A scheme changes colours and nothing else (tests/pages/test_barriers.py), so the second one is a matter for the rules about colours alone.
# What is behind a modal dialog can neither be read nor reached, and was looked at before: its colours are none of the dialog's.
_LOOK = """async ({ tags, colours_alone }) => {
  const colours = axe.getRules(["cat.color"]).filter((rule) => rule.tags.some((tag) => tags.includes(tag))).map((rule) => rule.ruleId);
  const modal = [...document.querySelectorAll(":modal")];
  const common = { iframes: false, resultTypes: ["violations"] };
  const found = [];
  const look = async (where, options) => found.push(...(await axe.run(where, { ...common, ...options })).violations);
  if (!colours_alone) {
    const rules = modal.length ? Object.fromEntries(colours.map((name) => [name, { enabled: false }])) : {};
    await look(document, { runOnly: tags, rules });
  }
  if (colours_alone || modal.length) await look(modal.length ? modal : document, { runOnly: { type: "rule", values: colours } });
  return found
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => ({ id, target: target.flat().join(" "), summary: failureSummary })));
}"""
# Colours are measured as they are drawn: not in the middle of a transition.
_AT_REST = """() => Promise.all(
  document.getAnimations().filter((a) => a.effect.getTiming().iterations !== Infinity).map((a) => a.finished.catch(() => null))
)"""


async def barriers(page: Page, where: str) -> list[str]:
    """One line for each thing that axe calls serious or critical: `where`, the scheme, axe's rule, the element, what is wrong. The page is left in the
    second scheme and without motion."""
    found: list[str] = []
    for scheme in _SCHEMES:
        # What turns and pulses for as long as something is under way would be drawn sixty times a second meanwhile.
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await page.evaluate(_AT_REST)
        if not await page.evaluate("'axe' in window"):
            await page.evaluate(_AXE)
        for _ in range(_LOOKS):
            violations: list[dict[str, Any]] = await page.evaluate(_LOOK, {"tags": _TAGS, "colours_alone": scheme != _SCHEMES[0]})
            if not violations:
                break
        found += [f"{where}, {scheme}: {violation['id']}: {violation['target']}: {violation['summary']}" for violation in violations]
    return found
