"""A deterministic fake engine with real shapes, for tests of policies and of everything behind.

It decodes nothing: acceptance per domain or request, the draft length and the times are given, and
traces of the right form come out. Time is its own: `clock` advances by what the script says, and
`replay` reads that clock, so a test of a speedup rule takes no time and never flickers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import EngineInfo, MemoryUse, Missing
from pairgate.domain.trace import Arm, Finish, RequestTrace, RoundState
from pairgate.domain.traffic import Request
from pairgate.errors import InvalidInput, require
from pairgate.ports import EngineLimits, GenerateOptions, MaterialisedPair
from pairgate.stats.fallback_rule import FallbackState

DEFINITION = "pairgate.rounds.v1"
_VOCAB = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the engine pretends. A token is accepted with the request's own probability: that of
    `by_request`, else of `by_domain`, else `acceptance`.

    A pass costs its base time and a share of it for every further row in flight: `row_cost` 0 is
    memory-bound, 1 is compute-bound. Requests in `failures` fail with `failure`.
    """

    acceptance: float = 0.8
    by_domain: Mapping[str, float] = field(default_factory=dict)
    by_request: Mapping[str, float] = field(default_factory=dict)
    k: int = 4
    target_ms: float = 10.0
    verify_ms: float = 11.0
    draft_ms: float = 1.0
    prefill_ms: float = 20.0
    row_cost: float = 0.02
    failures: frozenset[str] = frozenset()
    failure: str = "NaN or infinite logits of the target at output position 0"
    vary_greedy: bool = False
    weights_bytes: int = 1_000_000
    hardware_class: str = "scripted"
    version: str = "1.0.0"

    def __post_init__(self) -> None:
        rates = (self.acceptance, *self.by_domain.values(), *self.by_request.values())
        require(all(0 <= a <= 1 for a in rates), f"acceptance must lie in 0 to 1: {rates}")
        require(self.k >= 1, f"k is {self.k}")

    def acceptance_of(self, request: Request) -> float:
        given = self.by_request.get(request.id)
        return self.by_domain.get(request.domain, self.acceptance) if given is None else given


@dataclass(slots=True, kw_only=True)
class _Running:
    index: int
    request: Request
    begin_ms: float
    rng: np.random.Generator
    tokens: NDArray[np.int32]
    state: RoundState
    limit: int
    n_emitted: int = 1
    ttft_ms: float = 0.0
    fallback: FallbackState | None = None
    fell_back_at: int = -1
    rounds: list[tuple[int, int, int, int, float]] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.limit - self.n_emitted


