"""The desktop session's logs are bounded, and root follows no link of the user's in them; the workspace ends with its X server."""

from __future__ import annotations

import pytest

from engine.client import EngineClient
from engine.errors import EngineError
from tests.agents.desk import Desk, eventually
from tests.agents.test_screen_sizes import of_size

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(600)]

_LOGS = "/var/log/desktop"


async def test_logs_are_cut_to_their_last_part(desk: Desk) -> None:
    await desk.shell(f"for log in xfce session x; do yes noise | head -c 3M >>{_LOGS}/$log.log; echo the last line >>{_LOGS}/$log.log; done")

    async def cut() -> bool:
        sizes = (await desk.shell(f"stat -c %s {_LOGS}/*.log")).split()
        return max(map(int, sizes)) <= 1 << 20

    await eventually("the logs were cut", cut, 60)
    for log in ("xfce", "session", "x"):
        assert "the last line" in (await desk.shell(f"tail -n 3 {_LOGS}/{log}.log"))
    # Who had a log open goes on writing to its end: no hole, as there would be at an old place in it.
    await desk.shell("xfce4-terminal --nonsense >/dev/null 2>&1; xdotool getactivewindow >/dev/null; true")
    assert int(await desk.shell(f"tr -dc '\\0' <{_LOGS}/xfce.log | wc -c")) == 0
    assert await desk.shell(f"ls {_LOGS}") == await desk.shell(f"cd {_LOGS}; ls *.log"), "nothing else is left there"


async def test_the_logs_of_a_quiet_desktop_stay_small(desk: Desk) -> None:
    before = int(await desk.shell(f"cat {_LOGS}/xfce.log {_LOGS}/session.log {_LOGS}/x.log | wc -c"))
    for _ in range(3):
        await desk.viewer(1)
    after = int(await desk.shell(f"cat {_LOGS}/xfce.log {_LOGS}/session.log {_LOGS}/x.log | wc -c"))
    assert after - before < 500, "viewers make the desktop complain"


async def test_root_writes_no_log_and_follows_no_link(client: EngineClient) -> None:
    async with of_size(client, (1024, 768)) as desk:
        assert set((await desk.shell(f"stat -c %U {_LOGS}/*.log")).split()) == {"user"}
        # Where only root could write.
        await desk.shell(f"rm {_LOGS}/stream.log && ln -s /etc/led-astray {_LOGS}/stream.log && pkill -f [s]tream_server.py")
        await eventually("the stream server is back", lambda: _back(desk))
        status, _, _ = await client.run(desk.ref, ["test", "-e", "/etc/led-astray"])
        assert status == 1


async def _back(desk: Desk) -> bool:
    return (await desk.shell("pgrep -f [s]tream_server.py || true")) != ""


async def test_the_workspace_ends_with_its_x_server(client: EngineClient) -> None:
    async with of_size(client, (1024, 768)) as desk:
        await desk.shell("pkill Xvfb")

        async def over() -> bool:
            try:
                return (await client.get(desk.ref))["state"] not in ("ready", "starting")
            except EngineError:
                return True

        await eventually("the workspace ended", over, 10)
