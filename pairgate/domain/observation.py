"""What is seen of a line after its release: counters of servers, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCounters:
    """A server's totals since it started, summed over its engines; None is "it has no such".

    `per_position` are accepted tokens by position in the draft.
    """

    n_drafts: int | None = None
    n_draft_tokens: int | None = None
    n_accepted: int | None = None
    per_position: tuple[int, ...] = ()
    n_generated: int | None = None
    n_finished: int | None = None
    n_cache_queries: int | None = None
    n_cache_hits: int | None = None
    n_preemptions: int | None = None

    def since(self, before: LiveCounters) -> LiveCounters:
        """What was added since `before`; negative where a total became smaller."""
        return _combined(self, before, -1)

    def plus(self, other: LiveCounters) -> LiveCounters:
        """Both together."""
        return _combined(self, other, 1)

    @property
    def went_back(self) -> bool:
        """Of a difference: whether any total became smaller."""
        numbers = (*(getattr(self, name) for name in _TOTALS), *self.per_position)
        return any(n is not None and n < 0 for n in numbers)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of proposed tokens; None where nothing was proposed."""
        if not self.n_draft_tokens or self.n_accepted is None:
            return None
        return self.n_accepted / self.n_draft_tokens

    @property
    def draft_length(self) -> float | None:
        """Proposed tokens per draft step."""
        if not self.n_drafts or self.n_draft_tokens is None:
            return None
        return self.n_draft_tokens / self.n_drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One server at one moment. `started_at` is the Unix time at which its process began, or its
    counters where it does not say; 0 is unknown. `error` is why there is nothing."""

    replica: str
    counters: LiveCounters = field(default_factory=LiveCounters)
    engine_version: str = ""
    served_names: tuple[str, ...] = ()
    started_at: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Betting:
    """A running test: observations so far, the capital of each stake, and the whole."""

    n: int = 0
    capitals: tuple[float, ...] = ()
    evidence: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """A replica as the newest look left it.

    `event` is what happened since the look before: "", new, restart, reset. `open` is what the
    window under way has gathered, `rest` what the other replicas did in its time, `window` the
    newest whole one, `total` everything that was watched. `n_idle_tokens` were generated since the
    last draft step. `problem` is one of PROBLEMS, or "".
    """

    reading: Reading
    pair_digest: str | None = None
    event: str = ""
    open: LiveCounters = field(default_factory=LiveCounters)
    rest: LiveCounters = field(default_factory=LiveCounters)
    window: LiveCounters | None = None
    total: LiveCounters = field(default_factory=LiveCounters)
    floor_test: Betting = field(default_factory=Betting)
    outlier_test: Betting = field(default_factory=Betting)
    n_idle_tokens: int = 0
    problem: str = ""


DEGRADED = "acceptance under the floor"
IDLE_DRAFT = "generates without drafting"
OUTLIER = "accepts less than the other replicas"
UNREACHABLE = "does not answer"
OTHER_PAIR = "serves another pair than production"
PROBLEMS = (DEGRADED, IDLE_DRAFT, OUTLIER, UNREACHABLE, OTHER_PAIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """What the evidence of the promoted version says about accepted of proposed tokens. `low` is
    its lower bound, `floor` what live acceptance is tested against."""

    version: int
    pair_digest: str
    evaluation_digest: str | None
    value: float | None
    low: float | None
    floor: float
    num_speculative_tokens: int
    engine_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at all servers of a line. `problems` are sentences; empty is well."""

    line: str
    at: str
    promised: Promised
    alpha: float
    replicas: tuple[ReplicaState, ...]
    total: LiveCounters
    open: LiveCounters
    floor_test: Betting
    problems: tuple[str, ...] = ()
    degraded: bool = False

    @property
    def acceptance_rate(self) -> float | None:
        """Over everything that was watched of this version."""
        return self.total.acceptance_rate


_TOTALS = tuple(f.name for f in fields(LiveCounters) if f.name != "per_position")


def _combined(one: LiveCounters, other: LiveCounters, sign: int) -> LiveCounters:
    totals: dict[str, Any] = {}
    for name in _TOTALS:
        a, b = getattr(one, name), getattr(other, name)
        totals[name] = None if a is None and b is None else (a or 0) + sign * (b or 0)
    pairs = zip_longest(one.per_position, other.per_position, fillvalue=0)
    return replace(LiveCounters(per_position=tuple(a + sign * b for a, b in pairs)), **totals)
