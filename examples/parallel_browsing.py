"""Parallel browsing: one browser is brought to a page once, then forked; each branch follows another link from there, all at the same time.

    python examples/parallel_browsing.py [--image webtop-xfce]

The pages are served inside the desktop, so that this runs without a network. Whatever the browser held (logins, forms, history) every branch has.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import html
from dataclasses import dataclass

from tclone import Screenshot, TCloneError, TimedOut
from tclone.aio import Client, Workspace

PORT = 8123
SITE = "/home/user/site"
TOPICS = {"red": "#c01020", "green": "#108030", "blue": "#1030c0"}
WHITE = (255, 255, 255)


@dataclass
class Found:
    """What one branch came back with."""

    topic: str
    title: str
    picture: Screenshot


async def serve_site(desk: Workspace) -> None:
    """A page with links, and one page for each topic."""
    links = "".join(f'<p><a href="{topic}.html">{topic}</a></p>' for topic in TOPICS)
    await desk.files.make_directory(SITE)
    await desk.files.write(f"{SITE}/index.html", f"<title>Topics</title>{links}")
    for topic, colour in TOPICS.items():
        await desk.files.write(f"{SITE}/{topic}.html", f"<title>All about {html.escape(topic)}</title><body style='background:{colour}'>")
    await desk.exec(f"cd {SITE} && setsid -f python3 -m http.server {PORT} --bind 127.0.0.1 >/dev/null 2>&1", check=True)
    await desk.wait_for_port(PORT)


async def open_browser(desk: Workspace) -> None:
    """Chromium with the first page, and the keyboard."""
    options = "--no-first-run --password-store=basic --disable-gpu --start-maximized"
    await desk.exec(f"DISPLAY=:1 setsid -f chromium {options} http://127.0.0.1:{PORT}/ >/dev/null 2>&1", check=True)
    await desk.activate(await desk.wait_for_window("Topics", timeout=120))
    # A page that is still being loaded takes the keyboard away from the address bar when it is there.
    await desk.screenshot(settle=20)


async def visit(branch: Workspace, topic: str) -> Found:
    """Follow one link: by the address bar, as a person would."""
    for patience in (20, 60, 120):
        # The keyboard may have gone elsewhere, and on a busy machine the browser may still be at what it was told before: it is at rest first.
        await branch.activate(await branch.wait_for_window("Chromium"))
        await branch.screenshot(settle=5)
        async with branch.control() as control:
            await control.key("Escape")
            await control.key("ctrl+l")
            await control.type(f"http://127.0.0.1:{PORT}/{topic}.html\n")
        # Act, then look: what did not come to pass is done again.
        with contextlib.suppress(TimedOut):
            window = await branch.wait_for_window(f"All about {topic}", timeout=patience)
            return Found(topic, window.title, await drawn(branch))
    raise TimedOut(f"{branch.id} did not come to the page about {topic}", code="timeout")


async def drawn(branch: Workspace) -> Screenshot:
    """A picture with the page on it: a title may be there before."""
    picture = await branch.screenshot(settle=5)
    while colour_of(picture) == WHITE:
        picture = await branch.wait_for_change(picture)
    return picture


def colour_of(picture: Screenshot) -> tuple[int, ...]:
    """Of the page, below its middle."""
    image = picture.image().convert("RGB")
    pixel = image.getpixel((image.width // 2, image.height * 3 // 4))
    assert isinstance(pixel, tuple)
    return pixel


async def browse(desk: Workspace) -> list[Found]:
    """Every topic in a branch of its own."""
    children = await desk.fork(len(TOPICS), labels=list(TOPICS))
    branches = [child for child in children if isinstance(child, Workspace)]
    try:
        for child in children:
            if isinstance(child, TCloneError):
                raise child
        return await asyncio.gather(*(visit(branch, topic) for branch, topic in zip(branches, TOPICS, strict=True)))
    finally:
        await asyncio.gather(*(branch.discard() for branch in branches))


async def main() -> None:
    parser = argparse.ArgumentParser(description="Follow links in parallel branches of one browser.")
    parser.add_argument("--image", default="webtop-xfce")
    wanted = parser.parse_args()
    async with Client() as client, await client.run(wanted.image) as desk:
        await serve_site(desk)
        await open_browser(desk)
        for found in await browse(desk):
            print(f"{found.topic}: {found.title}: {colour_of(found.picture)}")
        still = await desk.wait_for_window("Topics")
        print(f"the source: {still.title}")


if __name__ == "__main__":
    asyncio.run(main())
