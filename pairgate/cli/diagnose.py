"""`diagnose`: one cause, one command."""

from __future__ import annotations

import click

from pairgate.cli.output import echo_json, json_option, printable, table, workspace


@click.command(epilog="Example: pairgate diagnose code-assistant --metrics http://a:8000")
@click.argument("line")
@click.option("--metrics", "urls", metavar="URL", multiple=True, help="A server; repeatable "
              "(default: those of the newest look that `watch` took).")  # fmt: skip
@click.option("--prometheus", metavar="URL", help="A Prometheus that collects the servers.")
@click.option("--selector", metavar="TEXT", default="", help="Which of its series, as {job=…}.")
@click.option("--probe", "n_probe", metavar="N", default=50, show_default=True,
              help="Requests of the slice that are sent to one server; 0 sends none.")  # fmt: skip
@click.option("--floor", metavar="X", type=float, help="As for watch.")
@json_option
@click.pass_context
def diagnose(
    ctx: click.Context,
    line: str,
    urls: tuple[str, ...],
    prometheus: str | None,
    selector: str,
    n_probe: int,
    floor: float | None,
    as_json: bool,
) -> None:
    """Why did live acceptance drop?

    Asks in order: is speculation on, is it what was promoted, since when, did the output change,
    draft or traffic, cache. Ends with one cause and one command; changes nothing.
    """
    from pairgate.app.diagnose import diagnose as diagnosed
    from pairgate.app.watch import Expectation, WatchOptions, watched_urls

    ws = workspace(ctx)
    if not urls and prometheus is None:
        urls = watched_urls(ws, line)
    options = WatchOptions(
        urls=urls, prometheus=prometheus, selector=selector, expected=Expectation(floor=floor)
    )
    found = diagnosed(ws, line, options, n_probe=n_probe)
    if as_json:
        return echo_json(
            {"line": line, "version": found.version, "findings": found.findings,
             "cause": found.cause}
        )  # fmt: skip
    table(("question", "", "answer"), [(f.question, f.outcome, f.answer) for f in found.findings])
    click.echo("")
    if found.cause is None:
        return click.echo("no cause found")
    click.echo(f"cause: {printable(found.cause.answer)}")
    click.echo(f"do:    {printable(found.cause.command)}")
