"""Register a pair, and get its files back: the store and the registry seen as one.

READY comes last: files, config, manifest, index, then pair and version rows. A crash before the
rows leaves no version, and registering again completes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.actor import current_actor
from pairgate.app.decoding import (
    DecodingOptions,
    check_decoding,
    named_target,
    own_profile,
    resolve_decoding,
    stale_head,
)
from pairgate.app.flights import REGISTERING, RUNNING, STORING, in_flight
from pairgate.app.storing import (
    byte_progress,
    model_ref,
    open_source,
    scratch_folder,
    store_files,
    with_checksums,
)
from pairgate.app.workspace import now
from pairgate.domain.canonical import canonical_json, sha256_digest
from pairgate.domain.pair import Method, Pair
from pairgate.domain.records import Reference, Verification
from pairgate.errors import IntegrityError, InvalidInput, Refused

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.compat.check import Compatibility
    from pairgate.domain.pair import PairVersion
    from pairgate.domain.release import Actor
    from pairgate.ports import MaterialisedPair, Progress
    from pairgate.sources import Allowed, Source
    from pairgate.store.sql import Transaction


_TRIES = 3  # gc condemns nothing that a registration stored: the second has it all


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """`created` is false when the same content was a version of the line already. `references`
    are the files that stayed where they are."""

    version: PairVersion
    created: bool
    pair: Pair
    warnings: tuple[str, ...]
    references: tuple[Reference, ...] = ()


def register(
    ws: Workspace,
    line: str,
    *,
    target: str | None = None,
    draft: str | None = None,
    method: Method | None = None,
    k: int | None = None,
    draft_sampling: str | None = None,
    compute_dtype: str = "auto",
    speculative_config: str | None = None,
    kv_dtype_target: str | None = None,
    kv_dtype_draft: str | None = None,
    allow_custom_code: bool = False,
    allow_pickle: bool = False,
    reference: bool | None = None,
    checksums: Path | None = None,
    actor: Actor | None = None,
    progress: Progress | None = None,
) -> Registered:
    """Store the pair as the next version of the line.

    Sources are local folders, hf://org/name@revision or a prefix of an object store. `reference`
    leaves the target's weights where they are (None: those that are not on this machine);
    `checksums` is a file of sha256sum for the target. `target` None is the one that a
    speculators checkpoint names. Settings that are None are as the models, the speculative config
    or the line's serving command say, else the defaults. Checks come before anything is stored.
    Raises `NotFound` for an unknown line or source, `Refused` for what is unsafe or does not fit
    together, `InvalidInput` for broken files, `IntegrityError` when a source changes meanwhile.
    """
    from pairgate.compat.check import check_pair
    from pairgate.sources import Allowed

    ws.registry.head(line)
    allowed = Allowed(custom_code=allow_custom_code, pickle=allow_pickle)
    if target is None and draft is None:
        raise InvalidInput("there is no model to register", hint="give it with --target SRC")
    with scratch_folder(ws) as scratch:
        found = _resolve(target, draft, allowed, scratch, reference, checksums)
        opened = {role: open_source(role, source) for role, source in found.items()}
        draft_model = opened["draft"].model if draft is not None else None
        options = DecodingOptions(
            method=method,
            k=k,
            draft_sampling=draft_sampling,
            compute_dtype=compute_dtype,
            speculative_config=speculative_config,
            kv_dtype_target=kv_dtype_target,
            kv_dtype_draft=kv_dtype_draft,
        )
        decoding = resolve_decoding(options, draft_model, own_profile(ws, line))
        compatibility = check_pair(opened["target"].model, draft_model, decoding.method)
        by = actor or current_actor(ws)
        warnings = tuple(
            f"{role}: {warning}" for role, source in found.items() for warning in source.warnings
        )
        with in_flight(ws, STORING, line):
            for left in reversed(range(_TRIES)):
                try:
                    refs = store_files(ws, opened, progress)
                    pair = Pair(target=refs["target"], draft=refs.get("draft"), decoding=decoding)
                    said = (*warnings, *compatibility.warnings, *stale_head(ws, line, pair))
                    return _make_ready(ws, line, pair, found, compatibility, said, by, progress)
                except (_Vanished, FileNotFoundError):
                    if left == 0:
                        raise
    raise AssertionError("unreachable")


def _resolve(
    target: str | None,
    draft: str | None,
    allowed: Allowed,
    scratch: Path,
    reference: bool | None,
    checksums: Path | None,
) -> dict[str, Source]:
    """The sources by role. Only the target's weights can stay where they are."""
    from pairgate import sources

    head = {}
    if draft is not None:
        head["draft"] = sources.resolve(draft, allowed, scratch=scratch / "draft")
    target = named_target(head["draft"]) if target is None else target
    stays = sources.is_remote(target) if reference is None else reference
    found = sources.resolve(target, allowed, by_reference=stays, scratch=scratch / "target")
    return {"target": with_checksums(found, checksums) if checksums else found, **head}


