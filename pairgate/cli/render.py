"""`render`: what serving takes."""

from __future__ import annotations

from pathlib import Path

import click

from pairgate.cli.output import note, workspace
from pairgate.domain.pair import VersionRef


@click.command(
    epilog="Example: pairgate render code-assistant@production --engine vllm --models-dir /models"
)
@click.argument("version", metavar="LINE@REF")
@click.option("--profile", metavar="NAME", help="A profile of the line (default: its own).")
@click.option(
    "--engine",
    type=click.Choice(["vllm", "sglang", "llamacpp", "trtllm"]),
    help="The line's newest profile for this engine.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["args", "env", "json", "helm-values"]),
    default="args",
    show_default=True,
    help="A shell command; an env file; JSON with command, args and env; values for a chart.",
)
@click.option(
    "--models-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where `pairgate pull` put the files on the serving machine; not needed when the weights "
    "are referenced where the engine reads them itself.",
)
@click.pass_context
def render(
    ctx: click.Context,
    version: str,
    profile: str | None,
    engine: str | None,
    form: str,
    models_dir: Path | None,
) -> None:
    """Write the command that serves a version.

    Model, decoding settings and digest come from the version, everything else from the profile.
    The server answers to LINE and to LINE@sha256-DIGEST: the second says which pair is live.
    """
    from pairgate.app.render import render as rendered
    from pairgate.render import formatted

    serve = rendered(
        workspace(ctx),
        VersionRef.parse(version),
        profile=profile,
        engine=engine,
        models_dir=models_dir,
    )
    for text in serve.notes:
        note(f"note: {text}")
    click.echo(formatted(serve, form), nl=False)
