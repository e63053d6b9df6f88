"""Register a pair, and get its files back: the store and the registry seen as one.

READY comes last: files, config, manifest, index, then pair and version rows. A crash before the
rows leaves no version, and registering again completes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from pairgate.app.actor import current_actor
from pairgate.app.workspace import now
from pairgate.domain.canonical import canonical_json, sha256_digest
from pairgate.domain.pair import DecodingConfig, FileEntry, Method, ModelRef, Pair
from pairgate.domain.records import Verification
from pairgate.errors import IntegrityError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.compat.check import Compatibility, Model
    from pairgate.domain.pair import PairVersion, VersionRef
    from pairgate.domain.release import Actor
    from pairgate.ports import MaterialisedPair, Progress
    from pairgate.sources import Source

T = TypeVar("T")
DEFAULT_K = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """What a person says about decoding; None is "as the models say, else the default"."""

    method: Method | None = None
    k: int | None = None
    draft_sampling: str = "sampled"
    compute_dtype: str = "auto"
    speculative_config: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """`created` is false when the same content was a version of the line already."""

    version: PairVersion
    created: bool
    pair: Pair
    warnings: tuple[str, ...]


def register(
    ws: Workspace,
    line: str,
    *,
    target: str,
    draft: str | None = None,
    method: Method | None = None,
    k: int | None = None,
    draft_sampling: str = "sampled",
    compute_dtype: str = "auto",
    speculative_config: str | None = None,
    allow_custom_code: bool = False,
    allow_pickle: bool = False,
    actor: Actor | None = None,
    progress: Progress | None = None,
) -> Registered:
    """Store the pair as the next version of the line.

    Sources are local folders or hf://org/name@revision. Checks come before anything is stored.
    Raises `NotFound` for an unknown line or source, `Refused` for what is unsafe or does not fit
    together, `InvalidInput` for broken files, `IntegrityError` when a source changes meanwhile.
    """
    from pairgate import sources
    from pairgate.compat.check import check_pair

    ws.registry.head(line)
    allowed = sources.Allowed(custom_code=allow_custom_code, pickle=allow_pickle)
    found = {"target": sources.resolve(target, allowed)}
    if draft is not None:
        found["draft"] = sources.resolve(draft, allowed)
    opened = {role: _open(role, source) for role, source in found.items()}
    draft_model = opened["draft"].model if draft is not None else None
    options = DecodingOptions(
        method=method,
        k=k,
        draft_sampling=draft_sampling,
        compute_dtype=compute_dtype,
        speculative_config=speculative_config,
    )
    decoding = resolve_decoding(options, draft_model)
    compatibility = check_pair(opened["target"].model, draft_model, decoding.method)
    refs = _store(ws, opened, progress)
    pair = Pair(target=refs["target"], draft=refs.get("draft"), decoding=decoding)
    warnings = tuple(
        f"{role}: {warning}" for role, source in found.items() for warning in source.warnings
    )
    warnings = (*warnings, *compatibility.warnings)
    return _make_ready(ws, line, pair, found, compatibility, warnings, actor or current_actor(ws))


def resolve_decoding(options: DecodingOptions, draft: Model | None) -> DecodingConfig:
    """Options, a serving engine's JSON and the draft's own config, in this order of precedence.

    Raises `InvalidInput` where two of them contradict each other.
    """
    from pairgate.compat.decoding import head_method, read_speculative_config
    from pairgate.compat.heads import suggested_tokens

    text = options.speculative_config
    engine = read_speculative_config(text) if text is not None else None
    method = _agreed("method", options.method, engine.method if engine else None)
    if method is None:
        method = Method.NONE if draft is None else head_method(draft.config) or Method.DRAFT_MODEL
    k = _agreed("draft length", options.k, engine.num_speculative_tokens if engine else None)
    if k is None and method is not Method.NONE:
        k = (suggested_tokens(draft.config) if draft else None) or DEFAULT_K
    if method.has_draft_files and draft is None:
        raise InvalidInput(f"method {method} needs a draft", hint="give it with --draft SRC")
    if draft is not None and not method.has_draft_files:
        raise InvalidInput(
            f"method {method} stores no draft", hint="leave --draft out, or change --method"
        )
    return DecodingConfig(
        method=method,
        num_speculative_tokens=k or 0,
        draft_sampling=options.draft_sampling,
        compute_dtype=options.compute_dtype,
        speculative_config=text,
    )


def _agreed(what: str, said: T | None, engine: T | None) -> T | None:
    if said is not None and engine is not None and said != engine:
        raise InvalidInput(
            f"the {what} is {said} by option and {engine} in --speculative-config",
            hint="say it once",
        )
    return engine if said is None else said


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A source whose small files were read once: what was checked is what will be stored."""

    source: Source
    documents: Mapping[str, bytes]
    model: Model


