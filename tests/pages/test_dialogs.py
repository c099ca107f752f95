"""Dialogs, headers of tiles and messages."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

from playwright.async_api import Locator, Page, expect

from tests.portal.browsing import becomes, tile_of
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine


async def test_what_is_wrong_in_a_form_is_corrected_not_tried_again(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("button", name="Launch", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("radio", name="webtop-xfce")).to_be_checked()
    await dialog.get_by_label("Ports to publish").fill("3000, eighty")
    await dialog.get_by_role("button", name="Launch").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("“eighty” is not a port")
    await expect(dialog.get_by_role("button", name="Launch")).to_be_enabled()
    engine.refuse("launch", "unavailable", "a dependency is missing")
    await dialog.get_by_label("Ports to publish").fill("3000")
    await dialog.get_by_role("button", name="Launch").click()
    await expect(dialog.get_by_role("button", name="Retry")).to_be_enabled()


async def test_a_fork_says_what_its_copies_are_for_and_may_reach(page: Page, engine: FakeEngine) -> None:
    engine.add(name="desk")
    await page.get_by_role("button", name="Fork", exact=True).click()
    dialog = page.get_by_role("dialog")
    # The name of what is forked is said once, in the title.
    await expect(dialog.get_by_text("desk", exact=True)).to_have_count(0)
    await dialog.get_by_role("radio", name="2", exact=True).check()
    await dialog.get_by_label("Label of desk-clone-1").fill("try the new parser")
    await dialog.get_by_role("radio", name="None").check()
    await dialog.get_by_text("The same by the API").click()
    shown = await dialog.locator(".snippet-code").inner_text()
    # What folds out below the buttons does not move them.
    assert (await dialog.locator(".dialog-actions").bounding_box())["y"] < (await dialog.locator(".snippet").bounding_box())["y"]  # type: ignore[index]
    words = shlex.split(shown.replace("\\\n", " "))
    assert json.loads(words[words.index("-d") + 1]) == {"copies": 2, "labels": ["", "try the new parser"], "network": "none"}
    assert words[-1].endswith("/api/v1/workspaces/ws-1/fork") and words[words.index("-H") + 1] == "@-"
    await dialog.get_by_role("button", name="Python").click()
    compile(await dialog.locator(".snippet-code").inner_text(), "snippet", "exec")
    await dialog.get_by_role("button", name="Fork 2 copies").click()
    await expect(tile_of(page, "ws-3").locator(".tile-label")).to_have_text("try the new parser")
    asked = next(body for verb, body in engine.calls if verb == "fork")
    assert (asked["copies"], asked["labels"], asked["network"]) == (2, ["", "try the new parser"], "none")


async def test_ports_that_do_not_fit_are_counted(page: Page, engine: FakeEngine) -> None:
    for _ in range(3):
        engine.add(ports={str(port): port for port in range(3000, 3008)})
    await page.get_by_role("button", name="All live").click()
    await expect(tile_of(page, "ws-1").locator(".port:visible").last).to_have_text(re.compile(r"^\+[1-7]$"))
    # While pictures arrive tiles still change their size.
    fitted = """line => {
      const shown = [...line.querySelectorAll(".port")].filter((link) => link.checkVisibility());
      const end = line.getBoundingClientRect().right + 0.5;
      return { counted: shown.at(-1).textContent === `+${8 - (shown.length - 1)}`, cut: shown.some((link) => link.getBoundingClientRect().right > end) };
    }"""
    await becomes(lambda: tile_of(page, "ws-1").locator(".ports").evaluate(fitted), {"counted": True, "cut": False})
    await expect(tile_of(page, "ws-1").get_by_role("status").first).to_have_text("Ready")


async def test_nothing_lies_over_a_tile(page: Page, engine: FakeEngine) -> None:
    engine.add(desktop=False, image="workspace")
    await page.get_by_role("button", name="Fork", exact=True).click()
    await page.locator("dialog button[type=submit]").click()
    await expect(page.locator(".toast")).to_be_visible()
    await expect(page.locator("article.tile")).to_have_count(2)
    covered = """toast => {
      const over = toast.getBoundingClientRect();
      const meet = (box) => over.right > box.left && over.left < box.right && over.top < box.bottom && over.bottom > box.top;
      return [...document.querySelectorAll("article.tile")].filter((tile) => meet(tile.getBoundingClientRect())).map((tile) => tile.dataset.workspace);
    }"""
    await becomes(lambda: page.locator(".toast").evaluate(covered), [], "tiles that a message covers")


# Browsers know where names below localhost lead, Python asks the system.
_FINDS_LOCALHOST = """import socket
find = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: find("127.0.0.1" if host.endswith(".localhost") else host, *rest, **more)
"""


async def code_of(part: Locator) -> str:
    """The command that a dialog or a panel shows."""
    return await part.locator(".snippet-code").inner_text()


async def _shown(page: Page) -> list[str]:
    """The words of the snippet's last command, and of what is piped into it."""
    text = await code_of(page.get_by_role("dialog"))
    return shlex.split(text.replace("\\\n", " ").replace("|\n", "| ").splitlines()[-1])


