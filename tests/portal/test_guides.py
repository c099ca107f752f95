"""The guides as pages: every file of `docs/`, with its links leading to the others, behind a login."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from engine import fork
from engine.config import REPO
from engine.desktop import service
from portal import accounts, attempts, leases, once, second_factors, sessions, shares
from portal.api.executions import Exec
from portal.e2b import sandboxes
from portal.guides import Guides
from portal.markdown import document
from portal.stream import proxy, server, tuning
from tests.portal.conftest import Portal

_BLOCK = re.compile(r"^ *```([a-z]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FILES = sorted(path.relative_to(REPO / "docs").with_suffix("").as_posix() for path in (REPO / "docs").rglob("*.md"))


class Read(HTMLParser):
    """The addresses and anchors of a page, and its text but for code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("link", "meta", "img"):
            self._open.append(tag)
        told = dict(attributes)
        if tag == "a":
            self.links.append(told["href"] or "")
        self.anchors.add(told.get("id") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"code", "pre"} & set(self._open):
            self.text += data


async def test_each_is_listed_and_shown_to_who_is_logged_in(portal: Portal) -> None:
    client = await portal.login()
    listed = Read(await (await client.request("GET", "/docs")).text())
    assert {f"/docs/{name}" for name in FILES} <= set(listed.links) and len(FILES) > 30
    answer = await client.request("GET", "/docs/how-to/files")
    assert answer.status == 200 and answer.content_type == "text/html"
    page = await answer.text()
    assert "<h1>" in page and "/docs/reference/engine-api#files" in Read(page).links
    # A command that is copied is for the portal that shows it; what is said of the default stays as it is.
    elsewhere = {"Host": "tclone.localhost:9443"}
    there = await (await client.request("GET", "/docs/how-to/files", headers=elsewhere)).text()
    assert "api=https://tclone.localhost:8443/api/v1/workspaces/ws-3\n" in page and "api=https://tclone.localhost:9443/api/v1/workspaces/ws-3\n" in there
    assert ":8443" not in there
    said = await (await client.request("GET", "/docs/how-to/expose", headers=elsewhere)).text()
    assert "<code>https://tclone.localhost:8443/</code>" in said and "proxy_pass https://127.0.0.1:8443" in said
    for nothing in ("/docs/", "/docs/nowhere", "/docs/how-to", "/docs/how-to/files.md", "/docs/../README", "/docs/how-to/..%2f..%2fREADME", "/docs/%2e%2e/pyproject"):
        assert (await client.request("GET", nothing)).status == 404, nothing
    stranger = await portal.client().request("GET", "/docs/how-to/files")
    assert stranger.status == 303 and stranger.headers["Location"] == "/login"


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_a_file_is_left_as_it_was_written(name: str) -> None:
    guides = Guides(REPO / "docs")
    made = guides.document(name)
    assert made is not None and made.title
    page = Read(made.body)
    # Headings, fences, tables, lists, links and strong words that were not understood would stand there.
    assert not re.search(r"(?m)^\s*(#{1,6} |```|\| |\* |\d+\. )|\]\(|\*\*|`", page.text), name
    source = (REPO / "docs" / f"{name}.md").read_text()
    assert made.body.count("<pre") == len(re.findall(r"(?m)^ *```", source)) // 2
    assert made.body.count("<tr>") == len(re.findall(r"(?m)^\|(?!-)", source))
    for link in page.links:
        assert link.startswith(("https://", "#", "/docs/")), link
        there = made
        if link.startswith("/docs/"):
            found = guides.document(link.removeprefix("/docs/").partition("#")[0])
            assert found is not None, link
            there = found
        if "#" in link and not link.startswith("https://"):
            assert link.partition("#")[2] in Read(there.body).anchors, link


def test_commands_say_when_they_fail_and_loops_end() -> None:
    """Who copies a block of commands is not left with a refusal that looks like an answer, nor with a loop that waits for what will never be."""
    code = {name: "".join(block for language, block in _BLOCK.findall((REPO / "docs" / f"{name}.md").read_text()) if language in ("", "sh", "bash")) for name in FILES}
    code["docs.html"] = (REPO / "templates" / "docs.html").read_text()
    silent, endless = [], []
    for name, text in code.items():
        told = [line.partition("#")[0].strip() for line in text.splitlines()]
        silent += [(name, line) for line in told if re.search(r"\bcurl -", line) and "--fail-with-body" not in line]
        # A counter that goes on for ever is what the tutorial forks.
        endless += [(name, line) for line in told if re.search(r"\buntil\b|\bwhile (?!sleep 1; do n=)", line)]
    assert sum(text.count("curl -") for text in code.values()) >= 9
    assert (silent, endless) == ([], [])


