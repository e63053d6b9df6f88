"""Models under a prefix of an object store."""

from __future__ import annotations

from pathlib import Path

from pairgate.domain.pair import check_relative_path
from pairgate.errors import IntegrityError, NotFound, Refused
from pairgate.remotefiles import RemoteFile, Seen, download, list_names, look
from pairgate.sources.model import MAX_DOCUMENT_BYTES, Allowed, Source, SourceFile
from pairgate.sources.selection import DOCUMENTS, INDEX, matches, select


def from_objects(spec: str, allowed: Allowed, scratch: Path, *, by_reference: bool) -> Source:
    """Download the files under a URL to the empty folder `scratch`, or all but the weights.

    Raises `NotFound` when nothing is there, `Unavailable` when the store does not answer.
    """
    origin = spec.rstrip("/")
    names = list_names(origin)
    if not names:
        raise NotFound(
            f"there are no files under {spec}",
            hint="give the prefix that holds config.json and the safetensors weights",
        )
    fetched = {
        name: _fetch(origin, name, scratch, at_most=MAX_DOCUMENT_BYTES)
        for name in names
        if matches(name, (*DOCUMENTS, INDEX))
    }
    selection = select(scratch, names, allowed)
    stay = selection.weights if by_reference else ()
    taken = tuple(p for p in selection.paths if p not in stay)
    files = tuple(fetched.get(name) or _fetch(origin, name, scratch) for name in taken)
    kept = tuple(_referenced(origin, name) for name in stay)
    return Source(
        spec=spec,
        origin=origin,
        files=(*files, *kept),
        flags=selection.flags,
        warnings=selection.warnings,
    )


def _seen(origin: str, name: str) -> Seen:
    check_relative_path(name)
    seen = look(f"{origin}/{name}")
    if seen is None:
        raise IntegrityError(f"{origin}/{name} vanished while it was read")
    return seen


def _fetch(origin: str, name: str, scratch: Path, *, at_most: int | None = None) -> SourceFile:
    seen = _seen(origin, name)
    if at_most is not None and seen.size > at_most:
        raise Refused(f"{name} has {seen.size} bytes; only weights may have more than {at_most}")
    path = scratch / name
    path.parent.mkdir(parents=True, exist_ok=True)
    download(seen.uri, path, seen.size)
    if path.stat().st_size != seen.size:
        raise IntegrityError(f"{seen.uri} changed while it was read")
    return SourceFile(path=name, location=path, size=seen.size, sha256=seen.sha256)


def _referenced(origin: str, name: str) -> SourceFile:
    seen = _seen(origin, name)
    location = RemoteFile(uri=seen.uri, size=seen.size)
    return SourceFile(
        path=name, location=location, size=seen.size, sha256=seen.sha256, reference=seen
    )
