"""What commands share: opening the workspace, `--json`, and plain tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from pairgate.app.workspace import Workspace
from pairgate.cli.plain import json_plain, plain

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on stdout, for machines."
)


def workspace(ctx: click.Context, *, create: bool = False) -> Workspace:
    """The workspace that the global options name; closed when the command ends."""
    home, url = ctx.find_root().obj
    opened = Workspace.open(home=home, database_url=url, create=create)
    ctx.call_on_close(opened.close)
    return opened


def echo_json(value: Any) -> None:
    """One JSON document on stdout; dataclasses are written as objects."""
    click.echo(json_plain(json.dumps(value, default=_plain, indent=2, ensure_ascii=False)))


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns on stdout, readable when piped."""
    cells = [[("" if c is None else printable(str(c))) for c in row] for row in rows]
    widths = [max([len(h), *(len(r[i]) for r in cells)]) for i, h in enumerate(headers)]
    for row in [list(headers), *cells]:
        click.echo("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())


def printable(text: str) -> str:
    """Names come from logs of users: control characters are shown, never sent to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def note(message: str) -> None:
    """For people: stderr, so that stdout stays data."""
    click.echo(plain(message), err=True)


def is_terminal() -> bool:
    """Whether notes go to a person's terminal and may be redrawn."""
    return sys.stderr.isatty()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    return str(value)
