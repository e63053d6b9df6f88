"""`watch`: look at live servers, again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import json_option, note, printable, workspace
from pairgate.errors import Unavailable

if TYPE_CHECKING:
    from pairgate.domain.observation import Observation, ReplicaState

_DEGRADED = 10


@click.command(
    epilog="Example: pairgate watch code-assistant --metrics http://a:8000 --metrics http://b:8000"
    "\n\nExample: pairgate watch code-assistant --prometheus http://prom:9090 "
    "--selector '{job=\"vllm\"}' --once"
)
@click.argument("line")
@click.option("--metrics", "urls", metavar="URL", multiple=True, help="A server; repeatable.")
@click.option("--prometheus", metavar="URL", help="A Prometheus that collects the servers.")
@click.option("--selector", metavar="TEXT", default="", help="Which of its series, as {job=…}.")
@click.option("--interval", metavar="SECONDS", type=click.FloatRange(min=0.1), default=15.0,
              show_default=True, help="Pause between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="One look; the next one goes on from it (for cron).")
@click.option(
    "--export",
    metavar="FILE|PORT",
    help="Write Prometheus text to a file at every look, or serve it on a port.",
)
@click.option("--margin", metavar="X", default=0.05, show_default=True,
              help="How far acceptance may lie under the evidence's lower bound.")  # fmt: skip
@click.option("--floor", metavar="X", type=float, help="Test against this number instead.")
@click.option("--alpha", metavar="X", default=0.01, show_default=True,
              help="Chance of ever calling a line degraded that is not.")  # fmt: skip
@click.option("--window", metavar="N", default=200, show_default=True,
              help="Draft steps that make one observation.")  # fmt: skip
@click.option("--hook", is_flag=True, help="On degradation send a message through the outbox.")
@click.option("--keep-watching", is_flag=True, help="Go on after a degradation.")
@json_option
@click.pass_context
def watch(
    ctx: click.Context,
    line: str,
    urls: tuple[str, ...],
    prometheus: str | None,
    selector: str,
    interval: float,
    once: bool,
    export: str | None,
    margin: float,
    floor: float | None,
    alpha: float,
    window: int,
    hook: bool,
    keep_watching: bool,
    as_json: bool,
) -> None:
    """Live acceptance against the evidence of what was promoted.

    Reads the servers' own counters. A sequential test may be looked at as often as one likes; it
    ends the command with 10 when acceptance was lost, or when a server stopped drafting. Nothing
    moves production by itself: `pairgate diagnose LINE` says what to do.
    """
    from pairgate.app.looking import LookRules
    from pairgate.app.watch import Expectation, WatchOptions, observe, send_degradation
    from pairgate.app.watchexport import Exporter

    ws = workspace(ctx)
    options = WatchOptions(
        urls=urls,
        prometheus=prometheus,
        selector=selector,
        expected=Expectation(margin=margin, floor=floor),
        rules=LookRules(alpha=alpha, window_drafts=window),
    )
    exporter = None if export is None else Exporter(export)
    if exporter is not None:
        ctx.call_on_close(exporter.close)
    told, n_looks = False, 0
    while True:
        try:
            made = observe(ws, line, options)
        except Unavailable as error:
            if n_looks == 0:
                raise
            note(f"no look: {error.message}")  # it may come back; a watcher outlives that
            time.sleep(interval)
            continue
        n_looks += 1
        if exporter is not None:
            exporter.show(made)
        _print(made, as_json)
        if made.degraded and hook and not told:
            send_degradation(ws, made)
        told = made.degraded
        if (made.degraded and not keep_watching) or once:
            break
        time.sleep(interval)
    if made.degraded:
        note(f"see what it is with: pairgate diagnose {line}")
        ctx.exit(_DEGRADED)


def _print(made: Observation, as_json: bool) -> None:
    if as_json:
        from pairgate.store.codec import dump_json

        return click.echo(dump_json(made))
    live = _number(made.acceptance_rate)
    promised = made.promised
    click.echo(
        f"{made.at[:19]}  {made.line}@{promised.version}  accepts {live}, promised "
        f"{_number(promised.value)}, floor {promised.floor:.3f}  "
        f"{'DEGRADED' if made.degraded else 'ok'}"
    )
    for replica in made.replicas:
        click.echo(f"  {printable(_replica(replica, promised.pair_digest))}")
    for problem in made.problems:
        click.echo(f"  ! {printable(problem)}")


def _replica(state: ReplicaState, production: str) -> str:
    if state.reading.error:
        return f"{state.reading.replica}  does not answer"
    serves = "a pair that no served name tells"
    if state.pair_digest is not None:
        serves = "production" if state.pair_digest == production else state.pair_digest[:19]
    rate = None if state.window is None else state.window.acceptance_rate
    event = f"  ({state.event})" if state.event else ""
    return f"{state.reading.replica}  {_number(rate)}  serves {serves}{event}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