class _Vanished(IntegrityError):
    """gc deleted a blob that was condemned before this registration found it in the store."""


def register_artifact(
    ws: Workspace,
    line: str,
    pair: Pair,
    bring: Callable[[], Mapping[str, Source]],
    actor: Actor,
    progress: Progress | None = None,
) -> Registered:
    """A pair that another registry made. `bring` puts its files into the store, verified, and
    returns them as the sources by role; they are checked like any other, then READY.

    Raises `IntegrityError` when a model is not what the pair says of it, `InvalidInput` for
    decoding settings that contradict each other, `Refused` for adapters, which no engine loads.
    """
    if pair.adapters:
        names = ", ".join(model.role for model in pair.adapters)
        raise Refused(f"the pair has adapters, which nothing would evaluate or serve: {names}")
    with in_flight(ws, STORING, line):
        for left in reversed(range(_TRIES)):
            try:
                found = bring()
                compatibility = _checked(ws, pair, found)
                said = compatibility.warnings
                return _make_ready(ws, line, pair, found, compatibility, said, actor, progress)
            except (_Vanished, FileNotFoundError):
                if left == 0:
                    raise
    raise AssertionError("unreachable")


def _checked(ws: Workspace, pair: Pair, found: Mapping[str, Source]) -> Compatibility:
    from pairgate.compat.check import check_pair

    opened = {role: open_source(role, source) for role, source in found.items()}
    for model in pair.models:
        if model_ref(ws, opened[model.role].model, model.files) != model:
            raise IntegrityError(
                f"the pair {pair.digest} says of its {model.role} what its files do not bear out",
                hint="register the models themselves with --target and --draft",
            )
    draft = opened["draft"].model if pair.draft else None
    check_decoding(pair.decoding, draft)
    return check_pair(opened["target"].model, draft, pair.decoding.method)


