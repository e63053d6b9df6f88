"""Pairs that lie elsewhere: an artifact becomes a `Pair` only if it is what pairgate writes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairgate.domain.pair import ARTIFACT_TYPE, FileEntry, Pair
from pairgate.errors import IntegrityError, InvalidInput
from pairgate.store.streams import OnBytes, receive

if TYPE_CHECKING:
    from pairgate.ports import ArtifactSource
    from pairgate.transport.reference import Reference

_MAX_CONFIG_BYTES = 16 << 20


def open_artifact(
    reference: Reference, *, environ: Mapping[str, str], plain_http: bool | None = None
) -> ArtifactSource:
    """The artifact behind a reference; nothing is read yet. `plain_http` None is "only on this
    machine"."""
    from pairgate.transport.layout import LayoutFolder
    from pairgate.transport.reference import LayoutReference
    from pairgate.transport.registry import RemoteRepository

    if isinstance(reference, LayoutReference):
        return LayoutFolder(reference)
    return RemoteRepository(reference, environ=environ, plain_http=plain_http)


def fetch_pair(source: ArtifactSource) -> Pair:
    """Read manifest and config. The manifest must be, byte for byte, the one of the pair that its
    config describes, so that no layer, title or size is there that the config does not name.

    Raises `InvalidInput` for an artifact that is no pair, `IntegrityError` for a damaged one.
    """
    manifest = source.manifest()
    try:
        document = json.loads(manifest)
        kind, config = document.get("artifactType"), document["config"]
        digest, size = str(config["digest"]), int(config["size"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{source} is not an OCI manifest of an artifact: {error}") from None
    if kind != ARTIFACT_TYPE:
        raise InvalidInput(
            f"{source} is not a pair: its artifactType is {kind!r:.80}",
            hint=f"`pairgate push` writes artifacts of type {ARTIFACT_TYPE}",
        )
    if not 0 <= size <= _MAX_CONFIG_BYTES:
        raise InvalidInput(f"the config of {source} claims to have {size} bytes")
    data = io.BytesIO()
    receive(source.blob(digest, size), data, digest=digest, size=size)
    pair = read_pair(data.getvalue())
    if pair.manifest() != manifest:
        raise IntegrityError(
            f"the manifest of {source} is not the one of the pair that its config describes",
            hint="another tool wrote it anew: push the pair again, or copy it with skopeo",
        )
    return pair


def read_pair(config: bytes) -> Pair:
    """The pair of a config blob. Raises `InvalidInput` or `IntegrityError`."""
    from pairgate.store.codec import load_json

    try:
        document: dict[str, Any] = json.loads(config)
        schema = document.pop("schema")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"the pair document is not what pairgate writes: {error}") from None
    if schema != 1:
        raise InvalidInput(
            f"the pair document has schema {schema!r:.20}, and this pairgate reads 1",
            hint="install a newer pairgate",
        )
    try:
        return load_json(Pair, json.dumps(document))
    except IntegrityError as error:
        raise IntegrityError(f"the pair document is wrong: {error.message}") from None


def fetch_file(
    source: ArtifactSource, entry: FileEntry, path: Path, on_bytes: OnBytes | None = None
) -> None:
    """Write one file of a pair to a new, synced file. Raises `IntegrityError` for other bytes;
    what was written of them is removed."""
    try:
        with path.open("xb", buffering=0) as file:
            receive(
                source.blob(entry.sha256, entry.size),
                file,
                digest=entry.sha256,
                size=entry.size,
                on_bytes=on_bytes,
            )
            os.fsync(file.fileno())
    except IntegrityError:
        path.unlink(missing_ok=True)
        raise
