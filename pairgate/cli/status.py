"""`status`, `history`, `show`: reading commands; they import neither NumPy nor the evidence."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pairgate.app.inspect import LineStatus, head_at, line_statuses, version_detail
from pairgate.cli.output import echo_json, json_option, printable, table, workspace
from pairgate.cli.times import from_time, until_time
from pairgate.domain.pair import VersionRef
from pairgate.domain.release import Kind

if TYPE_CHECKING:
    from pairgate.domain.observation import Observation


@click.command(
    epilog="Example: pairgate status code-assistant --json\n\n"
    "Example: pairgate status code-assistant --at 2026-11-30T12:00:00Z"
)
@click.argument("line", required=False)
@click.option(
    "--at",
    metavar="TIME",
    callback=until_time,
    help="Where the line stood at this time (ISO 8601, UTC).",
)
@json_option
@click.pass_context
def status(ctx: click.Context, line: str | None, at: str | None, as_json: bool) -> None:
    """Where the lines stand."""
    ws = workspace(ctx)
    if at is not None:
        if line is None:
            raise click.UsageError("--at needs a LINE")
        head = head_at(ws, line, at)
        if as_json:
            return echo_json(head)
        return click.echo(f"{line} at {at}: {_pointers(head)}")
    lines = line_statuses(ws, line)
    if as_json:
        return echo_json([asdict(s) for s in lines])
    if not lines:
        click.echo("no lines yet; make one with: pairgate init LINE")
    for entry in lines:
        _print_line(entry, brief=line is None)


def _pointers(head: object) -> str:
    named = [
        f"{name} {getattr(head, name) if getattr(head, name) is not None else 'none'}"
        for name in ("production", "previous")
    ]
    disabled = getattr(head, "disabled", None)
    return ", ".join([*named, *([f"draft of {disabled} disabled"] if disabled else [])])


def _print_line(entry: LineStatus, *, brief: bool) -> None:
    click.echo(f"{entry.head.line}: {_pointers(entry.head)}")
    if entry.profiles:
        click.echo(f"  on {', '.join(entry.profiles)}")
    if entry.serving_profiles not in ((), entry.profiles):
        click.echo(
            f"  ! production came with {', '.join(entry.serving_profiles)}; the line is set to "
            "other profiles since"
        )
    if entry.overridden:
        click.echo(
            "  ! promoted with an override, without a PASS: " + printable(entry.override_reason)
        )
    for warning in entry.warnings:
        click.echo(f"  ! {printable(warning)}")
    if entry.observed is not None:
        _print_observed(entry.observed)
    for version in entry.versions:
        if version.problem:
            click.echo(f"  ! {entry.head.line}@{version.version}: {printable(version.problem)}")
    if entry.pending_deliveries:
        click.echo(f"  {entry.pending_deliveries} deliveries pending (pairgate outbox deliver)")
    shown = entry.versions[:5] if brief else entry.versions
    if shown:
        table(
            ("  version", "state", "method", "verdict", "evaluated", "pair"),
            [
                (
                    f"  {entry.head.line}@{v.version}",
                    v.state,
                    v.method,
                    v.outcome or "not evaluated",
                    (v.evaluated_at or "")[:19],
                    v.pair_digest[7:19],
                )
                for v in shown
            ],
        )
    if len(shown) < len(entry.versions):
        click.echo(
            f"  … {len(entry.versions) - len(shown)} older (pairgate status {entry.head.line})"
        )
    click.echo("")


def _print_observed(seen: Observation) -> None:
    promised = seen.promised.value
    said = "no evidence" if promised is None else f"promised {promised:.3f}"
    live = seen.acceptance_rate
    found = "nothing yet" if live is None else f"{live:.3f}"
    click.echo(f"  live acceptance {found}, {said} (accepted / proposed, {seen.at[:19]})")
    for problem in seen.problems:
        click.echo(f"  ! {printable(problem)}")


@click.command(epilog="Example: pairgate history code-assistant --overrides")
@click.argument("line")
@click.option(
    "--since",
    metavar="TIME",
    callback=from_time,
    help="Only decisions from this time on (ISO 8601, UTC).",
)
@click.option(
    "--until",
    metavar="TIME",
    callback=until_time,
    help="Only decisions up to this time (ISO 8601, UTC).",
)
@click.option("--overrides", is_flag=True, help="Only promotions without a PASS.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice([kind.value for kind in Kind]),
    multiple=True,
    help="Only decisions of this kind.",
)
@click.option("--by", "actor", metavar="NAME", help="Only decisions of this person or job.")
@json_option
@click.pass_context
def history(
    ctx: click.Context,
    line: str,
    since: str | None,
    until: str | None,
    overrides: bool,
    kinds: tuple[str, ...],
    actor: str | None,
    as_json: bool,
) -> None:
    """The decisions of a line."""
    ws = workspace(ctx)
    ws.registry.head(line)
    rows = ws.registry.decisions(line, since=since, until=until)
    rows = [
        d
        for d in rows
        if (d.override or not overrides)
        and (not kinds or d.kind in kinds)
        and actor in (None, d.actor)
    ]
    if as_json:
        return echo_json([asdict(d) for d in rows])
    labels = {r.digest: str(r) for r in ws.registry.profiles(line)}
    table(
        ("#", "at", "decision", "production", "previous", "profiles", "by", "reason"),
        [
            (
                d.sequence,
                d.at[:19],
                f"{d.kind}{' (override)' if d.override else ''}",
                d.production if d.production is not None else "none",
                d.previous if d.previous is not None else "none",
                ", ".join(labels.get(p, p) for p in (d.profile_digest, *d.profiles) if p),
                f"{d.actor} ({d.identity_source})",
                d.reason,
            )
            for d in rows
        ],
    )


@click.command(
    epilog="Example: pairgate show code-assistant@3 --report\n\n"
    "Example: pairgate show code-assistant@production --json"
)
@click.argument("version")
@click.option("--report", is_flag=True, help="The whole report, for the terminal.")
@json_option
@click.pass_context
def show(ctx: click.Context, version: str, report: bool, as_json: bool) -> None:
    """One version: models, evidence, verdict."""
    ws = workspace(ctx)
    detail = version_detail(ws, VersionRef.parse(version))
    if as_json:
        return echo_json(
            {
                "version": asdict(detail.version),
                "roles": detail.roles,
                "pair": asdict(detail.pair),
                "warnings": detail.warnings,
                "references": [asdict(r) for r in detail.references],
                "evaluations": [asdict(row) for row in detail.evaluations],
                "evaluation": asdict(detail.newest.evaluation) if detail.newest else None,
                "verdict": asdict(detail.newest.verdict) if detail.newest else None,
            }
        )
    decoding = detail.pair.decoding
    click.echo(f"{detail.version} ({detail.roles})")
    click.echo(f"  pair      {detail.version.pair_digest}")
    click.echo(f"  created   {detail.version.created_at[:19]} by {detail.version.created_by}")
    click.echo(
        f"  decoding  {decoding.method}, K = {decoding.num_speculative_tokens}, "
        f"draft {decoding.draft_sampling}, compute dtype {decoding.compute_dtype}, KV cache "
        f"{decoding.kv_dtype_target} / {decoding.kv_dtype_draft}"
    )
    for model in detail.pair.models:
        a = model.architecture
        size = sum(f.size for f in model.files)
        click.echo(
            f"  {model.role:<9} {a.class_name}, {a.n_parameters / 1e6:.1f} M parameters, "
            f"{a.n_layers} layers, vocabulary {a.vocab_size}, {size / 1e6:.1f} MB"
        )
    for reference in detail.references:
        click.echo(f"  at        {printable(reference.uri)} (hash: {reference.hashed_by})")
    for flag in detail.pair.flags:
        click.echo(f"  ! allowed on purpose: {flag}")
    for warning in detail.warnings:
        click.echo(f"  ! {printable(warning)}")
    if detail.newest is None:
        return click.echo(f"  not evaluated; run: pairgate evaluate {detail.version}")
    _print_evidence(ws, detail, report)


def _print_evidence(ws: object, detail: object, report: bool) -> None:
    from pairgate.app.review import terminal_report, terminal_summary

    newest = detail.newest  # type: ignore[attr-defined]
    text = terminal_report if report else terminal_summary
    click.echo("")
    click.echo(text(ws, newest.evaluation, newest.verdict))  # type: ignore[arg-type]
