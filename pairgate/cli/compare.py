"""`diff` and `compare`: two versions side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, table, workspace
from pairgate.domain.pair import VersionRef

if TYPE_CHECKING:
    from pairgate.app.compare import Comparison, Paired
    from pairgate.app.diff import FileChange, VersionDiff
    from pairgate.domain.evidence import Estimate, Missing


_N_SHOWN = 60  # characters of a value in the table; --json has all of them


@click.command(
    epilog="Example: pairgate diff code-assistant@2 code-assistant@3\n\n"
    "Example: pairgate diff code-assistant@production chat@production --json"
)
@click.argument("before")
@click.argument("after")
@json_option
@click.pass_context
def diff(ctx: click.Context, before: str, after: str, as_json: bool) -> None:
    """What differs between two versions, of one line or of two.

    Files, configs, tokenizers, decoding settings, evidence and profiles. `compare` shows every
    measurement.
    """
    from pairgate.app.diff import diff as use_case

    found = use_case(workspace(ctx), VersionRef.parse(before), VersionRef.parse(after))
    if as_json:
        return echo_json(asdict(found))
    if found.same_pair:
        click.echo(f"{found.before} and {found.after} are the same pair")
    if found.files:
        table(
            ("file", "", found.before, found.after),
            [(f"{f.role}/{f.path}", f.kind, *_sides(f)) for f in found.files],
        )
        click.echo("")
    parts = ("models", "configs", "tokenizers", "decoding", "evidence", "profiles")
    rows = [(d.part, d.before, d.after) for part in parts for d in getattr(found, part)]
    if rows:
        table(("part", found.before, found.after), [tuple(map(_short, row)) for row in rows])
    if found.comparison is None:
        return click.echo(f"\nmeasurements: {found.evidence_note}")
    click.echo("")
    _print_comparison(found.comparison, found.before, found.after, everything=False)
    return None


def _sides(change: FileChange) -> tuple[str, str]:
    def side(size: int | None, digest: str | None) -> str:
        return "absent" if size is None or digest is None else f"{size} bytes, {digest[7:19]}"

    return (
        side(change.before_size, change.before_digest),
        side(change.after_size, change.after_digest),
    )


def _short(text: str) -> str:
    return text if len(text) <= _N_SHOWN else f"{text[: _N_SHOWN - 1]}…"


@click.command(epilog="Example: pairgate compare code-assistant@production code-assistant@3")
@click.argument("before")
@click.argument("after")
@click.option("--all", "everything", is_flag=True, help="Every breakdown, not only the headline.")
@json_option
@click.pass_context
def compare(ctx: click.Context, before: str, after: str, everything: bool, as_json: bool) -> None:
    """Two versions on the same requests: paired difference, what changed, both measurements.

    Nothing is replayed and nothing judged: it reads the newest evidence of both.
    """
    from pairgate.app.compare import compare as use_case
    from pairgate.app.compare import paired
    from pairgate.app.diff import diff as differences

    ws, refs = workspace(ctx), (VersionRef.parse(before), VersionRef.parse(after))
    found, pairs, changed = use_case(ws, *refs), paired(ws, *refs), _changed(differences(ws, *refs))
    if as_json:
        return echo_json(asdict(found) | {"paired": asdict(pairs), "changed": changed})
    click.echo(f"changed  {', '.join(changed) if changed else 'nothing: the same pair'}")
    _print_paired(pairs)
    return _print_comparison(found, before, after, everything=everything)


def _changed(found: VersionDiff) -> list[str]:
    """Files and settings that are not equal, by name."""
    settings = (*found.models, *found.decoding)
    return [*(f"{f.role}/{f.path}" for f in found.files), *(d.part for d in settings)]


def _print_paired(found: Paired) -> None:
    if not found.differences:
        return click.echo(f"! not paired: {found.reason}\n")
    click.echo("\ntoken acceptance, after less before, by request on the same requests")
    rows = [(str(m.scope), _value(m.value)) for m in found.differences]
    table(("part", f"difference (bounds at {found.alpha:g})"), rows)
    click.echo("")
    return None


def _print_comparison(found: Comparison, before: str, after: str, *, everything: bool) -> None:
    if found.caveat:
        click.echo(f"! {found.caveat}")
    rows = found.rows if everything else [r for r in found.rows if _is_headline(r.name)]
    table(("metric", before, after), [(r.name, _value(r.before), _value(r.after)) for r in rows])


def _is_headline(name: str) -> bool:
    shown = ("token_acceptance.request_mean", "acceptance_length.pooled", "speedup", "fallback")
    return name.startswith(shown) and ".corrected" not in name


def _value(value: Estimate | Missing | None) -> str:
    if value is None:
        return "not measured"
    reason = getattr(value, "reason", None)
    if reason is not None:
        return f"not measured: {reason}"
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}] (n={value.n})"  # type: ignore[union-attr]
