"""`push` and `pull`: pairs to a registry, and into the folder of a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pairgate.cli.output import echo_json, json_option, note, workspace
from pairgate.cli.progress import byte_display
from pairgate.domain.pair import VersionRef

if TYPE_CHECKING:
    from pairgate.app.transfer import Pulled

plain_http_option = click.option(
    "--plain-http/--no-plain-http",
    default=None,
    help="Talk to the registry without TLS (default: only to one on this machine).",
)


@click.command(
    epilog="Example: pairgate push code-assistant@3 oci://registry.example/pairs/code:v3"
)
@click.argument("version", metavar="LINE@REF")
@click.argument("reference", metavar="OCI")
@plain_http_option
@json_option
@click.pass_context
def push(
    ctx: click.Context, version: str, reference: str, plain_http: bool | None, as_json: bool
) -> None:
    """Send a version to an OCI registry.

    Blobs that are there already are skipped; the digest there is the pair's digest. OCI is
    oci://HOST[:PORT]/REPOSITORY[:TAG]. Credentials come from the docker config, or from
    PAIRGATE_OCI_USERNAME and PAIRGATE_OCI_PASSWORD.
    """
    from pairgate.app import transfer
    from pairgate.transport.reference import parse_oci

    to = parse_oci(reference)
    with byte_display() as progress:
        done = transfer.push(
            workspace(ctx), VersionRef.parse(version), to, plain_http=plain_http, progress=progress
        )
    if as_json:
        echo_json(
            {
                "version": str(done.version),
                "pair_digest": done.version.pair_digest,
                "reference": done.reference,
                "n_uploaded": done.n_uploaded,
                "n_skipped": done.n_skipped,
                "uploaded_bytes": done.uploaded_bytes,
            }
        )
        return
    note(f"{done.n_uploaded} blobs sent ({done.uploaded_bytes / 1e6:,.1f} MB), "
         f"{done.n_skipped} were there")  # fmt: skip
    click.echo(f"{done.version}  {done.reference}")


@click.command(epilog="Example: pairgate pull code-assistant@production --to served")
@click.argument("what", metavar="LINE@REF|OCI")
@click.option(
    "--to",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A new or empty folder, or one that pull made; gets target/, draft/ and pair.json.",
)
@click.option("--link", is_flag=True, help="Link to the store's files in place of copying them.")
@plain_http_option
@json_option
@click.pass_context
def pull(
    ctx: click.Context, what: str, to: Path, link: bool, plain_http: bool | None, as_json: bool
) -> None:
    """Materialise a version in a folder and verify it.

    Run it again after a promotion: DIR is switched to the new version in one step, and nothing is
    done when it is current. OCI is oci://HOST[:PORT]/REPOSITORY with :TAG or @sha256:DIGEST, or
    oci-layout:DIR; it needs no home.
    """
    from pairgate.app import transfer
    from pairgate.transport.reference import is_reference, parse_reference

    with byte_display() as progress:
        if is_reference(what):
            if link:
                raise click.UsageError("--link needs a version in the store", ctx)
            done = transfer.pull_artifact(
                parse_reference(what), to, plain_http=plain_http, progress=progress
            )
        else:
            ref = VersionRef.parse(what)
            done = transfer.pull(workspace(ctx), ref, to, link=link, progress=progress)
    _print_pulled(done, what, to, as_json)


def _print_pulled(done: Pulled, what: str, to: Path, as_json: bool) -> None:
    name = str(done.version) if done.version else what
    if as_json:
        echo_json(
            {
                "version": str(done.version) if done.version else None,
                "pair_digest": done.pair.digest,
                "folder": str(to),
                "changed": done.changed,
                "flags": done.pair.flags,
            }
        )
        return
    if done.pair.flags:
        note(f"flags: {', '.join(done.pair.flags)}")
    if not done.changed:
        note(f"{to} holds it already")
    click.echo(f"{name}  {done.pair.digest}  {to}")
