"""One running request: its tokens, its counters, and the trace that becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.trace import Finish, RequestTrace, RoundState
from pairgate.domain.traffic import Request
from pairgate.errors import InvalidEvaluation
from pairgate.stats.fallback_rule import FallbackState

Decode = Callable[[list[int]], str]


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """`room` counts the tokens that may still come; `n_drafted` the positions of the draft's cache
    that are valid; `tokens` are the emitted ids."""

    index: int
    request: Request
    prompt: list[int]
    limit: int
    uniforms: NDArray[np.float64]
    state: RoundState
    admitted_s: float
    last_s: float
    fallback: FallbackState | None = None
    n_drafted: int = 0
    ttft_ms: float = 0.0
    finish: Finish | None = None
    fell_back_at: int = -1
    tokens: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    round_ms: list[float] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)

    @property
    def room(self) -> int:
        return self.limit - len(self.tokens)

    def first_token(self, token: int, margin: float, now_s: float, ends: Ends) -> None:
        """The token that prefill brings."""
        self._take([token], [margin], ends)
        self.ttft_ms = (now_s - self.admitted_s) * 1e3
        self.last_s = now_s

    def end_round(
        self,
        tokens: Sequence[int],
        margins: Sequence[float],
        *,
        proposed: int,
        now_s: float,
        ends: Ends,
    ) -> None:
        """`tokens` are the accepted ones and the last; `proposed` 0 is a plain round."""
        n_emitted = self._take(tokens, margins, ends)
        self.proposed.append(proposed)
        self.accepted.append(len(tokens) - 1)
        self.emitted.append(n_emitted)
        self.states.append(self.state)
        self.round_ms.append((now_s - self.last_s) * 1e3)
        self.last_s = now_s

    def _take(self, tokens: Sequence[int], margins: Sequence[float], ends: Ends) -> int:
        """Append what the request receives of `tokens`; EOS, a stop or its limit cut them."""
        n, finish = ends.cut(self, tokens)
        self.tokens.extend(tokens[:n])
        self.margin.extend(margins[:n])
        self.finish = finish
        return n

    def trace(self, now_s: float, error: str = "") -> RequestTrace:
        """The finished request; raises InvalidEvaluation when its counts do not add up."""
        if not error:
            self._check()
        return RequestTrace(
            index=self.index,
            request_id=self.request.id,
            domain=self.request.domain,
            session=self.request.session or "",
            temperature=self.request.sampling.temperature,
            prompt_tokens=len(self.prompt),
            completion_tokens=len(self.tokens),
            ttft_ms=self.ttft_ms,
            latency_ms=(now_s - self.admitted_s) * 1e3,
            finish=Finish.ERROR if error or self.finish is None else self.finish,
            error=error,
            fell_back_at=self.fell_back_at,
            n_returns=self.fallback.n_returns if self.fallback else 0,
            proposed=np.array(self.proposed, np.int16),
            accepted=np.array(self.accepted, np.int16),
            emitted=np.array(self.emitted, np.int16),
            round_state=np.array(self.states, np.uint8),
            round_ms=np.array(self.round_ms, np.float32),
            tokens=np.array(self.tokens, np.int32),
            overlap=np.array(self.overlap, np.float32),
            margin=np.array(self.margin, np.float32),
        )

    def _check(self) -> None:
        """Conservation, for every request (replay.md, Counting rules)."""
        pairs = zip(self.proposed, self.accepted, self.emitted, strict=True)
        ok = all(0 <= a <= p and 1 <= e <= a + 1 for p, a, e in pairs)
        if not ok or 1 + sum(self.emitted) != len(self.tokens) or self.finish is None:
            raise InvalidEvaluation(
                f"request {self.request.id}: the counts do not add up: "
                f"1 + {sum(self.emitted)} emitted, {len(self.tokens)} tokens"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What ends a request besides its limit: the target's EOS ids and the request's stops."""

    eos: frozenset[int]
    decode: Decode | None = None

    def cut(self, row: Row, tokens: Sequence[int]) -> tuple[int, Finish | None]:
        """How many of the next `tokens` the request receives, and why it ends (None: it goes on).

        The token that completes a stop string is the last one received.
        """
        n, finish = min(len(tokens), row.room), None
        if len(tokens) >= row.room:
            finish = Finish.LENGTH
        for place, token in enumerate(tokens[:n]):
            if token in self.eos:
                n, finish = place + 1, Finish.EOS
                break
        if row.request.stop:
            stopped = self._first_stop(row, tokens[:n])
            if stopped and (stopped < n or finish is not Finish.EOS):
                n, finish = stopped, Finish.STOP
        return n, finish

    def _first_stop(self, row: Row, tokens: Sequence[int]) -> int:
        """The number of new tokens up to the one that completes a stop string; 0 if none does."""
        assert self.decode is not None
        stops = row.request.stop
        # A stop of c characters is at most 4c bytes, hence at most 4c byte-level tokens.
        tail = row.tokens[-(4 * max(map(len, stops)) + 8) :]
        text = self.decode([*tail, *tokens])
        if not any(stop in text for stop in stops):
            return 0
        for n in range(1, len(tokens) + 1):
            text = self.decode([*tail, *tokens[:n]])
            if any(stop in text for stop in stops):
                return n
        return 0


def failed(index: int, request: Request, error: str) -> RequestTrace:
    """The trace of a request that never ran. What the engine cannot honour is EXCLUDED, not an
    error: it is counted and never judged."""
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
        finish=Finish.EXCLUDED if request.unsupported else Finish.ERROR,
        error=error,
    )
