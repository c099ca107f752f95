"""Entry point of `tclone`: parse, run the command, turn errors into one line on stderr and the documented exit status."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from engine import __version__
from engine.cli import guess, output, parser
from engine.config import Config
from engine.errors import EngineError, NotFound

if TYPE_CHECKING:
    from engine.client import EngineClient

_INTERRUPTED = 128 + signal.SIGINT
_BROKEN_PIPE = 128 + signal.SIGPIPE
_WITH_COMMAND = ("exec", "run")

# What speaks to the engine, by the command's name: the module of `engine.cli`, and its function.
_HANDLERS = {
    "attach": "execute.attach",
    "events": "events.events",
    "screenshot": "desktop.screenshot",
    "click": "desktop.click",
    "type": "desktop.type",
    "key": "desktop.key",
    "completion": "completion.names",
    "run": "workspaces.run",
    "fork": "workspaces.fork",
    "ls": "workspaces.ls",
    "inspect": "workspaces.inspect",
    "port": "workspaces.port",
    "stats": "workspaces.stats",
    "pause": "workspaces.pause",
    "resume": "workspaces.resume",
    "rm": "workspaces.rm",
    "exec": "execute.exec_command",
    "cp": "copy.copy",
    "promote": "promote.promote",
    "shell": "execute.shell",
    "logs": "execute.logs",
    "image": "images.dispatch",
}

Handler = Callable[["EngineClient", argparse.Namespace], Awaitable[int]]


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    try:
        given = sys.argv[1:] if argv is None else argv
        status = _machine(given[1:]) if given[:1] == ["vmrun"] and not {"-h", "--help"} & set(given) else _run(_parse(given))
        sys.stdout.flush()
        return status
    except EngineError as error:
        output.error(error.message)
        return error.exit_status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone; without this the interpreter complains once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _machine(words: list[str]) -> int:
    """`tclone vmrun …`, whose words have the grammar of VMware's command."""
    from engine.cli import vmrun

    return vmrun.main(_config(), words)


def _parse(argv: list[str]) -> argparse.Namespace:
    """Parse all up to the first `--` of `exec` and `run`; what follows is the command to run, whatever it looks like."""
    grammar = parser.build()
    rest: list[str] = []
    takes_command = next((word for word in argv if not word.startswith("-")), "") in _WITH_COMMAND
    if takes_command and "--" in argv:
        at = argv.index("--")
        argv, rest = argv[:at], argv[at + 1 :]
    arguments = grammar.parse_args(argv)
    arguments.argv = rest
    if arguments.command == "exec" and not rest:
        grammar.error("exec: give the command after `--`, as in `tclone exec WS -- ls`")
    if arguments.command == "rm" and bool(arguments.workspaces) == arguments.all:
        grammar.error("rm: name workspaces, or give --all")
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    # Each command imports what it needs: asyncio and the engine's client together take 0.2 s of processor time, `--help` 0.05 s.
    config = _config()
    match arguments.command:
        case "up":
            from engine.cli import up

            status = up.up(config, arguments.detach, arguments.port, arguments.supervised, arguments.image)
        case "down":
            from engine.cli import up

            status = up.down(config, arguments.keep)
        case "engine":
            from engine.daemon import main as daemon  # all of the engine, which no other command needs

            status = daemon()
        case "ca":
            from engine.cli import services

            authority = services.authority(config)
            print(authority.path.read_text().strip() if arguments.pem else f"{authority.path}\nSHA-256 {authority.fingerprint}")
            status = 0
        case "passwd":
            from engine.cli import host, services

            host.require_root("passwd")
            print(services.new_password(config))
            status = 0
        case "backup":
            from engine.cli import backup

            status = backup.save(config, arguments.file)
        case "restore":
            from engine.cli import backup

            status = backup.load(config, arguments.file)
        case "completion" if arguments.shell is not None:
            from engine.cli import completion

            print(completion.script(arguments.shell, parser.build()), end="")
            status = 0
        case "user" | "token":
            from engine.cli import accounts

            status = accounts.dispatch(config, arguments)
        case "mcp":
            status = _become_mcp(arguments)
        case _:
            import asyncio

            status = asyncio.run(_with_asyncio(config, arguments))
    return status


def _become_mcp(arguments: argparse.Namespace) -> int:
    """The portal's program takes the place of this one: it serves the client that started us, on our stdin and stdout."""
    options = {"--url": arguments.url, "--token-file": arguments.token_file, "--ca": arguments.ca}
    words = [word for option, value in options.items() if value is not None for word in (option, value)]
    # Started by a client wherever that is: nothing of that directory may be taken for a part of the program (-P).
    os.execv(sys.executable, [sys.executable, "-P", "-m", "portal.mcp", *words])


def _config() -> Config:
    try:
        return Config.from_environment()
    except ValueError:
        raise SystemExit(_usage(f"TCLONE_PORTAL_PORT is not a port: {os.environ.get('TCLONE_PORTAL_PORT')!r}")) from None


def _usage(message: str) -> int:
    output.error(message)
    return 2


async def _with_asyncio(config: Config, arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "doctor":
            from engine.cli import diagnosis

            if arguments.workspace is None:
                return await diagnosis.doctor(config, arguments.json)
            return await _with_engine(config, diagnosis.examine, arguments)
        case "version":
            return await _version(config)
        case name:
            return await _with_engine(config, _handler(name), arguments)


async def _with_engine(config: Config, handler: Handler, arguments: argparse.Namespace) -> int:
    from engine.client import EngineClient

    async with EngineClient(config.socket) as client:
        try:
            return await handler(client, arguments)
        except NotFound as error:
            raise await guess.explained(client, error, arguments) from error


def _handler(name: str) -> Handler:
    """What carries out the command `name`. Only its own module is imported: those of the desktop's actions alone take 0.1 s of processor time."""
    module, function = _HANDLERS[name].split(".")
    handler: Handler = getattr(importlib.import_module(f"engine.cli.{module}"), function)
    return handler


async def _version(config: Config) -> int:
    from engine.client import EngineClient

    print(f"tclone {__version__}")
    try:
        async with EngineClient(config.socket) as client:
            print(f"engine {(await client.health())['version']}")
    except EngineError:
        print("engine not running")
    return 0


if __name__ == "__main__":
    sys.exit(main())