def _open(role: str, source: Source) -> _Opened:
    from pairgate.compat.check import read_model

    documents: dict[str, bytes] = {}
    for file in source.files:
        if not file.is_weights:
            documents[file.path] = file.location.read_bytes()
            if len(documents[file.path]) != file.size:
                raise IntegrityError(f"{file.path} of the {role} changed while it was read")
    weights = {file.path: file.location for file in source.files if file.is_weights}
    model = read_model(role, documents, weights, source.flags)
    return _Opened(source=source, documents=documents, model=model)


def _store(
    ws: Workspace, opened: Mapping[str, _Opened], progress: Progress | None
) -> dict[str, ModelRef]:
    """Put every file into the blob store: small ones as they were read, weights in parallel."""
    ws.blobs.sweep()
    jobs = [
        (role, file)
        for role, model in opened.items()
        for file in model.source.files
        if file.is_weights
    ]
    sizes = {file.location: file.size for _, file in jobs}  # once, if a draft is its own target
    on_bytes = _byte_progress(progress, "storing", sum(sizes.values()))
    added = ws.blobs.add_files(tuple(sizes), on_bytes=on_bytes)
    stored = dict(zip(sizes, added, strict=True))
    entries: dict[str, list[FileEntry]] = {role: [] for role in opened}
    for role, file in jobs:
        digest, size = stored[file.location]
        entries[role].append(FileEntry(path=file.path, size=size, sha256=digest))
    for role, model in opened.items():
        for path, data in model.documents.items():
            digest = ws.blobs.add_bytes(data)
            entries[role].append(FileEntry(path=path, size=len(data), sha256=digest))
        _check_promises(role, model.source, entries[role])
    return {role: _model_ref(ws, opened[role].model, tuple(entries[role])) for role in opened}


def _check_promises(role: str, source: Source, entries: Iterable[FileEntry]) -> None:
    promised = {file.path: file.sha256 for file in source.files}
    for entry in entries:
        if promised[entry.path] not in (None, entry.sha256):
            raise IntegrityError(
                f"{entry.path} of the {role} is {entry.sha256}, but its source promised "
                f"{promised[entry.path]}",
                hint="delete it from the local cache and register again",
            )


def _model_ref(ws: Workspace, model: Model, files: tuple[FileEntry, ...]) -> ModelRef:
    """Raises `IntegrityError` unless the stored weights are those that were checked."""
    from pairgate.compat.check import read_headers

    stored = {f.path: ws.blobs.path(f.sha256) for f in files if f.path in model.weights}
    if read_headers(stored) != model.headers:
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


def _make_ready(
    ws: Workspace,
    line: str,
    pair: Pair,
    found: Mapping[str, Source],
    compatibility: Compatibility,
    warnings: tuple[str, ...],
    actor: Actor,
) -> Registered:
    """Config, manifest and index, then both rows in one transaction."""
    from pairgate.store.sqlpairs import ensure_pair, ensure_version

    ws.blobs.add_bytes(pair.config_blob())
    ws.blobs.add_manifest(pair.manifest())
    missing = ws.blobs.missing(pair)
    if missing:
        raise IntegrityError(f"{len(missing)} blobs vanished while registering: {missing[0]}")
    at, by = now(), actor.name
    provenance = {
        "sources": {role: {"spec": s.spec, "origin": s.origin} for role, s in found.items()},
        "registered_by": by,
        "registered_at": at,
        "tokenizers": compatibility.tokenizers,
        "native_obstacle": compatibility.native_obstacle,
        "warnings": warnings,
    }
    text = canonical_json(provenance).decode()
    row = (line, pair.digest, pair.target_digest, pair.decoding.method, at, by)
    with ws.registry.lock(line) as transaction:
        ensure_pair(transaction.connection, pair, text, at)
        version = ensure_version(transaction.connection, *row)
    # A pair that was known has been hashed again just now, and what was damaged was replaced.
    ws.registry.record_verification(pair.digest, at)
    created = version.created_at == at
    return Registered(version=version, created=created, pair=pair, warnings=warnings)