async def test_a_launch_says_what_may_be_reached(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("button", name="Launch", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("radio", name="webtop-xfce")).to_be_checked()
    await dialog.get_by_text("The same by the API").click()
    words = await _shown(page)
    assert json.loads(words[words.index("-d") + 1]) == {"image": "webtop-xfce", "ports": []}
    await dialog.get_by_role("radio", name="None").check()
    await dialog.get_by_label("Disk limit").select_option(label="10 GiB")
    words = await _shown(page)
    assert json.loads(words[words.index("-d") + 1]) == {"image": "webtop-xfce", "ports": [], "disk": 10 << 30, "network": "none"}
    await dialog.get_by_role("button", name="Launch").click()
    await expect(tile_of(page, "ws-1")).to_be_visible()
    asked = next(body for verb, body in engine.calls if verb == "launch")
    assert (asked["network"], asked["disk"]) == ("none", 10 << 30)
    assert engine.workspaces["ws-1"]["network"] == "none"


async def test_what_has_no_dialog_is_shown_as_commands_too(page: Page, engine: FakeEngine, portal: Portal) -> None:
    engine.add()
    await page.goto(page.url + "w/ws-1")
    await page.get_by_role("button", name="The same by the API").click()
    dialog = page.get_by_role("dialog")
    # What a token may do comes first. Only a person takes control: the command logs in first, and no password is in it.
    assert (await _shown(page))[-1].endswith("screenshot?format=png")
    await dialog.get_by_label("What").select_option(label="Take control")
    words = await _shown(page)
    assert words[-1].endswith("/api/v1/workspaces/ws-1/lease") and words[: words.index("|")] == ["jq", "-r", '"X-TClone-Key: " + .key', "session.json"] and words[words.index("-X") + 1] == "POST"
    for choice in await dialog.get_by_label("What").locator("option").all_inner_texts():
        await dialog.get_by_label("What").select_option(label=choice)
        await dialog.get_by_role("button", name="curl").click()
        words = await _shown(page)
        path = words[-1].split("8443", 1)[-1]
        assert path.count("/api/v1/workspaces/ws-1") == 1, choice
        await dialog.get_by_role("button", name="Python").click()
        compile(await dialog.locator(".snippet-code").inner_text(), choice, "exec")


async def test_the_commands_for_persons_do_what_they_say(page: Page, engine: FakeEngine, portal: Portal, tmp_path: Path) -> None:
    engine.add()
    await page.goto(page.url + "w/ws-1")
    await page.get_by_role("button", name="The same by the API").click()
    dialog = page.get_by_role("dialog")
    (tmp_path / "login.json").write_text(json.dumps({"user": "admin", "password": portal.password}))
    (tmp_path / "ca.pem").write_text(portal.places.ca_certificate.read_text())
    await dialog.get_by_label("What").select_option(label="Take control")
    await dialog.get_by_role("button", name="Python").click()
    (tmp_path / "take.py").write_text(_FINDS_LOCALHOST + await dialog.locator(".snippet-code").inner_text())
    process = await asyncio.create_subprocess_exec(sys.executable, "take.py", cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["holder"] == "admin"
    lease = portal.control.leases.of("ws-1")
    assert lease is not None and lease.holder == "admin"


async def test_no_secret_is_among_the_arguments_of_a_shown_command(page: Page, engine: FakeEngine) -> None:
    """Every user of a machine can read the arguments of its commands: the shell fills in no variable, and nothing of a file, but for what it prints itself."""
    engine.add()
    await page.goto(page.url + "w/ws-1")
    await page.get_by_role("button", name="The same by the API").click()
    dialog = page.get_by_role("dialog")
    for choice in await dialog.get_by_label("What").locator("option").all_inner_texts():
        await dialog.get_by_label("What").select_option(label=choice)
        text = await dialog.locator(".snippet-code").inner_text()
        commands = [command.strip() for command in text.replace("\\\n", " ").replace("\n", ";").replace("|", ";").split(";")]
        # printf is part of the shell: nobody else sees what is given to it.
        assert [command for command in commands if "$" in command and not command.startswith("printf ")] == [], choice


async def test_what_came_of_a_fork_goes_when_it_was_there_to_be_read_and_covers_nothing(page: Page, engine: FakeEngine) -> None:
    await page.clock.install()
    # From now on only the time passes that the test lets pass, however long it takes to look.
    await page.clock.pause_at(await page.evaluate("Date.now() + 60_000"))
    engine.add(name="desk")
    await page.get_by_role("button", name="Fork", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("radio", name="3", exact=True).check()
    await dialog.get_by_role("button", name="Fork 3 copies").click()
    message = page.locator(".toast")
    await expect(message).to_contain_text("desk-clone-0, desk-clone-1, desk-clone-2")
    await page.clock.fast_forward(25_000)
    await expect(message.get_by_role("link", name="Compare")).to_have_attribute("href", "/compare/ws-1/ws-2")
    above = "toast => { const side = document.querySelector('#sidebar'); return side.getBoundingClientRect().top + side.clientHeight <= toast.getBoundingClientRect().top; }"
    await becomes(lambda: message.evaluate(above), True, "the message is below the lineage")
    # Whoever has the pointer on it reads it still.
    await message.hover()
    await page.clock.fast_forward(3_600_000)
    await expect(message).to_have_count(1)
    await page.mouse.move(800, 300)
    await page.clock.fast_forward(10_000)
    await expect(message).to_have_count(0)


async def test_the_buttons_of_a_long_dialog_are_in_sight(page: Page, engine: FakeEngine) -> None:
    await page.set_viewport_size({"width": 1280, "height": 560})
    await page.get_by_role("button", name="Launch", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("radio", name="webtop-xfce")).to_be_checked()
    for name in ("Launch", "Cancel"):
        await expect(dialog.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
    # What has the focus is not below them.
    await dialog.get_by_label("Disk limit").focus()
    above = "([field, below]) => field.getBoundingClientRect().bottom <= field.closest('dialog').querySelector(below).getBoundingClientRect().top"
    disk, ports = dialog.get_by_label("Disk limit"), dialog.get_by_label("Ports to publish")
    await becomes(lambda: disk.evaluate(f"(field) => ({above})([field, '.dialog-actions'])"), True, "the field is above the buttons")
    # Nor is what went wrong, whatever part of the form is shown.
    await ports.fill("99999")
    await dialog.get_by_role("button", name="Launch").click()
    await expect(dialog.get_by_role("alert")).to_be_in_viewport(ratio=1)
    await expect(ports).to_be_focused()
    await becomes(lambda: ports.evaluate(f"(field) => ({above})([field, '[role=alert]'])"), True, "the field is above what is said of it")