def test_what_is_written_is_text_wherever_it_stands() -> None:
    text = (
        "# A `b`\n\n<script>x</script> & `<i>` **<u>**\n\n## <b> `c` d\n## <b> `c` d\n\n* [two <i>](x.md)\n* [out](y.md)\n\n<div>block</div>\n\n| a | |\n|--:|---|\n| `x\\|y` | <td> |\n\n"
        "```sh\n<pre> & `\n```\n\n3. third:\n\n   ```\n   in\n     it\n   ```\n\nan ![image](x.png) [script](javascript:x)\n"
    )
    made = document(text, lambda target: None if target == "y.md" else f"/{target}")
    assert made.title == "A b"
    assert made.body.splitlines() == [
        "<p>&lt;script&gt;x&lt;/script&gt; &amp; <code>&lt;i&gt;</code> <strong>&lt;u&gt;</strong></p>",
        '<h2 id="b-c-d">&lt;b&gt; <code>c</code> d</h2>',
        '<h2 id="b-c-d-1">&lt;b&gt; <code>c</code> d</h2>',
        "<ul>", '<li><a href="/x.md">two &lt;i&gt;</a></li>', "<li>out</li>", "</ul>",
        "<p>&lt;div&gt;block&lt;/div&gt;</p>",
        '<div class="scrolls" tabindex="0"><table>',
        "<thead>", "<tr>", "<th>a</th>", "<td></td>", "</tr>", "</thead>",
        "<tbody>", "<tr>", "<td><code>x|y</code></td>", "<td>&lt;td&gt;</td>", "</tr>", "</tbody>",
        "</table></div>",
        '<pre class="docs-code" tabindex="0">&lt;pre&gt; &amp; `', "</pre>",
        '<ol start="3">', "<li>", "<p>third:</p>", '<pre class="docs-code" tabindex="0">in', "  it", "</pre>", "</li>", "</ol>",
        "<p>an  [script](javascript:x)</p>",
    ]  # fmt: skip


def test_the_page_of_timeouts_has_the_programs_figures() -> None:
    text = (REPO / "docs" / "reference" / "timeouts.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]
    rows = {row[1]: row[2] for row in cells}
    expected = {
        "a person's control": leases.TTL_SECONDS, "after the last page was closed, or lost its connection": leases.GRACE_SECONDS, "an attempt's count at the login": attempts.WINDOW_SECONDS,
        "a command by `POST …/exec`": Exec.model_fields["timeout"].default, "a batch of actions": service.BATCH_SECONDS, "a fork": fork._NATIVE_SECONDS,
        "one whose browser acknowledges nothing any more": tuning._USER_TIMEOUT_MS / 1000, "a request to a desktop without an answer": proxy._ANSWER_SECONDS,
        "a kept connection without a request": server._KEEPALIVE_SECONDS, "everything, at a restart of the portal": server.DRAIN_SECONDS, "an E2B sandbox": sandboxes._DEFAULT_SECONDS,
        "that a person has [shown who it is](portal.md#shown-again)": sessions.FRESH_SECONDS, "setting up a second factor": second_factors._BEGUN_SECONDS,
    }  # fmt: skip
    for what, seconds in expected.items():
        assert rows[what].startswith(f"{seconds:g} s"), what
    hours = {"a login without use": sessions.IDLE_SECONDS / 3600, "a code's count at the second factor": second_factors.CODES_SECONDS / 3600, "a share link": shares.DEFAULT_HOURS}
    days = {"a login in all": sessions.ABSOLUTE_SECONDS / 86400, "a one-time password": accounts.ONE_TIME_SECONDS / 86400}
    assert all(rows[what].startswith(f"{value:g} h") for what, value in hours.items())
    assert all(rows[what].startswith(f"{value:g} days") for what, value in days.items())
    assert rows["a handshake of TLS · of a WebSocket"] == f"{server._HANDSHAKE_SECONDS:g} s · {proxy._UPGRADE_SECONDS:g} s" and once._DAY_SECONDS == 86400
    assert f"up to {shares.MOST_HOURS // 24} days" in rows["a share link"]
