"""Files behind URLs: how their holder names a state of them, and their bytes in parts.

Everything goes through fsspec, so S3 (s3fs), Google Cloud and Azure storage (gcsfs, adlfs) and the
Hugging Face hub are read the same way. `file://` is read without it. A holder that does not answer
is `Unavailable`; a file that is not there is None or `FileNotFoundError`, never the same thing.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pairgate.domain.records import Reference
from pairgate.errors import InvalidInput, MissingExtra, PairgateError, Unavailable

CHUNK_BYTES = 8 << 20
OBJECT_SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss")
HUB_HASH = "LFS sha256 of Hugging Face"
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
_HUB_FILE = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)@(?P<commit>[0-9a-f]+)/(?P<path>.+)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A file as its holder describes it now. `sha256` only where the holder states it itself, for
    the whole content; `hashed_by` then says who; `etag` is empty where there is none."""

    uri: str
    size: int
    version_id: str
    etag: str = ""
    sha256: str | None = None
    hashed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """The bytes of a file at a URL, read in ranges (a `ports.ByteRanges`)."""

    uri: str
    size: int

    def read(self, offset: int, n_bytes: int) -> bytes:
        """At most `n_bytes` from `offset`; one range request."""
        fs, path = filesystem(self.uri)
        n_wanted = max(0, min(n_bytes, self.size - offset))
        with reaching(self.uri), fs.open(path, "rb", cache_type="none", size=self.size) as file:
            file.seek(offset)
            data: bytes = file.read(n_wanted)
        return data


def scheme(url: str) -> str:
    """`s3` of `s3://bucket/key`; '' for a path."""
    return url.partition("://")[0] if "://" in url else ""


def filesystem(url: str, *, patient: bool = True) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it. The client of S3 tries for a minute or
    more when nobody answers; with `patient` false it tries twice.

    Raises `MissingExtra` without the package for its scheme, `InvalidInput` for an unknown one.
    """
    package = _PACKAGES.get(scheme(url), "adlfs")
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtra("fsspec", "s3") from None
    try:
        # Listings are never kept: what others did since is the question.
        hasty = not patient and scheme(url) == "s3"
        options = {"config_kwargs": {"retries": {"max_attempts": 1}}} if hasty else {}
        fs, path = url_to_fs(url, use_listings_cache=False, **options)
        if hasty:
            fs.retries = 1
    except ImportError as error:
        if package == "s3fs":
            raise MissingExtra(package, "s3") from error
        raise Unavailable(
            f"{url} needs the package {package!r}, which is not installed",
            hint=f"install it with: pip install {package}",
        ) from error
    except ValueError as error:
        raise InvalidInput(f"{url!r} cannot be used: {error}") from error
    return fs, path


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """What the holder of `url` raises becomes `Unavailable`; only a missing file stays one."""
    try:
        yield
    except (PairgateError, FileNotFoundError):
        raise
    except Exception as error:  # each implementation brings the exceptions of its own client
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(
            f"{url} cannot be reached: {lines[0]}",
            hint="check the network, the address and the credentials",
        ) from error


def look(uri: str, *, patient: bool = True) -> Seen | None:
    """What is at `uri` now, without reading it; None when there is no such file."""
    if scheme(uri) == "file":
        return _look_local(uri)
    with reaching(uri):
        try:
            if scheme(uri) == "hf":
                return _look_hub(uri)
            fs, path = filesystem(uri, patient=patient)
            if scheme(uri) == "s3":
                return _look_s3(fs, path, uri)
            info = fs.info(path)
        except FileNotFoundError:
            return None
    if info.get("type") != "file":
        return None
    etag = str(info.get("etag") or info.get("ETag") or "").strip('"')
    version = str(info.get("generation") or info.get("version_id") or etag)
    return Seen(uri=uri, size=info["size"], version_id=version, etag=etag)


def problem_of(reference: Reference) -> str:
    """What is wrong with a referenced file as its holder describes it, or ''; reads no content."""
    seen = look(reference.uri, patient=False)
    if seen is None:
        return f"{reference.uri} is gone"
    if seen.size != reference.size:
        return f"{reference.uri} has {seen.size} bytes, {reference.size} were registered"
    if seen.version_id != reference.version_id:
        return (
            f"{reference.uri} changed: it is version {seen.version_id} there, "
            f"{reference.version_id} was registered"
        )
    if seen.sha256 not in (None, reference.digest):
        return f"{reference.uri} has the hash {seen.sha256}, {reference.digest} was registered"
    return ""


def chunks(uri: str, size: int) -> Iterator[bytes]:
    """The content in order, in chunks; as much of it as is there, at most `size` bytes and one."""
    file_: Any
    if scheme(uri) == "file":
        file_ = local_path(uri).open("rb")
    else:
        fs, path = filesystem(uri)
        with reaching(uri):
            file_ = fs.open(path, "rb", cache_type="none")
    with file_:
        n_left = size + 1  # a file that grew must be seen, not read for ever
        while n_left > 0:
            with reaching(uri):
                chunk = file_.read(min(CHUNK_BYTES, n_left))
            if not chunk:
                return
            n_left -= len(chunk)
            yield chunk


def list_names(url: str) -> tuple[str, ...]:
    """Names of the files directly under `url`; none when there are none."""
    fs, path = filesystem(url)
    with reaching(url):
        try:
            listing = fs.ls(path, detail=True)
        except FileNotFoundError:
            return ()
    prefix = path.rstrip("/") + "/"
    names = (str(i["name"]) for i in listing if i["type"] == "file")
    return tuple(sorted(n.removeprefix(prefix) for n in names if n.startswith(prefix)))


def download(uri: str, to: Path, size: int) -> None:
    """Write the content to the new file `to`."""
    with to.open("xb") as file:
        for chunk in chunks(uri, size):
            file.write(chunk)


def local_path(uri: str) -> Path:
    """The path of a file:// URI."""
    return Path(unquote(urlsplit(uri).path))


