"""What the `slice` commands print for people; counts, never texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pairgate.cli.output import note, table

if TYPE_CHECKING:
    from pairgate.app.slice_checks import SliceCheck, SliceSize
    from pairgate.app.slice_plan import SlicePlan
    from pairgate.app.slices import CreatedSlice, SliceStatus
    from pairgate.traffic.leaks import LeakReport
    from pairgate.traffic.report import ImportReport


def show_created(made: CreatedSlice) -> None:
    """What `slice create` made, and what it left out."""
    word = "new" if made.created else "known before"
    click.echo(f"slice     {made.row.name} ({word})")
    click.echo(f"digest    {made.row.digest}")
    if made.replaced is not None:
        note(f"{made.row.name} stood for {made.replaced} until now; that revision stays stored")
    show_report(made.record.report, made.row.domains)
    show_leaks(made.record.leaks)
    if made.record.expires_at is not None:
        click.echo(f"expires   {made.record.expires_at}")


def show_report(report: ImportReport, domains: tuple[tuple[str, int], ...]) -> None:
    """Records read, kept and left out by reason; requests of each domain."""
    n_left = report.n_read - report.n_kept
    click.echo(f"records   {report.n_read} read = {report.n_kept} kept + {n_left} left out")
    if report.n_other_lines:
        click.echo(f"          and {report.n_other_lines} blank or other lines")
    rows = [(left.n, left.reason, left.examples) for left in report.left_out]
    rows += [(noticed.n, f"note: {noticed.note}", noticed.examples) for noticed in report.noticed]
    rows += [(named.n, f"note: sets {named.name}", ()) for named in report.unsupported]
    if rows:
        click.echo()
        table(
            ("n", "reason", "first"),
            [(n, why, f"{x[0].place}  {x[0].detail}" if x else "") for n, why, x in rows],
        )
    kept = dict(domains)
    click.echo()
    table(
        ("domain", "usable", "in the slice"),
        [(usable.name, usable.n, kept.get(usable.name, 0)) for usable in report.usable],
    )


def show_leaks(leaks: LeakReport | None) -> None:
    """Prompts that stand in the training text, if it was searched."""
    if leaks is None:
        return
    click.echo()
    click.echo(
        f"leaks     {len(leaks.leaks)} of {leaks.n_checked} prompts stand in the training text "
        f"({leaks.n_training_words} words); {leaks.n_too_short} too short to tell"
    )
    for leak in leaks.leaks[:10]:
        click.echo(f"          {leak.request_id}  {leak.share:.0%} of its windows")
    if leaks.leaks:
        note("a draft trained on these prompts looks better on them than it is (--drop-leaks)")


def show_check(found: SliceCheck) -> None:
    """The slice beside a fresh log, row by row, and what has shifted."""
    click.echo(f"slice     {found.row.name}  {found.row.digest}")
    click.echo(f"log       {found.log.n_read} records, {found.log.n_faulty} of them faulty")
    click.echo()
    table(
        ("compared", "domain", "slice n", "log n", "shift", "p"),
        [
            (
                s.what,
                s.domain,
                s.n_slice,
                s.n_log,
                "too few" if s.distance is None else f"{s.distance:.3f}",
                "" if s.p_value is None else f"{s.p_value:.2g}",
            )
            for s in found.shifts
        ],
    )
    click.echo()
    for warning in found.warnings:
        click.echo(f"! {warning}")
    if not found.n_compared:
        click.echo(
            "! too few requests to compare lengths and temperatures (30 of a domain in both)"
        )
    elif not found.warnings:
        click.echo(f"no shift beyond {found.threshold:g}: the slice still looks like the traffic")


def show_size(found: SliceSize) -> None:
    """How many requests decide at which distance from the floor."""
    click.echo(f"one-sided alpha {found.alpha:g}, power {found.power:g}; {found.assumption};")
    click.echo("normal approximation for independent requests, so count sessions, not turns")
    click.echo()
    table(
        ("distance from the floor", "requests per domain"),
        [(f"{needed.distance:g}", needed.n) for needed in found.needed],
    )
    if found.domains:
        click.echo()
        table(
            ("domain", "requests", "spread", "decides from"),
            [(d.domain, d.n, f"{d.sd:.3f}", f"{d.distance:.3f}") for d in found.domains],
        )


def show_plan(found: SlicePlan) -> None:
    """How many requests each domain needs, and the time of the acceptance pass over them."""
    click.echo(
        f"policy {found.policy} at its first attempt: one-sided alpha {found.alpha:g}, "
        f"power {found.power:g}; means and spreads of the pilot {found.pilot[:19]}"
    )
    click.echo("simulated with the betting bound on the request mean, looked at every request\n")
    table(
        ("domain", "acceptance", "spread", "threshold", "requests"),
        [
            (
                d.domain,
                f"{d.mean:.3f}",
                f"{d.sd:.3f}",
                f"{d.threshold:.3f}",
                "over 20,000" if d.n is None else d.n,
            )
            for d in found.domains
        ],
    )
    if found.n_requests is not None and found.hours is not None:
        click.echo(
            f"\n{found.n_requests} requests, {found.request_s:.3f} s each in the pilot: "
            f"{found.hours:.2f} hours of that machine for the acceptance pass"
        )


def texts_state(status: SliceStatus) -> str:
    """Whether the texts are there, purged, or until when they may be used."""
    record = status.record
    if record is not None and record.purged_at is not None:
        return f"purged {record.purged_at[:10]}"
    if record is not None and record.expires_at is not None:
        return f"{status.texts} (until {record.expires_at[:10]})"
    return status.texts
