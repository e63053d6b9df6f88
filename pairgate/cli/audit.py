"""`audit`: the history, verified, and its head for safe keeping elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pairgate.app import audit as use_cases
from pairgate.cli.output import echo_json, json_option, workspace
from pairgate.errors import IntegrityError


@click.group(epilog="Example: pairgate audit verify && pairgate audit head >> heads.txt")
def audit() -> None:
    """Verify the history; export its head."""


@audit.command(
    epilog="Example: pairgate audit verify code-assistant\n\n"
    "Example: pairgate audit verify --heads heads.txt"
)
@click.argument("line", required=False)
@click.option(
    "--heads",
    "heads_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of lines that `audit head` printed before: finds a cut-off tail too.",
)
@json_option
@click.pass_context
def verify(ctx: click.Context, line: str | None, heads_file: Path | None, as_json: bool) -> None:
    """Check every hash, head, trigger and document. Ends with 14 when something is wrong."""
    texts = heads_file.read_text("utf-8").split() if heads_file else []
    exported = tuple(use_cases.parse_head(text) for text in texts)
    found = use_cases.verify(workspace(ctx), line, exported)
    if as_json:
        echo_json(asdict(found))
    else:
        for problem in found.problems:
            click.echo(problem)
    if found.problems:
        raise IntegrityError(
            f"the history does not add up: {len(found.problems)} problems",
            hint="compare with a backup and with the exported heads",
        )
    if not as_json:
        click.echo(f"{found.n_lines} lines, {found.n_decisions} decisions: everything adds up")


@audit.command(epilog="Example: pairgate audit head code-assistant")
@click.argument("line", required=False)
@json_option
@click.pass_context
def head(ctx: click.Context, line: str | None, as_json: bool) -> None:
    """Print LINE:SEQUENCE:HASH of the newest decision of each line."""
    found = use_cases.heads(workspace(ctx), line)
    if as_json:
        return echo_json([asdict(h) for h in found])
    for entry in found:
        click.echo(str(entry))
    return None
