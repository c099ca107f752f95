"""What tells a branch from its source, and how its programs hear of it: with the real fork program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.errors import BadRequest, Conflict
from tests.engine import guest
from tests.engine.support import IMAGE, Engine, eventually


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guest.build("identity", tmp_path_factory.mktemp("guest"))


@pytest.fixture
async def workspace(client: EngineClient) -> str:
    return (await client.launch(IMAGE, name="src", wait=True))["id"]


async def shell(client: EngineClient, ref: str, script: str, **options: object) -> str:
    status, out, err = await client.run(ref, ["sh", "-c", script], **options)
    assert status == 0, err
    return out.decode()


async def fork(client: EngineClient, ref: str, **options: object) -> list[str]:
    result = await client.fork(ref, **options)
    assert all(branch["error"] is None for branch in result["branches"]), result
    return [branch["id"] for branch in result["branches"]]


async def start(client: EngineClient, ref: str, program: Path) -> int:
    """The program in the background; its pid inside."""
    return int((await guest.start(client, ref, program)).split()[1])


async def test_the_record_says_who_a_workspace_is(client: EngineClient, workspace: str) -> None:
    async def record(ref: str) -> dict:
        return json.loads(await shell(client, ref, "cat /run/tclone/branch.json"))

    source = await record(workspace)
    assert (source["id"], source["parent"], source["generation"], source["index"]) == (workspace, None, 0, None)
    first, second = await fork(client, workspace, copies=2)
    (grandchild,) = await fork(client, second)
    assert await record(workspace) == source
    for index, branch in enumerate((first, second)):
        found = await record(branch)
        assert (found["id"], found["parent"], found["generation"], found["index"]) == (branch, workspace, 1, index)
    found = await record(grandchild)
    assert (found["parent"], found["generation"], found["index"]) == (second, 2, 0)


async def test_the_record_is_there_before_the_first_step_of_a_forked_process(client: EngineClient, workspace: str) -> None:
    loop = "while true; do cat /run/tclone/branch.json > /tmp/seen.new && ln -f /tmp/seen.new /tmp/seen; cat /tmp/seen >> /tmp/all; done"
    await shell(client, workspace, f"({loop}) > /dev/null 2>&1 < /dev/null &")
    (branch,) = await fork(client, workspace)
    await shell(client, branch, "sleep 1")
    lines = (await shell(client, branch, "cat /tmp/all")).splitlines()
    generations = [json.loads(line)["generation"] for line in lines if line.startswith("{")]
    changes = [after for before, after in zip(generations, generations[1:], strict=False) if before != after]
    assert changes == [1] and generations[-1] == 1


async def test_commands_find_it_in_their_environment(client: EngineClient, workspace: str) -> None:
    show = 'echo "$TCLONE_WORKSPACE $TCLONE_NAME $TCLONE_GENERATION ${TCLONE_PARENT-none} ${TCLONE_BRANCH_INDEX-none} ${TCLONE_BATCH-none}"'
    assert await shell(client, workspace, show) == f"{workspace} src 0 none none none\n"
    result = await client.fork(workspace, copies=2, name="try")
    for index, branch in enumerate(result["branches"]):
        assert await shell(client, branch["id"], show) == f"{branch['id']} try-{index} 1 {workspace} {index} {result['batch']}\n"
    assert await shell(client, workspace, show, env={"TCLONE_NAME": "mine"}) == f"{workspace} mine 0 none none none\n"


async def test_registered_processes_get_their_signal_in_the_branch_alone(client: EngineClient, workspace: str, program: Path) -> None:
    pid = await start(client, workspace, program)
    await shell(client, workspace, f"echo SIGUSR2 > /run/tclone/notify.d/{pid}")
    result = await client.fork(workspace, copies=2)
    assert result["ms"]["hooks"] >= result["ms"]["usable"]
    for branch in result["branches"]:
        assert (branch["error"], branch["hook_error"]) == (None, None)
        await eventually(lambda ref=branch["id"]: shell(client, ref, "cat /tmp/told 2>/dev/null; true"), what="the signal")
        assert await shell(client, branch["id"], "cat /tmp/told") == "told\n"
    assert await shell(client, workspace, "ls /tmp/told 2>&1; true") == "ls: /tmp/told: No such file or directory\n"


async def test_a_registration_harms_nobody(client: EngineClient, workspace: str, program: Path) -> None:
    """Not a process that does not expect the signal, nor one of another user; and not the fork, whatever the files are."""
    pid = await start(client, workspace, program)
    bystander = int(await shell(client, workspace, "sleep 1000 > /dev/null 2>&1 < /dev/null & echo $!"))
    directory = "/run/tclone/notify.d"
    await shell(client, workspace, f"echo USR2 > {directory}/{pid}", user="user")
    await shell(client, workspace, f"""
        echo KILL > {directory}/1; echo TERM > {directory}/{bystander}; echo USR2 > {directory}/-1; echo USR2 > {directory}/99999999999
        echo 1000 > {directory}/2; mkfifo {directory}/3; ln -s /etc/passwd {directory}/4; mkdir {directory}/5; yes > {directory}/6 & sleep 0.2; kill $!
    """)
    (branch,) = (await client.fork(workspace))["branches"]
    assert (branch["error"], branch["hook_error"]) == (None, None)
    assert await shell(client, branch["id"], "ls /tmp/told 2>&1; true") == "ls: /tmp/told: No such file or directory\n"
    await shell(client, branch["id"], f"kill -0 {bystander} && kill -0 {pid} && kill -0 1")


async def test_hooks_run_in_the_branch_in_order_before_it_is_ready(client: EngineClient, workspace: str) -> None:
    await shell(client, workspace, """
        mkdir -p /etc/tclone/fork.d && cd /etc/tclone/fork.d
        printf '#!/bin/sh\\necho one $TCLONE_BRANCH_INDEX $(id -u) >> /tmp/hooks; sleep 1000 &\\n' > 10-first
        printf '#!/bin/sh\\necho two >> /tmp/hooks; echo to the console\\n' > 20-second
        printf '#!/bin/sh\\necho never >> /tmp/hooks\\n' > 30-not-executable; cp 30-not-executable backup.sh~
        chmod 755 10-first 20-second backup.sh~
    """)
    result = await client.fork(workspace, copies=2)
    for index, branch in enumerate(result["branches"]):
        assert (branch["error"], branch["hook_error"]) == (None, None)
        assert await shell(client, branch["id"], "cat /tmp/hooks") == f"one {index} 0\ntwo\n"
        log = b"".join([chunk async for chunk in client.logs(branch["id"])])
        assert log.endswith(b"to the console\n")
    assert await shell(client, workspace, "ls /tmp/hooks 2>&1; true") == "ls: /tmp/hooks: No such file or directory\n"


async def test_hooks_that_fail_or_hang_are_told_and_do_not_spoil_the_branch(client: EngineClient, workspace: str) -> None:
    await shell(client, workspace, """
        mkdir -p /etc/tclone/fork.d && cd /etc/tclone/fork.d
        printf '#!/bin/sh\\nexit 7\\n' > 10-fails; printf '#!/bin/sh\\nsleep 1000\\n' > 20-hangs; printf '#!/bin/sh\\necho > /tmp/last\\n' > 30-last
        printf '#!/bin/sh\\necho > /tmp/never\\n' > 40-open
        chmod 755 *; chmod 777 40-open
    """)
    (branch,) = (await client.fork(workspace))["branches"]
    assert branch["error"] is None
    for part in ("10-fails ended with status 7", "20-hangs did not end within 10 s", "40-open was not run"):
        assert part in branch["hook_error"]
    assert (await client.get(branch["id"]))["state"] == "ready"
    await shell(client, branch["id"], "ls /tmp/last; ! ls /tmp/never")


async def test_host_name_and_machine_id_are_kept_unless_asked_for(client: EngineClient, workspace: str) -> None:
    await shell(client, workspace, """
        echo 0123456789abcdef0123456789abcdef > /etc/machine-id; mkdir -p /var/lib/dbus; ln -s /etc/machine-id /var/lib/dbus/machine-id
        echo 10.0.0.1 mine >> /etc/hosts
    """)
    show = "hostname; cat /etc/hostname /etc/machine-id /var/lib/dbus/machine-id"
    before = await shell(client, workspace, show)
    hosts = await shell(client, workspace, "cat /etc/hosts")
    (kept,) = await fork(client, workspace)
    assert await shell(client, kept, show) == before and await shell(client, kept, "cat /etc/hosts") == hosts
    changed = await fork(client, workspace, copies=2, hostname="box", new_machine_id=True)
    ids = set()
    for index, branch in enumerate(changed):
        live, file, machine, dbus = (await shell(client, branch, show)).split()
        assert (live, file) == (f"box-{index}", f"box-{index}")
        assert machine == dbus and len(machine) == 32 and int(machine, 16)
        ids.add(machine)
        assert await shell(client, branch, "cat /etc/hosts") == hosts + f"10.77.0.2\tbox-{index}\n"
    assert len(ids) == 2 and "0123456789abcdef0123456789abcdef" not in ids
    assert await shell(client, workspace, show) == before
    (below,) = await fork(client, changed[0])
    assert (await shell(client, below, "hostname")) == "box-0\n"
    for wrong in ({"hostname": "UPPER"}, {"hostname": "a" * 64}, {"new_machine_id": "yes"}):
        with pytest.raises(BadRequest):
            await client.fork(workspace, **wrong)


async def test_random_numbers_differ(client: EngineClient, workspace: str, program: Path) -> None:
    pid = await start(client, workspace, program)
    await shell(client, workspace, f"kill -USR1 {pid}")
    branches = await fork(client, workspace, copies=2)
    draws = []
    for ref in (workspace, *branches):
        await shell(client, ref, f"kill -USR1 {pid}")

        async def second(ref: str = ref) -> list[str]:
            return (await shell(client, ref, "cat /tmp/draws")).splitlines()[1:]

        (line,) = await eventually(second, what="a second draw")
        draws.append(dict(part.split("=") for part in line.split()))
    for source in ("syscall", "libc", "arc4random", "vdso"):
        values = {draw[source] for draw in draws}
        assert len(values) == 3 or values == {"0" * 16}, (source, draws)
    # A generator in the program's own memory goes on alike everywhere: what docs/how-to/fork-identity.md tells to reseed.
    assert len({draw["rand"] for draw in draws}) == 1


async def test_a_workspace_that_blocks_its_record_is_told(client: EngineClient, workspace: str) -> None:
    await shell(client, workspace, "rm -r /run/tclone && ln -s /nowhere /run/tclone")
    with pytest.raises(Conflict, match="branch.json"):
        await client.fork(workspace)
    await shell(client, workspace, "rm /run/tclone")
    await fork(client, workspace)


async def test_a_missing_start_command_is_the_callers_mistake_and_frees_the_name(engine: Engine, client: EngineClient) -> None:
    for command in (["/no/such/program"], ["nothing-of-that-name"], ["/etc"], ["/etc/passwd"]):
        with pytest.raises(BadRequest, match="cannot start"):
            await client.launch(IMAGE, name="again", command=command, wait=True)
    assert await client.list() == []
    made = await client.launch(IMAGE, name="again", command=["sleep", "1000"], wait=True)
    assert made["state"] == "ready"
