"""Writes docs/cli.md from the commands' own help: `make docs`; `--check` only compares."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pairgate.cli import cli

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 88
HEAD = """# Command line

Generated from `pairgate … --help` by `make docs`; a test keeps it current. Data goes to stdout,
notes for people to stderr. Every reading command takes `--json`.

| exit code | meaning |
| --- | --- |
| 0 | done, or already so |
| 1 | unexpected |
| 2 | usage: an option, a file or a name is wrong |
| 10 | verdict FAIL |
| 11 | verdict INCONCLUSIVE |
| 12 | stale or missing evidence |
| 13 | conflict: someone else moved the line |
| 14 | integrity: bytes are missing or differ from their digest |
| 15 | refused: pinned, incompatible, unapproved, unsupported |
| 16 | the database, the engine or an optional package cannot be reached |
| 17 | verdict ERROR: the evaluation is invalid |
"""


def sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """One section per command, depth first, in the order in which help lists them."""
    yield f"{'#' * level} {context.command_path}\n\n```text\n{help_text(command, context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                below = click.Context(child, info_name=name, parent=context)
                yield from sections(child, below, min(level + 1, 4))


def help_text(command: click.Command, context: click.Context) -> str:
    """The help at a fixed width, whatever terminal this runs in."""
    context.terminal_width = context.max_content_width = WIDTH
    return "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())


def page() -> str:
    """The whole of docs/cli.md."""
    context = click.Context(cli, info_name="pairgate", **cli.context_settings)
    return "\n".join([HEAD, *sections(cli, context, 2)])


def main() -> int:
    """0 when the page is (now) current, 1 when `--check` found a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    wanted = page()
    found = PAGE.read_text() if PAGE.exists() else ""
    if found == wanted:
        return 0
    if check:
        lines = difflib.unified_diff(
            found.splitlines(), wanted.splitlines(), "docs/cli.md", "help", lineterm="", n=1
        )
        print("\n".join(lines))
        print("docs/cli.md is not current: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
