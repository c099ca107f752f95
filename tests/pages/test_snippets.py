"""What the pages show as Python is run as it stands: against the portal, by a token, with the package of the checkout."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from playwright.async_api import Page, expect

from tests.pages.test_dialogs import code_of
from tests.portal.conftest import Portal, token_of
from tests.portal.fake_engine import FakeEngine

_REPO = Path(__file__).resolve().parents[2]
# One interpreter for all of them: most of a run is the start.
_RUNS_ALL = """import runpy, sys
for name in sys.argv[1:]:
    print("#", name, flush=True)
    runpy.run_path(name)
"""


async def _run(portal: Portal, directory: Path, snippets: dict[str, str]) -> dict[str, str]:
    """Run them in this order; what each printed."""
    token = await token_of(await portal.login(), "read", "control", "fork", "admin")
    (directory / "ca.pem").write_text(portal.places.ca_certificate.read_text())
    (directory / "notes.txt").write_text("from outside")
    for name, text in snippets.items():
        (directory / name).write_text(text)
    environment = {**os.environ, "TCLONE_TOKEN": token, "PYTHONPATH": str(_REPO)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RUNS_ALL, *snippets, cwd=directory, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
    parts = [part.partition("\n") for part in out.decode().split("# ")[1:]]
    return {name: printed for name, _, printed in parts}


async def test_what_a_program_can_do_with_a_workspace(page: Page, engine: FakeEngine, portal: Portal, tmp_path: Path) -> None:
    engine.add(name="desk")
    engine.inside.files[b"/etc/hostname"] = b"desk\n"
    await page.goto(page.url + "w/ws-1")
    await page.get_by_role("button", name="The same by the API").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Python").click()
    snippets = {}
    for choice in await dialog.get_by_label("What").locator("option").all_inner_texts():
        await dialog.get_by_label("What").select_option(label=choice)
        text = await code_of(dialog)
        # What only a person may do has a test of its own.
        if "from tclone import Client" in text:
            snippets[choice] = text
    assert list(snippets)[:4] == ["Take a picture of its screen", "Click", "Type a text", "Run a command"]
    assert list(snippets)[-2:] == ["Fork", "Discard"] and len(snippets) == 14
    engine.inside.says = [(1, b"Linux desk\n")]
    printed = await _run(portal, tmp_path, snippets)
    assert (printed["See who has control"].strip(), printed["Fork"].count("<Workspace ws-")) == ("None", 2)
    acts = [action for verb, body in engine.calls if verb == "act" for action in body["actions"]]
    assert [(action["action"], action.get("x"), action.get("text")) for action in acts] == [("click", 640, None), ("type", None, "hello")]
    assert printed["Run a command"] == "Linux desk\n" and engine.inside.shells[-1]["argv"] == ["uname", "-a"]
    assert (tmp_path / "screen.png").read_bytes().startswith(b"\x89PNG")
    assert engine.inside.files[b"/tmp/notes.txt"] == b"from outside"
    assert sorted(engine.workspaces) == ["ws-2", "ws-3"], "two branches were to be made, and the source to go"


async def test_what_dialogs_and_panels_do(page: Page, engine: FakeEngine, portal: Portal, tmp_path: Path) -> None:
    snippets: dict[str, str] = {}
    dialog = page.get_by_role("dialog")

    async def take(name: str) -> None:
        part = dialog if await dialog.count() else page.locator("[role=tabpanel]:visible, #part")
        await part.locator("summary").click()
        await part.get_by_role("button", name="Python").click()
        snippets[name] = await code_of(part)
        await page.keyboard.press("Escape")

    await page.get_by_role("button", name="Launch", exact=True).click()
    await expect(dialog.get_by_role("radio", name="webtop-xfce")).to_be_checked()
    await dialog.get_by_label("Name").fill("desk")
    await dialog.get_by_label("Ports to publish").fill("3000")
    await dialog.get_by_role("radio", name="None").check()
    await take("launch")
    desk = engine.add(name="other")
    await page.get_by_role("button", name="Fork", exact=True).click()
    await dialog.get_by_role("radio", name="2", exact=True).check()
    await dialog.get_by_label("other-clone-1").fill('an "other" way')
    await take("fork")
    origin = page.url
    await page.goto(f"{origin}w/ws-1#files")
    await expect(page.locator("tbody tr").first).to_be_visible()
    await take("files")
    for tab in ("Ports", "Changes"):
        await page.get_by_role("tab", name=tab).click()
        await take(tab)
    await expect(dialog).to_have_count(0)
    await page.get_by_role("button", name="Lifetime").click()
    await dialog.get_by_label("Discard when unused for").select_option(label="1 h")
    await take("lifetime")
    await page.get_by_role("button", name="Share", exact=True).click()
    await expect(dialog).to_be_visible()
    await take("share")
    await page.goto(f"{origin}admin/settings")
    await expect(page.locator("#part form")).to_be_visible()
    await page.get_by_label("Workspaces of all together").fill("40")
    await take("settings")
    printed = await _run(portal, tmp_path, snippets)
    launched = next(body for verb, body in engine.calls if verb == "launch")
    assert (launched["name"], launched["ports"][0]["container"], launched["network"]) == ("desk", 3000, "none")
    assert [item["label"] for item in engine.workspaces.values() if item["parent"] == desk["id"]] == ["", 'an "other" way']
    assert "notes.txt" in printed["files"] and "new.txt" in printed["Changes"] and printed["Ports"].strip().isdigit()
    life = portal.control.lifetimes.of("ws-1")
    assert life is not None and life.rules.idle == 3600
    assert "https://" in printed["share"] and portal.control.settings.now.all_workspaces == 40