def _make_ready(
    ws: Workspace,
    line: str,
    pair: Pair,
    found: Mapping[str, Source],
    compatibility: Compatibility,
    warnings: tuple[str, ...],
    actor: Actor,
    progress: Progress | None = None,
) -> Registered:
    """Config, manifest and index, then both rows in one transaction.

    Raises `IntegrityError` when a blob is not there by the time that gc can no longer delete it.
    """
    from pairgate.store.blobs import pair_blobs
    from pairgate.store.sqlgc import land
    from pairgate.store.sqlpairs import ensure_pair, ensure_version

    sizes = pair_blobs(pair)
    on_bytes = byte_progress(progress, "sending", sum(sizes.values()))
    with in_flight(ws, REGISTERING, line, sizes) as flight:
        # Claimed first: from here on gc takes neither a blob nor the entry of the index.
        ws.blobs.add_bytes(pair.config_blob())
        ws.blobs.add_manifest(pair.manifest(), on_bytes=on_bytes)
        missing = ws.blobs.missing(pair)
        if missing:
            raise _Vanished(f"{len(missing)} blobs vanished while registering: {missing[0]}")
        at, by, references = now(), actor.name, ws.blobs.referenced(pair)
        provenance = {
            "sources": {role: {"spec": s.spec, "origin": s.origin} for role, s in found.items()},
            "registered_by": by,
            "registered_at": at,
            "tokenizers": compatibility.tokenizers,
            "native_obstacle": compatibility.native_obstacle,
            "warnings": warnings,
            "references": [asdict(r) for r in references],
        }
        text = canonical_json(provenance).decode()
        row = (line, pair.digest, pair.target_digest, pair.decoding.method, at, by)

        def body(transaction: Transaction) -> PairVersion:
            ensure_pair(transaction.connection, pair, text, at)
            stored = ensure_version(transaction.connection, *row)
            land(transaction.connection, flight, at)
            return stored

        version = ws.registry.decide(line, body)
    # A pair that was known has been hashed again just now, and what was damaged was replaced.
    ws.registry.record_verification(pair.digest, at)
    created = version.created_at == at
    return Registered(
        version=version, created=created, pair=pair, warnings=warnings, references=references
    )


@contextmanager
def materialise(
    ws: Workspace, pair: Pair, *, registered: bool = True
) -> Iterator[MaterialisedPair]:
    """The pair's files as private read-only folders of links into the store, for one run.

    A pair of stored models that is not `registered` itself has no document in the store. Raises
    `IntegrityError` when blobs are missing.
    """
    from pairgate.ports import MaterialisedPair
    from pairgate.store.blobs import pair_blobs

    files = {e.sha256: e.size for model in pair.models for e in model.files}
    with in_flight(ws, RUNNING, pair.digest, pair_blobs(pair) if registered else files):
        if registered:
            require_present(ws, pair)
        with _linked(ws, pair) as folder:
            yield MaterialisedPair(
                pair=pair,
                target_dir=folder / "target",
                draft_dir=folder / "draft" if pair.draft else None,
            )


@contextmanager
def _linked(ws: Workspace, pair: Pair) -> Iterator[Path]:
    """A folder of links, locked while its process lives, so that gc tells it from a left-over."""
    folder = ws.work_dir / "pairs" / f"{pair.digest[7:19]}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        for model in pair.models:
            for entry in model.files:
                link = folder / model.role / entry.path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(ws.blobs.fetch(entry.sha256, entry.size))
        _chmod_folders(folder, 0o555)
        yield folder
    finally:
        _chmod_folders(folder, 0o755)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def presence(ws: Workspace, pair: Pair) -> tuple[str, ...]:
    """Digests of blobs that are missing or have another size; reads no contents."""
    return ws.blobs.missing(pair)


def verify_pair(ws: Workspace, pair: Pair, *, progress: Progress | None = None) -> Verification:
    """Hash every blob of the pair again and record the result."""
    entries = {e.sha256: e.size for model in pair.models for e in model.files}
    on_bytes = byte_progress(progress, "verifying", sum(entries.values()))
    problems: list[str] = []
    for digest in (*entries, sha256_digest(pair.config_blob()), pair.digest):
        try:
            ws.blobs.verify(digest, on_bytes=on_bytes)
        except IntegrityError as error:
            problems.append(error.message)
    found = Verification(pair_digest=pair.digest, at=now(), problem="; ".join(problems))
    ws.registry.record_verification(pair.digest, found.at, found.problem)
    return found


def require_present(ws: Workspace, pair: Pair) -> None:
    """Raises `IntegrityError` naming the first blob that is missing or has another size."""
    missing = presence(ws, pair)
    if missing:
        raise IntegrityError(
            f"{len(missing)} blobs of the pair are missing from the store, first {missing[0]}",
            hint="register the same files again: that restores them without a new version",
        )


def _chmod_folders(folder: Path, mode: int) -> None:
    for parent, _, _ in os.walk(folder, topdown=mode & stat.S_IWUSR != 0):
        os.chmod(parent, mode)
