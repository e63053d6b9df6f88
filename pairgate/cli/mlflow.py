"""`pairgate mlflow`: repair and check the mirror, and how to look at it."""

from __future__ import annotations

import shlex
from dataclasses import asdict

import click

from pairgate.cli.output import echo_json, json_option, note, workspace
from pairgate.errors import Conflict, InvalidInput


@click.group("mlflow", epilog="Example: pairgate mlflow sync --all")
def mlflow_() -> None:
    """The MLflow mirror.

    One run per evaluation, one model version per pair, and aliases.

    It is written after every evaluation, promotion and rollback. By default it lives in the home;
    PAIRGATE_MLFLOW_TRACKING_URI names a server, PAIRGATE_MLFLOW=off turns it off.
    """


@mlflow_.command(epilog="Example: pairgate mlflow sync code-assistant")
@click.argument("line", required=False)
@click.option("--all", "all_lines", is_flag=True, help="Every line.")
@click.pass_context
def sync(ctx: click.Context, line: str | None, all_lines: bool) -> None:
    """Repair what was missed: runs, model versions, aliases. Changes nothing that is right."""
    from pairgate.app.review import sync_mlflow

    if (line is None) is not all_lines:
        raise InvalidInput("name a LINE or --all, not both", hint="pairgate mlflow sync --all")
    ws = workspace(ctx)
    for name in [head.line for head in ws.registry.lines()] if line is None else [line]:
        ws.registry.head(name)
        n_evaluations = sync_mlflow(ws, name)
        click.echo(f"{name}: {n_evaluations} evaluations and the aliases are in MLflow")


@mlflow_.command(epilog="Example: pairgate mlflow verify code-assistant")
@click.argument("line")
@json_option
@click.pass_context
def verify(ctx: click.Context, line: str, as_json: bool) -> None:
    """Compare the mirror with the registry: aliases moved by hand, runs or versions deleted.

    Exits with 13 when something differs.
    """
    from pairgate.app.review import mlflow_drift

    found = mlflow_drift(workspace(ctx), line)
    if as_json:
        echo_json([asdict(drift) for drift in found])
    else:
        for drift in found:
            click.echo(str(drift))
        if not found:
            click.echo(f"{line}: MLflow shows what the registry says")
    if found:
        raise Conflict(
            f"MLflow differs from line {line} in {len(found)} places",
            hint=f"the registry is what counts; repair with: pairgate mlflow sync {line}",
        )


@mlflow_.command(epilog="Example: pairgate mlflow ui")
@click.pass_context
def ui(ctx: click.Context) -> None:
    """Print the command that shows the embedded store in a browser."""
    from pairgate.app.review import mlflow_settings
    from pairgate.review.mlflow_client import without_password

    settings = mlflow_settings(workspace(ctx))
    if settings is None:
        raise InvalidInput(
            "there is no MLflow mirror: it is turned off, or mlflow is not installed",
            hint="unset PAIRGATE_MLFLOW, or install it with: pip install 'pairgate[mlflow]'",
        )
    if not settings.embedded:
        return click.echo(without_password(settings.tracking_uri))
    uri = shlex.quote(settings.tracking_uri)
    click.echo(f"mlflow ui --backend-store-uri {uri} --host 127.0.0.1 --port 5000")
    note("then open http://127.0.0.1:5000")
