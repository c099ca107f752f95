"""What commands of the parser are made of, for all of its parts."""

from __future__ import annotations

import argparse

from engine.cli import values

Commands = argparse._SubParsersAction  # the type that add_subparsers gives, which has no public name


class Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the layout of examples, and gives options room for their names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)


def command(group: "Commands[argparse.ArgumentParser]", name: str, summary: str, *examples: str) -> argparse.ArgumentParser:
    """One command with its line in the list and its own help."""
    shown = "examples:\n" + "\n".join(f"  {example}" for example in examples) if examples else None
    return group.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".", epilog=shown, formatter_class=Help, allow_abbrev=False)


def json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def workspace(parser: argparse.ArgumentParser, metavar: str = "WS") -> None:
    """The one workspace that a command is about."""
    parser.add_argument("workspace", type=values.reference, metavar=metavar, help="id or name of a workspace")
