"""The files of a registration: into the store, or left where they are and referenced."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from pairgate.app.workspace import now
from pairgate.domain.pair import FileEntry, ModelRef
from pairgate.domain.records import Reference
from pairgate.errors import IntegrityError, InvalidInput
from pairgate.localfiles import open_regular
from pairgate.remotefiles import chunks, problem_of

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.compat.check import Model
    from pairgate.ports import Progress
    from pairgate.sources import Source, SourceFile
    from pairgate.store.streams import OnBytes

_N_WORKERS = 2
READ_ONCE = "read once at registration"
CHECKSUMS_FILE = "a checksums file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A source whose small files were read once: what was checked is what will be stored."""

    source: Source
    documents: Mapping[str, bytes]
    model: Model

    @property
    def weights(self) -> tuple[SourceFile, ...]:
        return tuple(file for file in self.source.files if file.is_weights)


@contextmanager
def scratch_folder(ws: Workspace) -> Iterator[Path]:
    """Where the files of a remote source lie until they are stored; locked while its process
    lives, so that gc tells it from a left-over."""
    folder = ws.work_dir / "pairs" / f"source-{secrets.token_hex(8)}"
    folder.mkdir(parents=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def open_source(role: str, source: Source) -> Opened:
    """Read the small files and the headers of the weights (of referenced ones by range)."""
    from pairgate.compat.check import read_model

    documents: dict[str, bytes] = {}
    for file in source.files:
        if not file.is_weights:
            with open_regular(_here(file)) as opened:
                documents[file.path] = opened.read(file.size + 1)
            if len(documents[file.path]) != file.size:
                raise IntegrityError(f"{file.path} of the {role} changed while it was read")
    weights = {file.path: file.location for file in source.files if file.is_weights}
    model = read_model(role, documents, weights, source.flags, origin=source.spec)
    return Opened(source=source, documents=documents, model=model)


def with_checksums(source: Source, path: Path) -> Source:
    """The source with the hashes of a file that `sha256sum` wrote; they become promises.

    Raises `InvalidInput` for another format or when it names no file of the source.
    """
    known = _read_checksums(path)
    if not known.keys() & {file.path for file in source.files}:
        raise InvalidInput(
            f"{path} names no file of {source.spec}",
            hint="its names are relative to the model's folder: (cd MODEL && sha256sum *) > FILE",
        )
    files = tuple(_promised(file, known.get(file.path)) for file in source.files)
    return replace(source, files=files)


def _promised(file: SourceFile, sha256: str | None) -> SourceFile:
    if sha256 is None:
        return file
    if file.sha256 not in (None, sha256):
        raise IntegrityError(
            f"{file.path} is {sha256} by the checksums file and {file.sha256} by its source"
        )
    if file.reference is None or file.reference.sha256 is not None:
        return replace(file, sha256=sha256)
    reference = replace(file.reference, sha256=sha256, hashed_by=CHECKSUMS_FILE)
    return replace(file, sha256=sha256, reference=reference)


def _read_checksums(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"--checksums {path}: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        hexadecimal, _, name = line.strip().partition(" ")
        if not name:
            continue
        if len(hexadecimal) != 64 or not set(hexadecimal) <= set("0123456789abcdef"):
            raise InvalidInput(f"{path} line {number} is no line of sha256sum: {line:.80}")
        found[name.lstrip(" *").removeprefix("./")] = f"sha256:{hexadecimal}"
    return found


def store_files(
    ws: Workspace, opened: Mapping[str, Opened], progress: Progress | None
) -> dict[str, ModelRef]:
    """Put every file into the blob store: small ones as they were read, weights in parallel.
    Weights that stay where they are get their place recorded.

    Raises `IntegrityError` when a file is not what its source promised, or changed meanwhile.
    """
    ws.blobs.sweep()
    entries: dict[str, list[FileEntry]] = {role: [] for role in opened}
    for role, path, digest, size in _weights(ws, opened, progress):
        entries[role].append(FileEntry(path=path, size=size, sha256=digest))
    for role, model in opened.items():
        for path, data in model.documents.items():
            digest = ws.blobs.add_bytes(data)
            entries[role].append(FileEntry(path=path, size=len(data), sha256=digest))
        _check_promises(role, model.source, entries[role])
    return {role: model_ref(ws, o.model, tuple(entries[role])) for role, o in opened.items()}


def _weights(
    ws: Workspace, opened: Mapping[str, Opened], progress: Progress | None
) -> list[tuple[str, str, str, int]]:
    """(role, path, digest, size) of all weights, once they are stored or recorded."""
    jobs = [(role, file) for role, model in opened.items() for file in model.weights]
    copied = [f for _, f in jobs if f.reference is None]
    sizes = {_here(f): f.size for f in copied}  # once, if a draft is its own target
    to_read = [f.size for _, f in jobs if f.reference and f.reference.sha256 is None]
    on_bytes = byte_progress(progress, "storing", sum(sizes.values()) + sum(to_read))
    added = ws.blobs.add_files(tuple(sizes), on_bytes=on_bytes)
    stored: dict[object, tuple[str, int]] = dict(zip(sizes, added, strict=True))
    staying = {f.location: f for _, f in jobs if f.reference}
    with ThreadPoolExecutor(max_workers=_N_WORKERS) as pool:
        found = pool.map(lambda file: _reference(file, on_bytes), staying.values())
        references = dict(zip(staying, found, strict=True))
    _record(ws, references.values())
    stored |= {location: (r.digest, r.size) for location, r in references.items()}
    return [(role, file.path, *stored[file.location]) for role, file in jobs]


def _here(file: SourceFile) -> Path:
    assert isinstance(file.location, Path), file
    return file.location


def _reference(file: SourceFile, on_bytes: OnBytes | None) -> Reference:
    """Where the file is, with the hash that is known, or by reading it once."""
    seen = file.reference
    assert seen is not None
    digest, hashed_by = seen.sha256, seen.hashed_by
    if digest is None:
        digest, hashed_by = _hash(seen.uri, seen.size, on_bytes), READ_ONCE
    reference = Reference(
        digest=digest,
        uri=seen.uri,
        size=seen.size,
        version_id=seen.version_id,
        hashed_by=hashed_by,
        recorded_at=now(),
    )
    problem = problem_of(reference)
    if problem:
        raise IntegrityError(
            f"{file.path} changed while it was read: {problem}",
            hint="register again once nothing writes to it any more",
        )
    return reference


def _hash(uri: str, size: int, on_bytes: OnBytes | None) -> str:
    hasher = hashlib.sha256()
    for chunk in chunks(uri, size):
        hasher.update(chunk)
        if on_bytes:
            on_bytes(len(chunk))
    return "sha256:" + hasher.hexdigest()


def _record(ws: Workspace, references: Iterable[Reference]) -> None:
    """Content that moved is found at its new place from now on. A hash that was only stated does
    not displace a place that is still good."""
    found = {r.digest: r for r in references}
    if not found:
        return
    known = ws.registry.references(found)
    to_save = [
        r
        for r in found.values()
        if r.hashed_by != CHECKSUMS_FILE
        or r.digest not in known
        or known[r.digest].uri == r.uri
        or problem_of(known[r.digest])
    ]
    ws.registry.save_references(to_save)


def _check_promises(role: str, source: Source, entries: Iterable[FileEntry]) -> None:
    promised = {file.path: file.sha256 for file in source.files}
    for entry in entries:
        if promised[entry.path] not in (None, entry.sha256):
            raise IntegrityError(
                f"{entry.path} of the {role} is {entry.sha256}, but its source promised "
                f"{promised[entry.path]}",
                hint="delete it from the local cache and register again",
            )


def model_ref(ws: Workspace, model: Model, files: tuple[FileEntry, ...]) -> ModelRef:
    """Raises `IntegrityError` unless the stored weights are those that were checked. Referenced
    ones were compared with what their holder said before and after."""
    from pairgate.compat.check import read_headers

    here = {f.path: ws.blobs.path(f.sha256) for f in files if f.path in model.weights}
    stored = read_headers({path: blob for path, blob in here.items() if blob.exists()})
    if {**model.headers, **stored} != model.headers:
        raise IntegrityError(
            f"the {model.role}'s weights changed while they were read",
            hint="register again once nothing writes to them any more",
        )
    return ModelRef(
        role=model.role,
        files=files,
        architecture=model.architecture,
        tokenizer_digest=model.tokenizer.digest if model.tokenizer else None,
        flags=model.flags,
    )


def byte_progress(
    progress: Progress | None, stage: str, n_total: int
) -> Callable[[int], None] | None:
    """`progress` as a callback that is told of every n bytes, from any thread."""
    if progress is None:
        return None
    lock, n_done = Lock(), 0

    def on_bytes(n_bytes: int) -> None:  # called from several threads
        nonlocal n_done
        with lock:
            n_done += n_bytes
            progress(stage, n_done, n_total, "")

    return on_bytes
