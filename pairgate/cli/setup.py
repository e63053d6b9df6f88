"""`init`: a home and a first line."""

from __future__ import annotations

from pathlib import Path

import click

from pairgate.cli.output import workspace
from pairgate.errors import InvalidInput


@click.command(
    epilog="Example: pairgate init code-assistant --slice held-out.jsonl --concurrency 1,8,32"
)
@click.argument("line", required=False)
@click.option(
    "--policy",
    metavar="PRESET|FILE",
    help="The line's policy: default, strict, exploratory, or a file (a new line: default).",
)
@click.option(
    "--slice",
    "slice_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A log of requests that becomes the line's held-out slice.",
)
@click.option(
    "--concurrency",
    metavar="N,N,…",
    help="The concurrencies that matter to you, for the profile native-cpu (a new line: 1,8).",
)
@click.pass_context
def init(
    ctx: click.Context,
    line: str | None,
    policy: str | None,
    slice_file: Path | None,
    concurrency: str | None,
) -> None:
    """Make a home and a first line.

    Run again it completes what is missing and changes nothing that is set.
    """
    from pairgate.app import setup

    numbers = None if concurrency is None else _numbers(concurrency)
    ws = workspace(ctx, create=True)
    done = setup.init(ws, line, policy=policy, slice_source=slice_file, concurrencies=numbers)
    click.echo(f"home      {ws.home}")
    if done.head is None:
        return click.echo("next      pairgate init LINE")
    word = "made" if done.created else "exists"
    click.echo(f"line      {line} ({word})")
    click.echo(f"policy    {done.head.policy_digest}")
    click.echo(f"profile   {done.head.profile_digest}")
    none = f"none yet: pairgate init {line} --slice FILE"
    click.echo(f"slice     {done.head.slice_digest or none}")
    if done.imported is not None:
        from pairgate.cli.slice_tables import show_report

        show_report(done.imported.record.report, done.imported.row.domains)
    click.echo(f"next      pairgate register {line} --target DIR --draft DIR -k 4")


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts):
        raise InvalidInput(
            f"--concurrency {text!r} is not a list of positive whole numbers",
            hint="write e.g. 1,8,32",
        )
    return tuple(map(int, parts))
