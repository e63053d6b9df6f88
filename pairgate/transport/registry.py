"""One repository of an OCI registry (distribution-spec 1.1): manifests and blobs, streamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from pairgate.domain.canonical import sha256_digest
from pairgate.domain.pair import MANIFEST_MEDIA_TYPE
from pairgate.errors import IntegrityError, InvalidInput, NotFound
from pairgate.transport.http import RegistryHttp, said

if TYPE_CHECKING:
    import requests

    from pairgate.transport.reference import OciReference

MAX_MANIFEST_BYTES = 4 << 20  # what the distribution-spec asks a registry to take at least
_CHUNK_BYTES = 1 << 20


class RemoteRepository:
    """The repository that a reference names. What it sends is hashed here or by the caller."""

    def __init__(
        self,
        reference: OciReference,
        *,
        environ: Mapping[str, str],
        plain_http: bool | None = None,
    ) -> None:
        self.reference = reference
        self._http = RegistryHttp(reference, plain_http=plain_http, environ=environ)
        self._root = f"{self._http.root}{reference.repository}"

    def __str__(self) -> str:
        return str(self.reference)

    def manifest(self) -> bytes:
        """The bytes of the manifest that the reference names.

        Raises `NotFound`, and `IntegrityError` when they have another digest than was asked for
        or announced.
        """
        name = self.reference.digest or self.reference.tag
        if name is None:
            raise InvalidInput(
                f"{self.reference} names a repository, not an artifact",
                hint="add :TAG or @sha256:DIGEST",
            )
        response = self._http.request(
            "GET", f"{self._root}/manifests/{name}", headers={"Accept": MANIFEST_MEDIA_TYPE}
        )
        if response.status_code == 404:
            raise NotFound(f"there is no {self.reference}{said(response)}")
        if response.status_code != 200:
            raise self._http.failed(response, f"the manifest of {self.reference}")
        data = b"".join(self._body(response, MAX_MANIFEST_BYTES + 1))
        if len(data) > MAX_MANIFEST_BYTES:
            raise IntegrityError(f"the manifest of {self.reference} is larger than 4 MiB")
        announced = response.headers.get("Docker-Content-Digest", "")
        wanted = self.reference.digest or (announced if announced.startswith("sha256:") else None)
        if wanted is not None and sha256_digest(data) != wanted:
            raise IntegrityError(
                f"the manifest of {self.reference} should be {wanted}, and what came is "
                f"{sha256_digest(data)}",
                hint="something between here and the registry changes it; nothing was kept",
            )
        return data

    def blob(self, digest: str, size: int) -> Iterator[bytes]:
        """What the registry sends as that blob, at most one chunk beyond `size` bytes.

        A body that breaks off is asked for again from there, while each answer brings something.
        Ends early when the registry has no more to give: the caller counts and hashes.
        """
        n_received = 0
        while True:
            before = n_received
            for chunk in self._blob_from(digest, n_received, size):
                n_received += len(chunk)
                yield chunk
            if n_received >= size or n_received == before:
                return

    def has_blob(self, digest: str, size: int) -> bool:
        """Whether the registry says that it has the blob in this size."""
        response = self._http.request("HEAD", self._blob_url(digest))
        response.close()
        if response.status_code not in (200, 404):
            raise self._http.failed(response, f"whether it has {digest}")
        length = response.headers.get("Content-Length", str(size))
        return response.status_code == 200 and length == str(size)

    def upload(self, digest: str, data: BinaryIO, size: int) -> None:
        """Send a blob in one streamed request; the registry compares it with the digest.

        Raises `IntegrityError` when the registry finds other bytes.
        """
        started = self._http.request("POST", f"{self._root}/blobs/uploads/")
        location = started.headers.get("Location")
        if started.status_code != 202 or not location:
            raise self._http.failed(started, "the start of an upload")
        started.close()
        done = self._http.request(
            "PUT",
            _with_digest(urljoin(f"{self._root}/", location), digest),
            headers={"Content-Type": "application/octet-stream"},
            data=data if size else b"",  # an empty file would be sent as chunks of unknown length
        )
        if done.status_code == 400:
            raise IntegrityError(f"the registry did not accept the bytes of {digest}{said(done)}")
        if done.status_code not in (201, 204):
            raise self._http.failed(done, f"the upload of {digest}")
        done.close()

    def put_manifest(self, data: bytes, name: str) -> None:
        """Store the manifest as it is, under a tag or its digest.

        Raises `IntegrityError` when the registry then has another digest for it.
        """
        response = self._http.request(
            "PUT",
            f"{self._root}/manifests/{name}",
            headers={"Content-Type": MANIFEST_MEDIA_TYPE},
            data=data,
        )
        if response.status_code != 201:
            raise self._http.failed(response, f"the manifest {name}")
        response.close()
        stored = response.headers.get("Docker-Content-Digest", sha256_digest(data))
        if stored != sha256_digest(data):
            raise IntegrityError(
                f"{self._http.host} stored the manifest {sha256_digest(data)} as {stored}",
                hint="this registry rewrites manifests; use another one",
            )

    def _blob_url(self, digest: str) -> str:
        return f"{self._root}/blobs/{digest}"

    def _blob_from(self, digest: str, n_received: int, size: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={n_received}-"} if n_received else {}
        response = self._http.request("GET", self._blob_url(digest), headers=headers)
        if response.status_code == 404:
            raise IntegrityError(
                f"the registry lists {digest} but does not have it{said(response)}"
            )
        if response.status_code == 416:  # it has no more than it sent before
            response.close()
            return
        if response.status_code not in (200, 206):
            raise self._http.failed(response, f"the blob {digest}")
        n_known = n_received if response.status_code == 200 else 0  # it sends all of it again
        for chunk in self._body(response, n_known + size - n_received + 1):
            yield chunk[n_known:]
            n_known = max(0, n_known - len(chunk))

    def _body(self, response: requests.Response, limit: int) -> Iterator[bytes]:
        """The body in chunks, until `limit` bytes are reached or it breaks off."""
        from urllib3.exceptions import HTTPError, IncompleteRead

        n_read = 0
        try:
            # Not iter_content: it loses what came of the chunk in which the body breaks off.
            while n_read < limit:
                chunk = response.raw.read1(_CHUNK_BYTES, decode_content=False)
                if not chunk:
                    return
                n_read += len(chunk)
                yield chunk
        except HTTPError as error:
            # Too short a body is the caller's to judge; a connection lost without a byte is not.
            if n_read == 0 and not isinstance(error.__cause__, IncompleteRead):
                raise self._http.unreachable(error) from error
        finally:
            response.close()


def _with_digest(url: str, digest: str) -> str:
    parts = urlsplit(url)
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("digest", digest)])
    return urlunsplit(parts._replace(query=query))