def _look_local(uri: str) -> Seen | None:
    try:
        found = local_path(uri).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"{uri} cannot be reached: {error.strerror}") from error
    # Any write moves both times; a copy put in its place has another inode.
    version = f"mtime {found.st_mtime_ns} ctime {found.st_ctime_ns} inode {found.st_ino}"
    return Seen(uri=uri, size=found.st_size, version_id=version)


def _look_s3(fs: Any, path: str, uri: str) -> Seen:
    bucket, key, _ = fs.split_path(path)
    head = fs.call_s3("head_object", fs.kwargs, Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    etag = str(head.get("ETag", "")).strip('"')
    version = head.get("VersionId")
    checksum = str(head.get("ChecksumSHA256") or "")
    # Of an upload in parts S3 keeps a hash of hashes, `…-N`, which says nothing about the content.
    whole = checksum and "-" not in checksum and head.get("ChecksumType") != "COMPOSITE"
    return Seen(
        uri=uri,
        size=head["ContentLength"],
        version_id=etag if version in (None, "null") else str(version),
        etag=etag,
        sha256="sha256:" + base64.b64decode(checksum).hex() if whole else None,
        hashed_by="ChecksumSHA256 of S3" if whole else "",
    )


def _look_hub(uri: str) -> Seen | None:
    match = _HUB_FILE.match(uri)
    if not match:
        raise InvalidInput(f"{uri!r} is not hf://org/name@commit/path")
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError:
        raise MissingExtra("huggingface_hub", "native") from None
    try:
        paths = hub.HfApi().get_paths_info(match["repo"], match["path"], revision=match["commit"])
    except errors.GatedRepoError:
        raise  # it exists; whoever asks may not read it
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        return None
    if not paths or not isinstance(paths[0], hub.RepoFile):
        return None
    lfs = paths[0].lfs
    return Seen(
        uri=uri,
        size=paths[0].size,
        version_id=match["commit"],
        sha256=f"sha256:{lfs.sha256}" if lfs else None,
        hashed_by=HUB_HASH if lfs else "",
    )
