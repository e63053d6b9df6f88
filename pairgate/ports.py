"""The seams to the outside world, as small Protocols; adapters live in the rooms of that name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pairgate.domain.evidence import EngineInfo, Evaluation, MemoryUse, Missing
from pairgate.domain.garbage import StoredBlob
from pairgate.domain.pair import Pair
from pairgate.domain.policy import FallbackSettings, Policy
from pairgate.domain.scores import TokenScores
from pairgate.domain.trace import RequestTrace, TraceBatch
from pairgate.domain.traffic import Request
from pairgate.domain.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialisedPair:
    """A pair whose files lie on this machine, read-only: one folder per model."""

    pair: Pair
    target_dir: Path
    draft_dir: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine must be able to hold: lengths in tokens, prompt + output."""

    max_model_len: int
    max_concurrency: int
    seed: int
    watchdog_s: float = 300.0
    memory_budget_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """One run of requests. `with_draft=False` is the target alone; `fallback=None` is off."""

    with_draft: bool
    concurrency: int
    seed: int
    fallback: FallbackSettings | None = None


class Engine(Protocol):
    """Runs a pair. Usable as `with engine:`-free object: start, generate…, close."""

    def start(self, pair: MaterialisedPair, limits: EngineLimits) -> None: ...

    def generate(
        self, requests: Iterable[tuple[int, Request]], options: GenerateOptions
    ) -> Iterator[RequestTrace]:
        """Closed loop: `options.concurrency` requests in flight, a finished one is replaced at
        once. Takes (index, request) pairs in submission order, yields traces as they finish; a
        request that fails is yielded with `finish=ERROR`, never raised."""
        ...

    def describe(self) -> EngineInfo: ...

    def prompt_tokens(self, request: Request) -> int:
        """Length of the request's prompt in tokens of the target's tokenizer."""
        ...

    def stress(self, concurrency: int, *, with_draft: bool) -> MemoryUse | Missing:
        """Force the worst case: `concurrency` requests at the maximum length."""
        ...

    def close(self) -> None: ...


class Scorer(Protocol):
    """Reads finished outputs with the target that should have written them (fidelity F2 and F3).

    `engines.native.TeacherForcing` runs the models once more; a serving engine can answer the same
    from the log probabilities of prompt tokens.
    """

    @property
    def level(self) -> str:
        """F3 where it also gives the columns of the draft's law, else F2."""
        ...

    def score(self, requests: Sequence[Request], batch: TraceBatch) -> TokenScores:
        """The law at every emitted token of the ok rows; `requests` in the order of the rows."""
        ...


class TrafficSource(Protocol):
    """Reads a log of requests."""

    def requests(self) -> Iterator[Request]: ...


class TraceSink(Protocol):
    """Keeps blocks as they are finished, so that a killed evaluation resumes."""

    def load(self, key: str) -> TraceBatch | None:
        """The block if it was stored whole before, else None."""
        ...

    def save(self, key: str, batch: TraceBatch) -> None: ...


class Tracker(Protocol):
    """The review mirror (MLflow)."""

    def log_evaluation(self, evaluation: Evaluation, verdict: Verdict, policy: Policy) -> str:
        """Idempotent by the evaluation's digest; returns the run's address."""
        ...


Progress = Callable[[str, int, int, str], None]
"""progress(stage, done, total, note): called between requests, from the replaying thread."""


class BlobStore(Protocol):
    """Bytes by digest: on this machine (`store.blobs`) or on an object store (`store.remote`).

    What is added counts only after `add_manifest`, which lists the pair last. A store that does
    not answer raises `Unavailable`, a blob that is not there `IntegrityError`.
    """

    def add_file(
        self, path: Path, *, on_bytes: Callable[[int], None] | None = None
    ) -> tuple[str, int]: ...

    def add_files(
        self,
        paths: Sequence[Path],
        *,
        n_workers: int = 2,
        on_bytes: Callable[[int], None] | None = None,
    ) -> tuple[tuple[str, int], ...]: ...

    def add_bytes(self, data: bytes) -> str: ...

    def add_stream(
        self,
        chunks: Iterable[bytes],
        *,
        digest: str,
        size: int,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None: ...

    def add_manifest(
        self, data: bytes, *, on_bytes: Callable[[int], None] | None = None
    ) -> str: ...

    def require_reachable(self) -> None:
        """Raises `Unavailable` unless a store answers."""
        ...

    def has(self, digest: str, size: int | None = None) -> bool: ...

    def missing(self, pair: Pair) -> tuple[str, ...]:
        """Digests of the pair's blobs that are absent or have another size; reads no contents."""
        ...

    def verify(self, digest: str, *, on_bytes: Callable[[int], None] | None = None) -> None:
        """Hash the stored bytes again."""
        ...

    def path(self, digest: str) -> Path:
        """Where the blob lies on this machine once it was added or fetched here."""
        ...

    def fetch(
        self, digest: str, size: int, *, on_bytes: Callable[[int], None] | None = None
    ) -> Path:
        """Bring the blob to this machine, hashed on the way, unless it is here."""
        ...

    def read(self, digest: str) -> bytes: ...

    def copy_out(self, digest: str, path: Path) -> None: ...

    def sweep(self) -> int:
        """Delete what killed writers left; returns how many files."""
        ...

    # What garbage collection needs. Absent things may be deleted.

    def list_blobs(self) -> Iterator[StoredBlob]: ...

    def list_index(self) -> tuple[str, ...]:
        """Digests of the listed manifests."""
        ...

    def list_leftovers(self) -> tuple[StoredBlob, ...]:
        """What `sweep` would delete; `digest` is then any name."""
        ...

    def delete_index_entry(self, digest: str) -> None:
        """List the manifest no longer. Comes before the deletion of its blobs."""
        ...

    def delete_blob(self, digest: str) -> None: ...


class ArtifactSource(Protocol):
    """One OCI artifact that lies elsewhere. What it gives is checked by who asks."""

    def manifest(self) -> bytes:
        """The manifest's bytes, which have the digest that was asked for."""
        ...

    def blob(self, digest: str, size: int) -> Iterator[bytes]:
        """What is there as that blob, in chunks; at most one chunk more than `size` bytes."""
        ...


class ByteRanges(Protocol):
    """A file of which any part can be read without the rest."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, n_bytes: int) -> bytes: ...


Json = dict[str, Any]
