"""Pairs on the move: `push`, `pull`, and registering what another registry or tool holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.actor import current_actor
from pairgate.app.fetch import fetch_file, fetch_pair, open_artifact
from pairgate.app.register import register_artifact, require_present
from pairgate.app.storing import byte_progress, scratch_folder
from pairgate.app.switch import Content, switch
from pairgate.domain.pair import FileEntry, ModelRef, Pair
from pairgate.errors import IntegrityError, InvalidInput, Refused

if TYPE_CHECKING:
    from pairgate.app.register import Registered
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import PairVersion, VersionRef
    from pairgate.domain.release import Actor
    from pairgate.ports import ArtifactSource, Progress
    from pairgate.sources import Allowed, Source
    from pairgate.store.streams import OnBytes
    from pairgate.transport.reference import OciReference, Reference
    from pairgate.transport.registry import RemoteRepository


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """`reference` names the pair in the registry by digest."""

    version: PairVersion
    reference: str
    n_uploaded: int
    n_skipped: int
    uploaded_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """`changed` is false when the folder held the pair already. `version` is None for a pair that
    came from elsewhere than the store."""

    pair: Pair
    changed: bool
    version: PairVersion | None = None


def push(
    ws: Workspace,
    ref: VersionRef,
    reference: OciReference,
    *,
    plain_http: bool | None = None,
    progress: Progress | None = None,
) -> Pushed:
    """Send a version to an OCI registry: the blobs that it lacks, then the stored manifest as it
    is. The digest there is the pair's digest here.

    Raises `IntegrityError` for blobs that are missing or damaged here, or refused there;
    `Unavailable` when the registry cannot be reached or lets us not in.
    """
    from pairgate.store.blobs import pair_blobs
    from pairgate.transport.registry import RemoteRepository

    version = ws.registry.version(ref)
    version.require_files()
    pair = ws.registry.pair(version.pair_digest)
    if reference.digest not in (None, pair.digest):
        raise InvalidInput(
            f"{reference} names another pair than {version}, which is {pair.digest}",
            hint="give a tag, or leave the digest out",
        )
    require_present(ws, pair)
    remote = RemoteRepository(reference, environ=ws.environ, plain_http=plain_http)
    sizes = pair_blobs(pair)
    del sizes[pair.digest]  # the manifest goes last, another way
    on_bytes = byte_progress(progress, "pushing", sum(sizes.values()))
    sent = []
    for digest, size in sizes.items():
        if not remote.has_blob(digest, size):
            _upload(ws, remote, digest, size)
            sent.append(size)
        if on_bytes:
            on_bytes(size)
    remote.put_manifest(ws.blobs.read(pair.digest), reference.tag or pair.digest)
    return Pushed(
        version=version,
        reference=str(reference.at(pair.digest)),
        n_uploaded=len(sent),
        n_skipped=len(sizes) - len(sent),
        uploaded_bytes=sum(sent),
    )


def pull(
    ws: Workspace,
    ref: VersionRef,
    to: Path,
    *,
    link: bool = False,
    progress: Progress | None = None,
) -> Pulled:
    """Make the folder `to` hold a version's files, as target/, draft/ and pair.json, hashing what
    is written; it is switched in one step when all of it is right (see `app/switch.py`).

    `link` makes symbolic links to the store's read-only blobs in place of copies.
    Raises `InvalidInput` for a folder that holds something else, `IntegrityError` for damaged
    blobs, `Unavailable` when it cannot be written.
    """
    version = ws.registry.version(ref)
    version.require_files()
    pair = ws.registry.pair(version.pair_digest)
    require_present(ws, pair)
    on_bytes = byte_progress(progress, "pulling", _file_bytes(pair))

    def place(entry: FileEntry, path: Path) -> None:
        if link:
            path.symlink_to(_kept(ws, entry))
        else:
            ws.blobs.copy_out(entry.sha256, path)
        if on_bytes:
            on_bytes(entry.size)

    changed = switch(to, Content(pair=pair, place=place, linked=link))
    return Pulled(pair=pair, changed=changed, version=version)


def pull_artifact(
    reference: Reference,
    to: Path,
    *,
    environ: Mapping[str, str] = os.environ,
    plain_http: bool | None = None,
    progress: Progress | None = None,
) -> Pulled:
    """`pull` straight from a registry or an OCI layout: needs neither home nor database.

    Files that `to` holds already in another version are copied there, not fetched. Raises what
    `pull` raises, and `Refused` for a pair whose flags hide what its files are.
    """
    source = open_artifact(reference, environ=environ, plain_http=plain_http)
    pair = fetch_pair(source)
    on_bytes = byte_progress(progress, "pulling", _file_bytes(pair))

    def place(entry: FileEntry, path: Path) -> None:
        fetch_file(source, entry, path, on_bytes)

    def check(folder: Path) -> None:
        for model in pair.models:
            _check_names(model, folder / model.role, _as_flagged(model))

    return Pulled(pair=pair, changed=switch(to, Content(pair=pair, place=place, check=check)))


def register_from(
    ws: Workspace,
    line: str,
    reference: Reference,
    *,
    allow_custom_code: bool = False,
    allow_pickle: bool = False,
    plain_http: bool | None = None,
    actor: Actor | None = None,
    progress: Progress | None = None,
) -> Registered:
    """Register a whole pair that lies elsewhere; it keeps its digest.

    It is checked like one from local folders: nothing that its config says of the models is
    believed. Blobs that the store has are hashed and not fetched. Raises what `register` raises,
    and `IntegrityError` for an artifact that is not what it says.
    """
    from pairgate.sources import Allowed

    ws.registry.head(line)
    source = open_artifact(reference, environ=ws.environ, plain_http=plain_http)
    pair = fetch_pair(source)
    allowed = Allowed(custom_code=allow_custom_code, pickle=allow_pickle)
    on_bytes = byte_progress(progress, "fetching", _file_bytes(pair))
    origin = _origin(reference, pair)

    def bring() -> dict[str, Source]:
        _store_documents(ws, source, pair, allowed, on_bytes)
        ws.blobs.sweep()
        for model in pair.models:
            for entry in model.files:
                _store_blob(ws, source, entry, on_bytes)
        return {m.role: _stored_source(ws, m, str(reference), origin) for m in pair.models}

    return register_artifact(ws, line, pair, bring, actor or current_actor(ws), progress)


def _kept(ws: Workspace, entry: FileEntry) -> Path:
    """The verified blob in the home's own store; one in the cache may go away."""
    ws.blobs.verify(entry.sha256)
    path = ws.blobs.fetch(entry.sha256, entry.size)
    if not path.is_relative_to(ws.home / "store"):
        raise InvalidInput(
            f"{entry.path} is not kept in {ws.home / 'store'}, so that nothing can link to it",
            hint="pull without --link",
        )
    return path


