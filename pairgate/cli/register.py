"""`register` and `verify`: pairs into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, note, printable, workspace
from pairgate.cli.progress import byte_display
from pairgate.cli.transfer import plain_http_option
from pairgate.domain.pair import Method, VersionRef
from pairgate.errors import IntegrityError, InvalidInput

if TYPE_CHECKING:
    from pairgate.app.register import Registered


@click.command(
    epilog="Example: pairgate register code-assistant --target models/target "
    "--draft models/draft -k 4"
)
@click.argument("line")
@click.option(
    "--target",
    metavar="SRC",
    help="A folder, hf://org/name@revision or s3://bucket/prefix (default: what a speculators "
    "draft names).",
)
@click.option("--draft", metavar="SRC", help="The draft or head; the same kinds of source.")
@click.option(
    "--reference/--copy",
    default=None,
    help="Leave the target's weights where they are and remember their place and hash (default for "
    "hf:// and s3://), or copy them (default for a folder).",
)
@click.option(
    "--checksums",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Hashes of the target's files as sha256sum writes them; without them, and where the "
    "holder states none, a referenced file is read once.",
)
@click.option(
    "--method",
    type=click.Choice([m.value for m in Method]),
    help="How tokens are proposed (default: draft_model with --draft, none without).",
)
@click.option(
    "-k",
    "--k",
    "k",
    type=int,
    metavar="K",
    help="Draft length: tokens per round (default: what the draft recommends, else 4).",
)
@click.option(
    "--draft-sampling",
    type=click.Choice(["sampled", "greedy"]),
    help="Draw proposals from the draft's distribution (default), or take its best token.",
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
@click.option(
    "--kv-dtype-target",
    metavar="DTYPE",
    help="KV cache of the target, e.g. fp8 (default: the line's serving command, else auto).",
)
@click.option(
    "--kv-dtype-draft",
    metavar="DTYPE",
    help="KV cache of the draft (default: the speculative config, the serving command, auto).",
)
@click.option(
    "--from",
    "from_",
    metavar="OCI",
    help="A whole pair in place of --target, --draft and the decoding settings: "
    "oci://HOST/REPOSITORY:TAG, or oci-layout:DIR.",
)
@plain_http_option
@click.option("--allow-custom-code", is_flag=True, help="Store code files; recorded for ever.")
@click.option("--allow-pickle", is_flag=True, help="Store pickled weights; recorded for ever.")
@json_option
@click.pass_context
def register(
    ctx: click.Context,
    line: str,
    target: str | None,
    draft: str | None,
    reference: bool | None,
    checksums: Path | None,
    method: str | None,
    k: int | None,
    draft_sampling: str | None,
    compute_dtype: str,
    speculative_config: str | None,
    kv_dtype_target: str | None,
    kv_dtype_draft: str | None,
    from_: str | None,
    plain_http: bool | None,
    allow_custom_code: bool,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """Store a pair as the next version of a line.

    Files are copied, hashed and checked; the same content again is the same version.
    """
    from pairgate.app import register as app

    if from_ is not None:
        _print_answer(_registered_from(ctx, line, from_), as_json)
        return
    if target is None and draft is None:
        raise click.UsageError("Missing option '--target' (or '--from').", ctx)
    with byte_display() as progress:
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
            kv_dtype_target=kv_dtype_target,
            kv_dtype_draft=kv_dtype_draft,
            allow_custom_code=allow_custom_code,
            allow_pickle=allow_pickle,
            reference=reference,
            checksums=checksums,
            progress=progress,
        )
    _print_answer(done, as_json)


# What the pair itself says, where it comes from --from.
_DECIDED_BY_THE_PAIR = (
    "target", "draft", "reference", "checksums", "method", "k", "draft_sampling", "compute_dtype",
    "speculative_config", "kv_dtype_target", "kv_dtype_draft",
)  # fmt: skip


def _registered_from(ctx: click.Context, line: str, reference: str) -> Registered:
    from click.core import ParameterSource

    from pairgate.app import transfer
    from pairgate.transport.reference import parse_reference

    for name in _DECIDED_BY_THE_PAIR:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.replace('_', '-')} contradicts --from: the pair there decides it", ctx
            )
    with byte_display() as progress:
        return transfer.register_from(
            workspace(ctx),
            line,
            parse_reference(reference),
            allow_custom_code=ctx.params["allow_custom_code"],
            allow_pickle=ctx.params["allow_pickle"],
            plain_http=ctx.params["plain_http"],
            progress=progress,
        )


def _print_answer(done: Registered, as_json: bool) -> None:
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
                "references": done.references,
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
    click.echo(
        f"method    {decoding.method}, K = {decoding.num_speculative_tokens}, KV cache "
        f"{decoding.kv_dtype_target} / {decoding.kv_dtype_draft}"
    )
    if done.pair.flags:
        click.echo(f"flags     {', '.join(done.pair.flags)}")
    for reference in done.references:
        click.echo(f"stays at  {printable(reference.uri)} (hash: {reference.hashed_by})")
    click.echo(f"next      pairgate gate {done.version}")


@click.command(epilog="Example: pairgate verify code-assistant@production")
@click.argument("version", metavar="LINE@REF")
@json_option
@click.pass_context
def verify(ctx: click.Context, version: str, as_json: bool) -> None:
    """Hash the stored files of a version again.

    Of files that are only referenced, size and version are compared with what was registered.
    Ends with exit code 14 when something is wrong.
    """
    from pairgate.app import register as app

    ws = workspace(ctx)
    found = ws.registry.version(VersionRef.parse(version))
    found.require_files()
    pair = ws.registry.pair(found.pair_digest)
    with byte_display() as progress:
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
        elsewhere = {r.digest for r in ws.blobs.referenced(pair)}
        files = [f for m in pair.models for f in m.files]
        n_unchanged = sum(f.sha256 in elsewhere for f in files)
        click.echo(f"{found}  {len(files) - n_unchanged} files match their digests")
        if n_unchanged:
            click.echo(f"{n_unchanged} referenced files are unchanged where they are")


def _text_or_file(value: str | None) -> str | None:
    """The option's own text, or the content of the file behind an @."""
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"--speculative-config {value}: {error}") from error
