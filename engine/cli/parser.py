"""The grammar of the command line: every command, option, example and its place in the help."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine import __version__
from engine.cli import parser_desktop, values
from engine.cli.grammar import Help as _Help
from engine.cli.grammar import command as _command
from engine.cli.grammar import json_option as _json
from engine.cli.grammar import workspace as _workspace
from engine.cli.guess import Parser

_EPILOG = """\
examples:
  tclone up --detach                    start the engine and the portal
  tclone run webtop-xfce --name desk    launch a desktop
  tclone fork desk --copies 2           two live branches: desk-clone-0, desk-clone-1
  tclone exec desk-clone-0 -- hostname  run a command in one of them
  tclone rm desk desk-clone-0 desk-clone-1

exit status:
  0 done   1 a defect   2 wrong usage   4 not found   5 conflict   6 refused, each blocker named
  7 a limit   8 disk full   9 the engine is down or something it needs is missing
`exec` and `shell` pass on the status of the command they ran. Settings come from TCLONE_DATA, TCLONE_RUN and
TCLONE_PORTAL_PORT; docs/reference/cli.md has everything.
"""


def build() -> argparse.ArgumentParser:
    """The whole parser. `arguments.command` and, for images, `arguments.action` say what to run."""
    parser = Parser(
        prog="tclone",
        description="Launch a Linux desktop in a container, fork it live, and drive every branch side by side.",
        epilog=_EPILOG,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tclone {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _service_commands(commands)
    _workspace_commands(commands)
    _inside_commands(commands)
    parser_desktop.add(commands)
    _image_commands(commands)
    _account_commands(commands)
    return parser


def _service_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    up = _command(
        commands, "up", "start the engine and the portal", "tclone up", "tclone up --detach --port 9443",
    )
    up.add_argument("--detach", "-d", action="store_true", help="return when all of it answers; otherwise stay, and Ctrl-C is `tclone down`")
    up.add_argument("--port", type=values.port, help="the portal's HTTPS port (default: TCLONE_PORTAL_PORT, or 8443)")
    up.add_argument("--image", type=values.workspace_name, metavar="NAME", help="also build this image when it is missing")
    up.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)

    down = _command(commands, "down", "stop the portal and the engine", "tclone down", "tclone down --keep")
    down.add_argument("--keep", action="store_true", help="leave the workspaces running for the next `tclone up`; otherwise they are removed")

    doctor = _command(
        commands, "doctor", "check this machine, or whether a workspace can be forked, and say what to do", "tclone doctor --json", "tclone doctor desk",
    )
    doctor.add_argument("workspace", nargs="?", type=values.reference, metavar="WS", help="look for what keeps this workspace from being forked")
    _json(doctor)

    _command(commands, "engine", "run the engine daemon in the foreground (`tclone up` does this for you)")
    _command(commands, "passwd", "make a new password for the portal's user admin, print it this once, and end its sessions")
    ca = _command(
        commands, "ca", "print where the portal's CA certificate lies, and its fingerprint", "tclone ca", "tclone ca --pem > tclone-ca.pem",
    )
    ca.add_argument("--pem", action="store_true", help="print the certificate itself")
    backup = _command(commands, "backup", "save the portal's accounts, settings and keys into a new file", "tclone backup tclone.tar")
    backup.add_argument("file", type=Path, metavar="FILE", help="a file that does not exist yet; it will hold the portal's keys")
    restore = _command(commands, "restore", "put back what `tclone backup` saved, while TClone is down", "tclone restore tclone.tar")
    restore.add_argument("file", type=Path, metavar="FILE", help="an archive of `tclone backup`")
    _command(commands, "version", "print the versions of this command and of the running engine")


def _workspace_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = _command(
        commands,
        "run",
        "launch a workspace from an image and print its id",
        "tclone run webtop-xfce --name desk",
        "tclone run workspace -p 3000 -p 8080:80 -e MODE=test --memory 2g",
        "tclone run workspace -- python3 -m http.server 8000",
    )
    run.usage = "tclone run [OPTIONS] IMAGE [-- CMD ...]"
    run.add_argument("image", type=values.reference, metavar="IMAGE", help="name or digest; `tclone image ls` lists them")
    run.add_argument("--name", type=values.workspace_name, help="a name (default: made from the id)")
    run.add_argument("-p", "--publish", type=values.publication, action="append", default=[], metavar="CTR|HOST:CTR",
                     help="publish a TCP port of the workspace, on a free host port or on HOST")  # fmt: skip
    run.add_argument("-e", "--env", type=values.variable, action="append", default=[], metavar="K=V", help="set a variable")
    run.add_argument("--memory", type=values.size, metavar="SIZE", help="memory limit, such as 2g")
    run.add_argument("--shm-size", type=values.size, metavar="SIZE",
                     help="size of /dev/shm (default: 1g, or half of the memory limit when that is less)")  # fmt: skip
    run.add_argument("--disk", type=values.size, metavar="SIZE", help="how much it may write to its disk, such as 10g (default: all that is free)")
    run.add_argument("--cpus", type=values.cpus, metavar="N", help="how many processors' time it gets at most, such as 1.5 (default: all)")
    run.add_argument("--pids", type=values.positive, metavar="N", help="limit on processes and threads")
    run.add_argument("--network", choices=("open", "none"), default="open", help="outgoing traffic: all of it (default), or none")
    run.add_argument("--osworld", action="store_true",
                     help="open a server for OSWorld's clients and Chromium's debugging port on this machine's loopback, without a login")  # fmt: skip
    run.add_argument("--no-wait", action="store_true", help="return at once, not when the workspace is ready")
    _json(run)

    fork = _command(
        commands,
        "fork",
        "fork a running workspace live and print the branches' ids",
        "tclone fork desk",
        "tclone fork desk --copies 4 --name try --json",
    )
    _workspace(fork, "SRC")
    fork.add_argument("--copies", type=values.copies, default=1, metavar="N", help=f"branches from one freeze, 1 to {values.MAX_COPIES}")
    fork.add_argument("--name", type=values.workspace_name, metavar="BASE", help="branches are called BASE, or BASE-0, BASE-1, … (default: SRC-clone)")
    fork.add_argument("--tcp-close", action="store_true", help="close every established TCP connection in the branches, also those inside the workspace")
    fork.add_argument("--hostname", type=values.workspace_name, metavar="BASE", help="give branches a host name of their own: BASE, or BASE-0, BASE-1, … (default: the source's)")
    fork.add_argument("--new-machine-id", action="store_true", help="give each branch a machine id of its own (default: the source's)")
    fork.add_argument("--network", choices=("open", "none"), help="outgoing traffic of the branches (default: the source's)")
    fork.add_argument("--label", action="append", metavar="TEXT", help="what a branch is for; give it once for each branch, in their order")
    fork.add_argument("--ghost-limit", type=values.size, metavar="SIZE", help="most to carry over of deleted but open files, all together (default 256m)")
    _json(fork)

    ls = _command(commands, "ls", "list workspaces, each branch below what it was forked from", "tclone ls", "tclone ls --json")
    _json(ls)
    ls.add_argument("-q", "--quiet", action="store_true", help="ids only")

    inspect = _command(commands, "inspect", "print everything known about workspaces, as JSON", "tclone inspect desk")
    inspect.add_argument("workspaces", type=values.reference, nargs="+", metavar="WS")

    port = _command(
        commands, "port", "list, publish and unpublish ports", "tclone port desk", "curl localhost:$(tclone port desk 3000)",
        "tclone port desk 4000 --publish",
    )  # fmt: skip
    _workspace(port)
    port.add_argument("container", nargs="?", type=values.port, metavar="CTR", help="print only the host port of this one")
    change = port.add_mutually_exclusive_group()
    change.add_argument("--publish", action="store_true", help="publish CTR now, on a free host port, and print that")
    change.add_argument("--unpublish", action="store_true", help="stop publishing CTR")
    _json(port)

    stats = _command(commands, "stats", "print use of processor, memory, processes and disk", "tclone stats", "tclone stats desk --json")
    stats.add_argument("workspaces", type=values.reference, nargs="*", metavar="WS", help="default: all")
    _json(stats)

    for verb, what in (("pause", "let the programs of workspaces stand still, their memory kept"), ("resume", "let the programs of paused workspaces go on")):
        _command(commands, verb, what, f"tclone {verb} desk").add_argument("workspaces", type=values.reference, nargs="+", metavar="WS")

    _command(
        commands, "vmrun", "what VMware's command of that name is to OSWorld's DesktopEnv: list, start, stop, snapshot, revertToSnapshot, deleteSnapshot, listSnapshots, getGuestIPAddress; install DIR; session: commands on stdin",
        "tclone vmrun install ~/osworld/bin", "tclone vmrun snapshot /branches/desk init_state", "tclone vmrun revertToSnapshot /branches/desk init_state",
    )  # fmt: skip

    rm = _command(commands, "rm", "remove workspaces and all they hold", "tclone rm desk desk-clone")
    rm.add_argument("workspaces", type=values.reference, nargs="*", metavar="WS")
    rm.add_argument("--all", "-a", action="store_true", help="every workspace")


def _inside_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    execute = _command(
        commands,
        "exec",
        "run a command in a workspace and pass on its exit status",
        "tclone exec desk -- uname -a",
        "tclone exec -i desk -- tar -x -C /srv < files.tar",
        "tclone exec -it -u desktop desk -- bash",
    )
    execute.usage = "tclone exec [OPTIONS] WS -- CMD ..."
    execute.add_argument("-u", "--user", metavar="USER", help="run as this user of the workspace (default: root)")
    execute.add_argument("-i", "--interactive", action="store_true", help="pass stdin on")
    execute.add_argument("-t", "--tty", action="store_true", help="give the command a terminal")
    execute.add_argument("-e", "--env", type=values.variable, action="append", default=[], metavar="K=V", help="set a variable")
    execute.add_argument("-w", "--workdir", metavar="DIR", help="directory to run in")
    _workspace(execute)

    copy = _command(
        commands,
        "cp",
        "copy a file into a workspace or out of it",
        "tclone cp report.csv desk:/home/user/",
        "tclone cp desk:/home/user/result.json .",
        "tclone cp desk:/etc/hostname - | cat",
    )
    copy.add_argument("source", metavar="SRC", help="a file here, WS:/PATH in a workspace, or - for standard input")
    copy.add_argument("target", metavar="DST", help="the same, or a directory that keeps the name; - is standard output")
    copy.add_argument("-f", "--force", action="store_true", help="replace a file that is there")

    promote = _command(
        commands,
        "promote",
        "make chosen files of a branch those of its parent, or of another workspace",
        "tclone promote --dry-run desk-clone-0 /home/user/project",
        "tclone promote desk-clone-0 /home/user/project /etc/hosts",
        "tclone promote --to desk-clone-1 desk-clone-0 /home/user/notes.txt",
    )
    _workspace(promote)
    promote.add_argument("paths", nargs="+", metavar="PATH", help="absolute; with a directory all that is in it")
    promote.add_argument("--to", default="parent", metavar="WS", help="the workspace that they go to, of the same image (default: the parent)")
    promote.add_argument("-f", "--force", action="store_true", help="also replace what the other side changed since the two parted")
    promote.add_argument("--dry-run", action="store_true", help="tell what would be done, and do nothing")
    promote.add_argument("--json", action="store_true", help="print JSON")

    shell = _command(commands, "shell", "open a shell in a workspace", "tclone shell desk")
    shell.add_argument("-u", "--user", metavar="USER", help="be this user (default: root)")
    _workspace(shell)

    logs = _command(commands, "logs", "print what a workspace's processes wrote to its console", "tclone logs -f desk")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    logs.add_argument("-n", "--tail", type=values.positive, default=200, metavar="N", help="start with the last N lines (default 200)")
    _workspace(logs)


def _image_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    image = _command(commands, "image", "build, list, import and remove images")
    actions = image.add_subparsers(dest="action", metavar="ACTION", required=True)
    build_image = _command(actions, "build", "build an image from its recipe unless it is there", "tclone image build webtop-xfce")
    build_image.add_argument("name", type=values.workspace_name, metavar="NAME", help="a folder of images/: webtop-xfce, workspace")
    _json(build_image)
    _json(_command(actions, "ls", "list images"))
    remove = _command(actions, "rm", "remove images that no workspace uses", "tclone image rm workspace")
    remove.add_argument("images", type=values.reference, nargs="+", metavar="IMAGE", help="name or digest")
    bring = _command(
        actions, "import", "make an image from an OCI layout directory or a root filesystem tar", "tclone image import ./layout --name mine",
    )
    bring.add_argument("path", metavar="PATH")
    bring.add_argument("--name", type=values.workspace_name, required=True)
    _json(bring)


def _account_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    user = _command(commands, "user", "add, list, change and remove users of the portal")
    actions = user.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = _command(actions, "add", "add a user and print its one-time password", "tclone user add anna", "tclone user add ben --role admin")
    add.add_argument("user", metavar="USER")
    add.add_argument("--role", choices=("user", "admin"), default="user", help="a user sees its own workspaces (default), an admin all")
    _json(_command(actions, "ls", "list users"))
    for name, summary in (
        ("rm", "remove a user; its workspaces become the admins'"),
        ("passwd", "make a new one-time password for a user, print it, and end its sessions"),
        ("disable", "end a user's sessions, tokens and share links, and let it in no more"),
        ("enable", "let a disabled user in again"),
    ):
        _command(actions, name, summary, f"tclone user {name} anna").add_argument("user", metavar="USER")
    unlock = _command(actions, "no-factor", "remove the second factor of a user who lost it: the password alone is asked for", "tclone user no-factor anna")
    unlock.add_argument("user", metavar="USER")
    role = _command(actions, "role", "make a user an admin, or an admin a user", "tclone user role anna admin")
    role.add_argument("user", metavar="USER")
    role.add_argument("role", choices=("user", "admin"))

    token = _command(commands, "token", "create, list and revoke API tokens")
    actions = token.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = _command(
        actions, "create", "make an API token and print it this once", "tclone token create --name ci --scopes fork", "tclone token create --name robot --user anna --never",
    )
    create.add_argument("--name", required=True, help="what it is for")
    create.add_argument("--user", default="admin", help="whose it is: it never has more rights than this user (default: admin)")
    create.add_argument("--scopes", type=values.words, default=["read"], metavar="S,…", help="read, control, fork, admin (default: read)")
    create.add_argument("--days", type=values.positive, default=30, metavar="N", help="expires after N days (default: 30)")
    create.add_argument("--never", action="store_true", help="does not expire")
    create.add_argument("--form", choices=("tclone", "e2b"), default="tclone", help="how it is written; e2b: as E2B's clients want their keys (E2B_API_KEY)")
    _json(create)
    _json(_command(actions, "ls", "list API tokens"))
    revoke = _command(actions, "revoke", "revoke API tokens; what they have open is closed within a second", "tclone token revoke tok-0123456789abcdef")
    revoke.add_argument("tokens", nargs="+", metavar="ID")

    mcp = _command(
        commands, "mcp", "serve the Model Context Protocol on stdin and stdout, before a portal here or elsewhere", "tclone mcp --token-file ~/.config/tclone/token --ca ca.pem",
    )
    mcp.add_argument("--url", metavar="URL", help="the portal's address (TCLONE_URL, or https://tclone.localhost:8443, the port of TCLONE_PORTAL_PORT)")
    mcp.add_argument("--token-file", metavar="FILE", help="holds an API token, and nobody else can read it (TCLONE_TOKEN_FILE; TCLONE_TOKEN has the token itself)")
    mcp.add_argument("--ca", metavar="FILE", help="certificate of the portal's authority, as `tclone ca --pem` prints it (TCLONE_CA, or those of the system)")
