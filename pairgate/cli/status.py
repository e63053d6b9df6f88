"""`status`, `history`, `show`: reading commands; they import neither NumPy nor the evidence."""

from __future__ import annotations

from dataclasses import asdict

import click

from pairgate.app.inspect import LineStatus, head_at, line_statuses, version_detail
from pairgate.cli.output import echo_json, json_option, table, workspace
from pairgate.domain.pair import VersionRef


@click.command(
    epilog="Example: pairgate status code-assistant --json\n\n"
    "Example: pairgate status code-assistant --at 2026-11-30T12:00:00Z"
)
@click.argument("line", required=False)
@click.option("--at", metavar="TIME", help="Where the line stood at this time (ISO 8601, UTC).")
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
    if entry.overridden:
        click.echo("  ! production was promoted with an override, without a PASS")
    for warning in entry.warnings:
        click.echo(f"  ! {warning}")
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


@click.command(epilog="Example: pairgate history code-assistant --overrides")
@click.argument("line")
@click.option("--since", metavar="TIME", help="Only decisions from this time on (ISO 8601, UTC).")
@click.option("--until", metavar="TIME", help="Only decisions up to this time (ISO 8601, UTC).")
@click.option("--overrides", is_flag=True, help="Only promotions without a PASS.")
@json_option
@click.pass_context
def history(
    ctx: click.Context,
    line: str,
    since: str | None,
    until: str | None,
    overrides: bool,
    as_json: bool,
) -> None:
    """The decisions of a line."""
    ws = workspace(ctx)
    ws.registry.head(line)
    rows = ws.registry.decisions(line, since=since, until=until)
    if overrides:
        rows = [d for d in rows if d.override]
    if as_json:
        return echo_json([asdict(d) for d in rows])
    table(
        ("#", "at", "decision", "production", "previous", "by", "reason"),
        [
            (
                d.sequence,
                d.at[:19],
                f"{d.kind}{' (override)' if d.override else ''}",
                d.production if d.production is not None else "none",
                d.previous if d.previous is not None else "none",
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
        f"draft {decoding.draft_sampling}, compute dtype {decoding.compute_dtype}"
    )
    for model in detail.pair.models:
        a = model.architecture
        size = sum(f.size for f in model.files)
        click.echo(
            f"  {model.role:<9} {a.class_name}, {a.n_parameters / 1e6:.1f} M parameters, "
            f"{a.n_layers} layers, vocabulary {a.vocab_size}, {size / 1e6:.1f} MB"
        )
    for flag in detail.pair.flags:
        click.echo(f"  ! allowed on purpose: {flag}")
    if detail.newest is None:
        return click.echo(f"  not evaluated; run: pairgate evaluate {detail.version}")
    _print_evidence(ws, detail, report)


def _print_evidence(ws: object, detail: object, report: bool) -> None:
    from pairgate.app.review import terminal_report, terminal_summary

    newest = detail.newest  # type: ignore[attr-defined]
    text = terminal_report if report else terminal_summary
    click.echo("")
    click.echo(text(ws, newest.evaluation, newest.verdict))  # type: ignore[arg-type]
