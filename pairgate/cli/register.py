"""`register`, `pull` and `verify`: pairs into the store, and out of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, is_terminal, json_option, note, workspace
from pairgate.domain.pair import Method, VersionRef
from pairgate.errors import IntegrityError, InvalidInput

if TYPE_CHECKING:
    from pairgate.app.register import Registered
    from pairgate.ports import Progress


@click.command(
    epilog="Example: pairgate register code-assistant --target models/target "
    "--draft models/draft -k 4"
)
@click.argument("line")
@click.option("--target", required=True, metavar="SRC", help="A folder, or hf://org/name@revision.")
@click.option("--draft", metavar="SRC", help="The draft or head; the same kinds of source.")
@click.option(
    "--method",
    type=click.Choice([m.value for m in Method]),
    help="How tokens are proposed (default: draft_model with --draft, none without).",
)
@click.option(
    "-k", "--k", "k", type=int, metavar="K", help="Draft length: tokens per round (default 4)."
)
@click.option(
    "--draft-sampling",
    type=click.Choice(["sampled", "greedy"]),
    default="sampled",
    show_default=True,
    help="Draw proposals from the draft's distribution, or take its best token.",
)
@click.option(
    "--compute-dtype",
    default="auto",
    show_default=True,
    metavar="DTYPE",
    help="auto is the checkpoint's on a GPU and float32 on a CPU.",
)
@click.option(
    "--speculative-config",
    metavar="JSON|@FILE",
    help="A serving engine's speculative config, kept verbatim.",
)
@click.option("--allow-custom-code", is_flag=True, help="Store code files; recorded for ever.")
@click.option("--allow-pickle", is_flag=True, help="Store pickled weights; recorded for ever.")
@json_option
@click.pass_context
def register(
    ctx: click.Context,
    line: str,
    target: str,
    draft: str | None,
    method: str | None,
    k: int | None,
    draft_sampling: str,
    compute_dtype: str,
    speculative_config: str | None,
    allow_custom_code: bool,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """Store a pair as the next version of a line.

    Files are copied, hashed and checked; the same content again is the same version.
    """
    from pairgate.app import register as app

    with _byte_display() as progress:
        done = app.register(
            workspace(ctx),
            line,
            target=target,
            draft=draft,
            method=Method(method) if method else None,
            k=k,
            draft_sampling=draft_sampling,
            compute_dtype=compute_dtype,
            speculative_config=_text_or_file(speculative_config),
            allow_custom_code=allow_custom_code,
            allow_pickle=allow_pickle,
            progress=progress,
        )
    for warning in done.warnings:
        note(f"warning: {warning}")
    if as_json:
        echo_json(
            {
                "version": str(done.version),
                "created": done.created,
                "pair_digest": done.version.pair_digest,
                "target_digest": done.version.target_digest,
                "decoding": done.pair.decoding,
                "flags": done.pair.flags,
                "warnings": done.warnings,
            }
        )
    else:
        _print_registered(done)


def _print_registered(done: Registered) -> None:
    word = "registered" if done.created else "exists already"
    click.echo(f"{done.version}  {word}")
    click.echo(f"pair      {done.version.pair_digest}")
    for model in done.pair.models:
        a = model.architecture
        size = sum(f.size for f in model.files)
        click.echo(
            f"{model.role:<8}  {a.model_type}, {a.n_parameters / 1e6:,.1f} M parameters, "
            f"{a.dtype}, {size / 1e6:,.1f} MB in {len(model.files)} files"
        )
    decoding = done.pair.decoding
    click.echo(f"method    {decoding.method}, K = {decoding.num_speculative_tokens}")
    if done.pair.flags:
        click.echo(f"flags     {', '.join(done.pair.flags)}")
    click.echo(f"next      pairgate gate {done.version}")


@click.command(epilog="Example: pairgate pull code-assistant@production --to served/")
@click.argument("version", metavar="LINE@REF")
@click.option(
    "--to",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A new or empty folder; gets target/, draft/ and pair.json.",
)
@click.pass_context
def pull(ctx: click.Context, version: str, to: Path) -> None:
    """Materialise a version in a folder and verify it."""
    from pairgate.app import register as app

    pulled = app.pull(workspace(ctx), VersionRef.parse(version), to)
    click.echo(f"{pulled}  {pulled.pair_digest}  {to}")


@click.command(epilog="Example: pairgate verify code-assistant@production")
@click.argument("version", metavar="LINE@REF")
@json_option
@click.pass_context
def verify(ctx: click.Context, version: str, as_json: bool) -> None:
    """Hash the stored files of a version again.

    Ends with exit code 14 when something is wrong.
    """
    from pairgate.app import register as app

    ws = workspace(ctx)
    found = ws.registry.version(VersionRef.parse(version))
    pair = ws.registry.pair(found.pair_digest)
    with _byte_display() as progress:
        result = app.verify_pair(ws, pair, progress=progress)
    if as_json:
        echo_json(
            {
                "version": str(found),
                "pair_digest": found.pair_digest,
                "verified_at": result.at,
                "problem": result.problem,
            }
        )
    if result.problem:
        raise IntegrityError(
            f"{found}: {result.problem}",
            hint="register the same files again: that repairs the store without a new version",
        )
    if not as_json:
        n_files = sum(len(m.files) for m in pair.models)
        click.echo(f"{found}  {n_files} files match their digests")


def _text_or_file(value: str | None) -> str | None:
    """The option's own text, or the content of the file behind an @."""
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"--speculative-config {value}: {error}") from error


@contextmanager
def _byte_display() -> Iterator[Progress | None]:
    """A bar of bytes on a terminal; nothing when piped."""
    if not is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.progress import TransferSpeedColumn as SpeedColumn

    text, left = TextColumn("{task.description}"), TimeRemainingColumn(compact=True)
    columns = (text, BarColumn(bar_width=20), DownloadColumn(), SpeedColumn(), left)
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("storing", total=None)

        def update(stage: str, done: int, total: int, note: str) -> None:
            bars.update(task, description=stage, completed=done, total=total)

        yield update
