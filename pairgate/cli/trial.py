"""`try`: the numbers of servers that run already, as a table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, note, printable, table

if TYPE_CHECKING:
    from pairgate.app.trial import ArmSpeed, Row, Trial
    from pairgate.domain.evidence import Estimate, Missing


@click.command(
    "try",
    epilog="Example: pairgate try --endpoint http://pair:8000 --baseline http://target:8000 "
    "--requests log.jsonl --concurrency 1,8,32",
)
@click.option("--endpoint", required=True, metavar="URL", help="A vLLM server with a draft.")
@click.option("--baseline", metavar="URL", help="One with the same target and no draft.")
@click.option(
    "--requests",
    "source",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A log of requests, as for `slice create`.",
)
@click.option(
    "--concurrency",
    default="1,8",
    show_default=True,
    metavar="N,N,…",
    help="How many requests are in flight.",
)
@click.option(
    "--limit", default=64, show_default=True, type=click.IntRange(1), help="At most N requests."
)
@click.option(
    "--arrivals",
    type=click.FloatRange(0, min_open=True),
    metavar="SCALE",
    help="Also an open loop at the log's arrival times, multiplied by SCALE.",
)
@json_option
def try_(
    endpoint: str,
    baseline: str | None,
    source: Path,
    concurrency: str,
    limit: int,
    arrivals: float | None,
    as_json: bool,
) -> None:
    """Measure two servers that already run.

    Nothing is registered and nothing of it is evidence. Keep other users away meanwhile.
    """
    from pairgate.app.trial import TrialOptions, try_servers
    from pairgate.cli.progress import progress_display
    from pairgate.cli.setup import _numbers

    options = TrialOptions(
        endpoint=endpoint,
        baseline=baseline,
        concurrencies=tuple(sorted(set(_numbers(concurrency)))),
        n_requests=limit,
        arrival_scale=arrivals,
    )
    with progress_display() as progress:
        found = try_servers(source, options, progress=progress)
    if as_json:
        return echo_json(found)
    _show(found)
    note("not evidence: `pairgate evaluate` measures for the gate")
    return None


def _show(found: Trial) -> None:
    rate = found.rate.value.replace("_", " ")
    alone = f", baseline {found.baseline_version}" if found.baseline_version else ""
    click.echo(f"server      vLLM {found.version}{alone}, model {printable(found.model)}")
    click.echo(f"requests    {found.n_requests}, {found.n_failed} answers failed or excluded")
    if found.first_error:
        click.echo(f"            first: {printable(found.first_error)}")
    if found.n_uncounted:
        click.echo(
            f"            {found.n_uncounted} ended by a stop string: the server gives no counts"
        )
    click.echo(f"acceptance  {_interval(found.acceptance)} ({rate})")
    click.echo(f"length      {_interval(found.acceptance_length)} tokens per draft step")
    if found.histogram:
        shares = "  ".join(f"{n}: {share:.0%}" for n, share in enumerate(found.histogram))
        click.echo(f"accepted    {shares} of the draft steps")
    else:
        click.echo("accepted    no counts per request: one at a time, by the server's counters")
    click.echo()
    table(
        ("load", "", "TTFT p50", "p95 ms", "ms/token", "tokens/s", "speedup"),
        [line for row in found.rows for line in _lines(row)],
    )
    closed = [row for row in found.rows if row.load and row.without_draft]
    if closed:
        from pairgate.review.performance import crossover

        click.echo()
        click.echo(crossover([str(row.load) for row in closed], [row.speedup for row in closed]))


def _lines(row: Row) -> list[tuple[str, ...]]:
    load = f"concurrency {row.load}" if row.load else "arrivals"
    ratio = f"×{_interval(row.speedup)}" if row.load and row.without_draft else ""
    lines = [(load, "with draft", *_cells(row.with_draft), ratio)]
    if row.without_draft is not None:
        lines.append(("", "without draft", *_cells(row.without_draft), ""))
    return lines


def _cells(arm: ArmSpeed) -> tuple[str, ...]:
    values = (arm.ttft_p50, arm.ttft_p95, arm.tpot_p50, arm.tokens_per_s)
    return tuple("none" if math.isnan(v) else f"{v:,.1f}" for v in values)


def _interval(value: Estimate | Missing) -> str:
    from pairgate.domain.evidence import Missing

    if isinstance(value, Missing):
        return f"not measured: {value.reason}"
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"
