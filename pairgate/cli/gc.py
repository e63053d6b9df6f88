"""`gc`: delete what no root reaches."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, note, table, workspace

if TYPE_CHECKING:
    from pairgate.app.gc import Collected

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _duration(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    """`90d`, `36h`, `15m`, `30s` or `0`."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", value)
    if found is None and value != "0":
        raise click.BadParameter(f"{value!r} is no duration; write for example 90d, 36h, 15m or 0")
    return timedelta(0) if found is None else timedelta(**{_UNITS[found[2]]: float(found[1])})


@click.command(
    epilog="Example: pairgate gc --dry-run\n\n"
    "Example: pairgate gc --grace 36h --retention 30d --audit-retention 2557d"
)
@click.option("--dry-run", is_flag=True, help="Say what a run would do now, and change nothing.")
@click.option(
    "--grace",
    callback=_duration,
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="How long something must have been condemned before it is deleted.",
)
@click.option(
    "--retention",
    callback=_duration,
    default="90d",
    show_default=True,
    metavar="DURATION",
    help="How long unprotected versions, evidence and slices are kept after their last use.",
)
@click.option(
    "--audit-retention",
    callback=_duration,
    default="3650d",
    show_default=True,
    metavar="DURATION",
    help="How long the evidence, traces and slices of decisions are kept.",
)
@json_option
@click.pass_context
def gc(
    ctx: click.Context,
    dry_run: bool,
    grace: timedelta,
    retention: timedelta,
    audit_retention: timedelta,
    as_json: bool,
) -> None:
    """Delete what nothing needs any more, after a grace period.

    One run condemns what no root reaches; a later one, after the grace, deletes it unless it is
    reachable again. Production, previous, pinned, disabled and withdrawn versions are never
    collected. Ends with 14 and deletes nothing when anything is missing or damaged.
    """
    from pairgate.app.gc import GcOptions, collect

    options = GcOptions(
        grace=grace, retention=retention, audit_retention=audit_retention, dry_run=dry_run
    )
    done = collect(workspace(ctx), options)
    if as_json:
        return echo_json(asdict(done) | {"n_bytes_deleted": done.n_bytes_deleted})
    _print(done)


def _print(done: Collected) -> None:
    groups = (
        ("delete" if done.dry_run else "deleted", done.deleted),
        ("spared", done.spared),
        ("pardon" if done.dry_run else "pardoned", done.pardoned),
        ("condemn" if done.dry_run else "condemned", done.condemned),
        ("waiting", done.waiting),
    )
    rows = [
        (does, t.kind.value, t.name, t.n_bytes or "") for does, things in groups for t in things
    ]
    if rows:
        table(("what", "kind", "name", "bytes"), rows)
    n, size = len(done.deleted), done.n_bytes_deleted
    would = "would be " if done.dry_run else ""
    note(
        f"{n} things of {size} bytes {would}deleted, {len(done.condemned)} {would}condemned, "
        f"{len(done.pardoned)} {would}pardoned, {len(done.waiting)} wait for the end of the grace"
    )
