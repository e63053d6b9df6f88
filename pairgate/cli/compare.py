"""`diff` and `compare`: two versions side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, table, workspace
from pairgate.domain.pair import VersionRef

if TYPE_CHECKING:
    from pairgate.domain.evidence import Estimate, Missing


@click.command(epilog="Example: pairgate diff code-assistant@2 code-assistant@3")
@click.argument("before")
@click.argument("after")
@json_option
@click.pass_context
def diff(ctx: click.Context, before: str, after: str, as_json: bool) -> None:
    """What differs between two versions."""
    from pairgate.app.compare import diff as use_case

    found = use_case(workspace(ctx), VersionRef.parse(before), VersionRef.parse(after))
    if as_json:
        return echo_json([asdict(d) for d in found])
    if not found:
        return click.echo(f"{before} and {after} are the same pair")
    table(("part", before, after), [(d.part, d.before, d.after) for d in found])


@click.command(epilog="Example: pairgate compare code-assistant@production code-assistant@3")
@click.argument("before")
@click.argument("after")
@click.option("--all", "everything", is_flag=True, help="Every breakdown, not only the headline.")
@json_option
@click.pass_context
def compare(ctx: click.Context, before: str, after: str, everything: bool, as_json: bool) -> None:
    """The measurements of two versions side by side."""
    from pairgate.app.compare import compare as use_case

    found = use_case(workspace(ctx), VersionRef.parse(before), VersionRef.parse(after))
    if as_json:
        return echo_json(asdict(found))
    if found.caveat:
        click.echo(f"! {found.caveat}")
    rows = found.rows if everything else [r for r in found.rows if _is_headline(r.name)]
    table(("metric", before, after), [(r.name, _value(r.before), _value(r.after)) for r in rows])


def _is_headline(name: str) -> bool:
    shown = ("token_acceptance.request_mean", "acceptance_length.pooled", "speedup", "fallback")
    return name.startswith(shown)


def _value(value: Estimate | Missing | None) -> str:
    if value is None:
        return "not measured"
    reason = getattr(value, "reason", None)
    if reason is not None:
        return f"not measured: {reason}"
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}] (n={value.n})"  # type: ignore[union-attr]