def _byte_progress(
    progress: Progress | None, stage: str, n_total: int
) -> Callable[[int], None] | None:
    if progress is None:
        return None
    lock, n_done = Lock(), 0

    def on_bytes(n_bytes: int) -> None:  # called from several threads
        nonlocal n_done
        with lock:
            n_done += n_bytes
            progress(stage, n_done, n_total, "")

    return on_bytes


@contextmanager
def materialise(ws: Workspace, pair: Pair) -> Iterator[MaterialisedPair]:
    """The pair's files as private read-only folders of links into the store, for one run.

    Raises `IntegrityError` when blobs are missing.
    """
    from pairgate.ports import MaterialisedPair

    _require_present(ws, pair)
    folder = ws.work_dir / "pairs" / f"{pair.digest[7:19]}-{secrets.token_hex(4)}"
    try:
        for model in pair.models:
            for entry in model.files:
                link = folder / model.role / entry.path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(ws.blobs.path(entry.sha256))
        _chmod_folders(folder, 0o555)
        yield MaterialisedPair(
            pair=pair,
            target_dir=folder / "target",
            draft_dir=folder / "draft" if pair.draft else None,
        )
    finally:
        _chmod_folders(folder, 0o755)
        shutil.rmtree(folder, ignore_errors=True)


def presence(ws: Workspace, pair: Pair) -> tuple[str, ...]:
    """Digests of blobs that are missing or have another size; reads no contents."""
    return ws.blobs.missing(pair)


def verify_pair(ws: Workspace, pair: Pair, *, progress: Progress | None = None) -> Verification:
    """Hash every blob of the pair again and record the result."""
    entries = {e.sha256: e.size for model in pair.models for e in model.files}
    on_bytes = _byte_progress(progress, "verifying", sum(entries.values()))
    problems: list[str] = []
    for digest in (*entries, sha256_digest(pair.config_blob()), pair.digest):
        try:
            ws.blobs.verify(digest, on_bytes=on_bytes)
        except IntegrityError as error:
            problems.append(error.message)
    found = Verification(pair_digest=pair.digest, at=now(), problem="; ".join(problems))
    ws.registry.record_verification(pair.digest, found.at, found.problem)
    return found


def pull(ws: Workspace, ref: VersionRef, to: Path) -> PairVersion:
    """Copy a version's files to the new or empty folder `to`, as target/ and draft/, hashing what
    is written; nothing appears there unless all of it is right.

    Raises `InvalidInput` for a folder that holds something, `IntegrityError` for damaged blobs,
    `Unavailable` when it cannot be written.
    """
    version = ws.registry.version(ref)
    pair = ws.registry.pair(version.pair_digest)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InvalidInput(f"{to} is not an empty folder", hint="name one that does not exist yet")
    _require_present(ws, pair)
    staged = to.absolute().with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        staged.mkdir(parents=True)
        for model in pair.models:
            for entry in model.files:
                path = staged / model.role / entry.path
                path.parent.mkdir(parents=True, exist_ok=True)
                ws.blobs.copy_out(entry.sha256, path)
        (staged / "pair.json").write_bytes(pair.config_blob())
        os.rename(staged, to)
    except OSError as error:
        raise Unavailable(f"{to} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return version


def _require_present(ws: Workspace, pair: Pair) -> None:
    missing = presence(ws, pair)
    if missing:
        raise IntegrityError(
            f"{len(missing)} blobs of the pair are missing from the store, first {missing[0]}",
            hint="register the same files again: that restores them without a new version",
        )


def _chmod_folders(folder: Path, mode: int) -> None:
    for parent, _, _ in os.walk(folder, topdown=mode & stat.S_IWUSR != 0):
        os.chmod(parent, mode)
