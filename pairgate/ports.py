"""The seams to the outside world, as small Protocols; adapters live in the rooms of that name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pairgate.domain.evidence import EngineInfo, Evaluation, MemoryUse, Missing
from pairgate.domain.pair import Pair
from pairgate.domain.policy import FallbackSettings, Policy
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
    """Bytes by digest."""

    def add_file(self, path: Path) -> tuple[str, int]: ...

    def add_bytes(self, data: bytes) -> str: ...

    def path(self, digest: str) -> Path: ...

    def has(self, digest: str, size: int | None = None) -> bool: ...


Json = dict[str, Any]
