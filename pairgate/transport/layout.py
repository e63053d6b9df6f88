"""An OCI image layout that another tool wrote (image-spec 1.1), read as an artifact's source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairgate.domain.canonical import is_digest, sha256_digest
from pairgate.domain.pair import MANIFEST_MEDIA_TYPE
from pairgate.errors import IntegrityError, InvalidInput, NotFound
from pairgate.localfiles import open_regular
from pairgate.transport.reference import LayoutReference
from pairgate.transport.registry import MAX_MANIFEST_BYTES

_CHUNK_BYTES = 1 << 20


class LayoutFolder:
    """The artifact that a reference names in a local layout."""

    def __init__(self, reference: LayoutReference) -> None:
        self.reference = reference

    def __str__(self) -> str:
        return str(self.reference)

    def manifest(self) -> bytes:
        """The manifest's bytes. Raises `NotFound`, `InvalidInput` when the folder is no layout or
        holds several, `IntegrityError` when the bytes do not have their digest."""
        digest = self.reference.digest or self._only_manifest()
        try:
            data = b"".join(self._read(digest, MAX_MANIFEST_BYTES + 1))
        except NotFound:
            raise NotFound(f"{self.reference.folder} has no manifest {digest}") from None
        if sha256_digest(data) != digest:
            raise IntegrityError(f"the manifest in {self.reference} does not have its digest")
        return data

    def blob(self, digest: str, size: int) -> Iterator[bytes]:
        """What lies there under that digest, at most one chunk beyond `size` bytes."""
        try:
            yield from self._read(digest, size + 1)
        except NotFound:
            raise IntegrityError(f"{self.reference.folder} lacks the blob {digest}") from None

    def _only_manifest(self) -> str:
        path = self.reference.folder / "index.json"
        try:
            with open_regular(path, follow=True) as file:
                index = json.loads(file.read(MAX_MANIFEST_BYTES))
            listed = [_listed(entry) for entry in index["manifests"]]
        except (InvalidInput, ValueError, LookupError, TypeError, RecursionError) as error:
            raise InvalidInput(
                f"{self.reference.folder} is not an OCI image layout: {error}",
                hint="give the folder that holds oci-layout and index.json",
            ) from None
        digests = sorted({digest for digest in listed if digest})
        if len(digests) != 1:
            raise InvalidInput(
                f"{self.reference.folder} holds {len(digests)} manifests: {', '.join(digests[:5])}",
                hint=f"name one of them: {self.reference}@sha256:DIGEST",
            )
        return digests[0]

    def _read(self, digest: str, limit: int) -> Iterator[bytes]:
        with open_regular(self._path(digest), follow=True) as file:
            n_read = 0
            while n_read < limit and (chunk := file.read(_CHUNK_BYTES)):
                n_read += len(chunk)
                yield chunk

    def _path(self, digest: str) -> Path:
        return self.reference.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _listed(entry: dict[str, Any]) -> str | None:
    digest = entry["digest"]
    if entry["mediaType"] != MANIFEST_MEDIA_TYPE or not is_digest(digest):
        return None
    return str(digest)
