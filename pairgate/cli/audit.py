"""`audit`: the history, verified, its head for safe keeping elsewhere, and a report of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pairgate.app import audit as use_cases
from pairgate.cli.output import echo_json, json_option, note, workspace
from pairgate.cli.times import from_time, until_time
from pairgate.errors import IntegrityError


@click.group(epilog="Example: pairgate audit verify && pairgate audit head >> heads.txt")
def audit() -> None:
    """Verify the history; export its head; report all decisions."""


@audit.command(
    epilog="Example: pairgate audit verify code-assistant\n\n"
    "Example: pairgate audit verify --head heads.txt"
)
@click.argument("line", required=False)
@click.option(
    "--head",
    "--heads",
    "given",
    multiple=True,
    metavar="FILE|HEAD",
    help="What `audit head` or promote printed before, or a file of such lines: finds a cut-off "
    "tail too.",
)
@json_option
@click.pass_context
def verify(ctx: click.Context, line: str | None, given: tuple[str, ...], as_json: bool) -> None:
    """Check every hash, head, trigger and document. Ends with 14 when something is wrong."""
    exported = tuple(head for text in given for head in use_cases.read_heads(text))
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


@audit.command(
    epilog="Example: pairgate audit report code-assistant --since 2026-01-01 --format csv\n\n"
    "Example: pairgate audit report --format html --out audit.html"
)
@click.argument("line", required=False)
@click.option("--since", metavar="TIME", callback=from_time, help="From this time on (ISO 8601).")
@click.option("--until", metavar="TIME", callback=until_time, help="Up to this time (ISO 8601).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "html"]),
    default="csv",
    show_default=True,
    help="CSV has one row per decision; HTML also says whether the history adds up.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write to this file instead of stdout.",
)
@json_option
@click.pass_context
def report(
    ctx: click.Context,
    line: str | None,
    since: str | None,
    until: str | None,
    form: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """All decisions of a line, or of all: who, on what evidence, why.

    Ends with 14, after the report was written, when the history does not add up.
    """
    from pairgate.app.auditreport import as_csv, as_html, audit_report

    made = audit_report(workspace(ctx), line, since=since, until=until)
    if as_json:
        echo_json(asdict(made))
    else:
        text = as_csv(made) if form == "csv" else as_html(made)
        if out is None:
            click.echo(text, nl=False)
        else:
            with out.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
            note(f"{len(made.rows)} decisions written to {out}")
    for problem in made.audited.problems:
        note(problem)
    if made.audited.problems:
        raise IntegrityError(
            f"the history does not add up: {len(made.audited.problems)} problems",
            hint="compare with a backup and with the exported heads",
        )
