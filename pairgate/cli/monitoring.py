"""`monitoring`: files for Prometheus and Grafana."""

from __future__ import annotations

import click

from pairgate.cli.output import workspace


@click.command(
    epilog="Example: pairgate monitoring code-assistant --selector '{job=\"vllm\"}' > rules.yaml"
)
@click.argument("line")
@click.option(
    "--format",
    "form",
    type=click.Choice(["prometheus", "grafana"]),
    default="prometheus",
    show_default=True,
    help="Alert rules, or a dashboard.",
)
@click.option("--selector", metavar="TEXT", default="", help="Which series, as {job=…}.")
@click.option("--margin", metavar="X", default=0.05, show_default=True, help="As for watch.")
@click.option("--floor", metavar="X", type=float, help="As for watch.")
@click.pass_context
def monitoring(
    ctx: click.Context, line: str, form: str, selector: str, margin: float, floor: float | None
) -> None:
    """Alert rules and a dashboard with this line's thresholds.

    The rules look at the series of the servers themselves; two of them at what `pairgate watch
    --export` writes. Write them anew after a promotion: the thresholds are the version's.
    """
    from pairgate.app.monitoring import grafana_dashboard, prometheus_rules
    from pairgate.app.monitoring import monitoring as monitored
    from pairgate.app.watch import Expectation

    found = monitored(workspace(ctx), line, Expectation(margin=margin, floor=floor), selector)
    write = prometheus_rules if form == "prometheus" else grafana_dashboard
    click.echo(write(found), nl=False)