class ScriptedEngine:
    """Implements `ports.Engine` by a `Script`; the same seed gives the same traces."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.n_generated = 0
        self._now_ms = 0.0
        self._limits: EngineLimits | None = None

    def clock(self) -> float:
        """Seconds of the engine's own time."""
        return self._now_ms / 1e3

    def start(self, pair: MaterialisedPair, limits: EngineLimits) -> None:
        self._limits = limits

    def generate(
        self, requests: Iterable[tuple[int, Request]], options: GenerateOptions
    ) -> Iterator[RequestTrace]:
        waiting = iter(requests)
        running: list[_Running] = []
        while True:
            while len(running) < options.concurrency and (item := next(waiting, None)) is not None:
                self.n_generated += 1
                index, request = item
                error = self._refusal(request)
                if error:
                    yield _failed(index, request, error)
                    continue
                running.append(self._admitted(index, request, options))
            if not running:
                return
            ended = [r for r in running if r.room <= 0]
            if not ended:
                self._round(running)
                ended = [r for r in running if r.room <= 0]
            running = [r for r in running if r.room > 0]
            yield from (self._trace(r) for r in ended)

    def describe(self) -> EngineInfo:
        return EngineInfo(
            name="scripted",
            version=self.script.version,
            hardware_class=self.script.hardware_class,
            device="none",
            dtype="float32",
            definition=DEFINITION,
        )

    def prompt_tokens(self, request: Request) -> int:
        """Given token ids, else one token for every four characters."""
        if request.token_ids is not None:
            return len(request.token_ids)
        return -(-len(request.text or request.messages or "") // 4)

    def stress(self, concurrency: int, *, with_draft: bool) -> MemoryUse | Missing:
        if self._limits is None:
            raise InvalidInput("the scripted engine was not started")
        weights = self.script.weights_bytes
        kv = 100 * concurrency * self._limits.max_model_len
        draft = (weights + kv) // 10 if with_draft else 0
        total = weights + kv + draft
        return MemoryUse(
            arm=Arm.SPEC if with_draft else Arm.TARGET,
            concurrency=concurrency,
            kind="server",
            weights_target_bytes=weights,
            weights_draft_bytes=weights // 10 if with_draft else 0,
            kv_target_bytes=kv,
            kv_draft_bytes=kv // 10 if with_draft else 0,
            workspace_bytes=0,
            peak_bytes=total,
            predicted_bytes=total,
            budget_bytes=self._limits.memory_budget_bytes or 10 * total,
            worst_case_reached=True,
        )

    def close(self) -> None:
        self._limits = None

    def _refusal(self, request: Request) -> str:
        assert self._limits is not None
        if request.id in self.script.failures:
            return self.script.failure
        n = self.prompt_tokens(request)
        if n == 0:
            return "the prompt has no tokens"
        if n >= self._limits.max_model_len:
            return f"the prompt has {n} tokens, max_model_len is {self._limits.max_model_len}"
        return ""

    def _admitted(self, index: int, request: Request, options: GenerateOptions) -> _Running:
        self._now_ms += self.script.prefill_ms
        arm = "spec" if options.with_draft else "target"
        # Greedy output is the target's own in both arms, unless the script says otherwise.
        same = request.sampling.greedy and not self.script.vary_greedy
        stream = _rng("tokens", request.id, 0 if same else f"{options.seed} {arm}")
        settings = options.fallback if options.with_draft else None
        assert self._limits is not None
        room = self._limits.max_model_len - self.prompt_tokens(request)
        return _Running(
            index=index,
            request=request,
            begin_ms=self._now_ms - self.script.prefill_ms,
            rng=_rng("rounds", request.id, options.seed),
            tokens=stream.integers(0, _VOCAB, request.max_tokens).astype(np.int32),
            state=RoundState.DRAFTED if options.with_draft else RoundState.TARGET_ONLY,
            limit=min(request.max_tokens, room),
            ttft_ms=self.script.prefill_ms,
            fallback=FallbackState(settings) if settings else None,
        )

    def _round(self, running: list[_Running]) -> None:
        """All rows in flight step together, as in the batched decoder."""
        s = self.script
        drafting = [r for r in running if r.state is RoundState.DRAFTED]
        base = s.verify_ms + s.k * s.draft_ms if drafting else s.target_ms
        took_ms = base * (1 + s.row_cost * (len(running) - 1))
        self._now_ms += took_ms
        for row in running:
            _step(row, s, took_ms)

    def _trace(self, row: _Running) -> RequestTrace:
        table = np.array(row.rounds, np.float64).reshape(-1, 5)
        proposed = table[:, 0].astype(np.int16)
        drafted = table[:, 3] == RoundState.DRAFTED
        alpha = self.script.acceptance_of(row.request)
        return RequestTrace(
            index=row.index,
            request_id=row.request.id,
            domain=row.request.domain,
            session=row.request.session or "",
            temperature=row.request.sampling.temperature,
            prompt_tokens=self.prompt_tokens(row.request),
            completion_tokens=row.n_emitted,
            ttft_ms=row.ttft_ms,
            latency_ms=self._now_ms - row.begin_ms,
            finish=Finish.LENGTH,
            fell_back_at=row.fell_back_at,
            n_returns=row.fallback.n_returns if row.fallback else 0,
            proposed=proposed,
            accepted=table[:, 1].astype(np.int16),
            emitted=table[:, 2].astype(np.int16),
            round_state=table[:, 3].astype(np.uint8),
            round_ms=table[:, 4].astype(np.float32),
            tokens=row.tokens[: row.n_emitted],
            overlap=np.full(int(proposed[drafted].sum()), alpha, np.float32),
            margin=np.ones(row.n_emitted, np.float32),
        )


def _step(row: _Running, script: Script, took_ms: float) -> None:
    state = row.state
    k = min(script.k, row.room - 1) if state is RoundState.DRAFTED else 0
    if state is RoundState.DRAFTED and k == 0:
        state = RoundState.SKIPPED
    hits = row.rng.random(k) < script.acceptance_of(row.request)
    accepted = int(np.logical_and.accumulate(hits).sum()) if k else 0
    row.n_emitted += accepted + 1
    row.rounds.append((k, accepted, accepted + 1, int(state), took_ms))
    if row.fallback is None:
        return
    if state is RoundState.DRAFTED:
        if row.fallback.observe(accepted, accepted + (accepted < k)):
            row.state = RoundState.FALLEN_BACK
            if row.fell_back_at < 0:
                row.fell_back_at = row.n_emitted
    elif state is RoundState.FALLEN_BACK and row.fallback.decoded_plainly(1):
        row.state = RoundState.DRAFTED


def _failed(index: int, request: Request, error: str) -> RequestTrace:
    return RequestTrace(
        index=index,
        request_id=request.id,
        domain=request.domain,
        session=request.session or "",
        temperature=request.sampling.temperature,
        prompt_tokens=0,
        completion_tokens=0,
        ttft_ms=0.0,
        latency_ms=0.0,
        finish=Finish.ERROR,
        error=error,
    )


def _rng(*parts: object) -> np.random.Generator:
    digest = hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