def _upload(ws: Workspace, remote: RemoteRepository, digest: str, size: int) -> None:
    with ws.blobs.fetch(digest, size).open("rb") as blob:
        try:
            remote.upload(digest, blob, size)
        except IntegrityError:
            ws.blobs.verify(digest)  # raises when the damage is on this side
            raise


def _store_documents(
    ws: Workspace, source: ArtifactSource, pair: Pair, allowed: Allowed, on_bytes: OnBytes | None
) -> None:
    """Small files first, in a folder of their own: what is refused by its names, its code or its
    index never reaches the store."""
    with scratch_folder(ws) as folder:
        for model in pair.models:
            for entry in _documents(model):
                path = folder / model.role / entry.path
                path.parent.mkdir(parents=True, exist_ok=True)
                fetch_file(source, entry, path, on_bytes)
            _check_names(model, folder / model.role, allowed)
        for model in pair.models:
            for entry in _documents(model):
                ws.blobs.add_file(folder / model.role / entry.path)


def _documents(model: ModelRef) -> list[FileEntry]:
    from pairgate.sources import MAX_DOCUMENT_BYTES, is_weights

    documents = [entry for entry in model.files if not is_weights(entry.path)]
    for entry in documents:
        if entry.size > MAX_DOCUMENT_BYTES:
            raise Refused(
                f"{entry.path} of the {model.role} has {entry.size} bytes; only weights may have "
                f"more than {MAX_DOCUMENT_BYTES}"
            )
    return documents


def _check_names(model: ModelRef, folder: Path, allowed: Allowed) -> None:
    from pairgate.sources import check_files

    flags = check_files(folder, [entry.path for entry in model.files], allowed)
    if sorted(flags) != list(model.flags):
        raise Refused(
            f"the {model.role} says of itself {list(model.flags)}, and its files say {list(flags)}"
        )


def _as_flagged(model: ModelRef) -> Allowed:
    """What the pair's document shows to everybody."""
    from pairgate.sources import CUSTOM_CODE, PICKLE, Allowed

    return Allowed(custom_code=CUSTOM_CODE in model.flags, pickle=PICKLE in model.flags)


def _store_blob(
    ws: Workspace, source: ArtifactSource, entry: FileEntry, on_bytes: OnBytes | None
) -> None:
    """Fetch the blob unless it is here undamaged."""
    from pairgate.sources import is_weights

    try:
        ws.blobs.verify(entry.sha256)
    except IntegrityError:
        chunks = source.blob(entry.sha256, entry.size)
        ws.blobs.add_stream(chunks, digest=entry.sha256, size=entry.size, on_bytes=on_bytes)
    else:
        if on_bytes and is_weights(entry.path):  # documents were counted when they came
            on_bytes(entry.size)


def _stored_source(ws: Workspace, model: ModelRef, spec: str, origin: str) -> Source:
    from pairgate.sources import Source, SourceFile

    files = tuple(
        SourceFile(
            path=entry.path,
            location=ws.blobs.fetch(entry.sha256, entry.size),
            size=entry.size,
            sha256=entry.sha256,
        )
        for entry in model.files
    )
    return Source(spec=spec, origin=origin, files=files, flags=model.flags, warnings=())


def _origin(reference: Reference, pair: Pair) -> str:
    """The reference by digest, and a folder by its absolute path."""
    from pairgate.transport.reference import LayoutReference, OciReference

    if isinstance(reference, OciReference):
        return str(reference.at(pair.digest))
    return str(LayoutReference(folder=reference.folder.absolute(), digest=pair.digest))


def _file_bytes(pair: Pair) -> int:
    return sum(entry.size for model in pair.models for entry in model.files)
