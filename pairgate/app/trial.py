"""`try`: what speculation brings on servers that run already. Nothing is stored; no evidence.

Every request runs once with the draft, at the smallest concurrency, for the acceptance; then blocks
of requests alternate between the two servers at each concurrency, for the speed. A server without
counts per request is asked one request at a time for that, and its counters are differenced.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pairgate.app.engines import dialect_of
from pairgate.domain.evidence import Estimate, Missing
from pairgate.domain.policy import Rate
from pairgate.domain.trace import Arm, Phase, RequestTrace, RoundState, TraceBatch
from pairgate.errors import InvalidEvaluation, InvalidInput
from pairgate.measure.acceptance import counted as counters_of
from pairgate.measure.counts import usable
from pairgate.measure.speed import block_ratio_of, tpot_ms
from pairgate.measure.totals import request_totals, verified_rounds
from pairgate.replay.order import blocks_drawn
from pairgate.stats.betting import UNIT, Range
from pairgate.stats.ratio import clustered, pooled_ratio

if TYPE_CHECKING:
    from pairgate.domain.traffic import Request
    from pairgate.engines.server.block import Load
    from pairgate.engines.server.places import Endpoint
    from pairgate.ports import Progress

ALPHA = 0.025
_SEED = 20230530
_WARMUP_TOKENS = 16
_BLOCK, _BLOCK_ALONE = 16, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """`arrival_scale` adds an open loop at the log's own arrival times, multiplied by it."""

    endpoint: str
    baseline: str | None = None
    concurrencies: tuple[int, ...] = (1, 8)
    n_requests: int = 64
    n_blocks: int = 3
    arrival_scale: float | None = None
    engine: str = "vllm"
    watchdog_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpeed:
    """One server under one load. Times in ms; of the requests that finished."""

    ttft_p50: float
    ttft_p95: float
    tpot_p50: float
    tokens_per_s: float
    n_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load: `load` is a concurrency, or 0 for the open loop at arrival times."""

    load: int
    with_draft: ArmSpeed
    without_draft: ArmSpeed | None
    speedup: Estimate | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was seen. `rate` names the acceptance: without counts per request it is accepted of
    proposed, and `histogram` (share of draft steps by accepted tokens, 0 … K) is empty."""

    version: str
    model: str
    baseline_version: str | None
    rate: Rate
    acceptance: Estimate | Missing
    acceptance_length: Estimate | Missing
    histogram: tuple[float, ...]
    n_requests: int
    n_failed: int
    n_uncounted: int
    first_error: str
    rows: tuple[Row, ...]


@dataclass(slots=True, kw_only=True)
class _Session:
    """One run of `try`: its servers, its traffic, and what failed so far."""

    options: TrialOptions
    requests: tuple[Request, ...]
    spec: Endpoint
    target: Endpoint | None
    progress: Progress
    counted: bool = True
    failures: list[str] = field(default_factory=list)

    def block(self, endpoint: Endpoint, indices: tuple[int, ...], load: Load) -> TraceBatch:
        """One block; a warm-up is not kept by the caller."""
        return self._run(endpoint, [(i, self.requests[i]) for i in indices], load)

    def warm_up(self, endpoint: Endpoint, load: Load) -> None:
        few = [
            (i, replace(r, max_tokens=min(r.max_tokens, _WARMUP_TOKENS)))
            for i, r in enumerate(self.requests[: min(2, load.concurrency) + 1])
        ]
        self._run(endpoint, few, load)

    def _run(
        self, endpoint: Endpoint, requests: list[tuple[int, Request]], load: Load
    ) -> TraceBatch:
        from pairgate.engines.server.block import Replayed

        dialect = dialect_of(self.options.engine)
        block = Replayed(
            dialect,
            endpoint,
            load,
            salt=f"pairgate-try-{secrets.token_hex(8)}",
            watchdog_s=self.options.watchdog_s,
            require_alive=_require_answer,
        )
        begin = time.perf_counter()
        rows = list(block.run(requests))
        wall_s = time.perf_counter() - begin - block.aside_s
        self.failures += [t.error for t in rows if not t.ok]
        return _batch(rows, endpoint, load, wall_s, dialect.definition)


def try_servers(source: Path, options: TrialOptions, *, progress: Progress | None = None) -> Trial:
    """Run the trial. Raises `Unavailable` for a server that does not answer, `InvalidInput` for a
    log without usable requests, `InvalidEvaluation` when other traffic reaches the servers."""
    from pairgate.engines.server.asking import base_url
    from pairgate.engines.server.places import Endpoint

    dialect = dialect_of(options.engine)
    requests = _requests(source, options)

    def endpoint(url: str, *, with_draft: bool) -> Endpoint:
        address = base_url(url)
        return Endpoint(url=address, identity=dialect.identity(address), with_draft=with_draft)

    session = _Session(
        options=options,
        requests=requests,
        spec=endpoint(options.endpoint, with_draft=True),
        target=None if options.baseline is None else endpoint(options.baseline, with_draft=False),
        progress=progress or (lambda *_: None),
    )
    session.counted = _counts_per_request(session)
    accepted = _acceptance(session)
    rows = tuple(_speed_rows(session))
    return replace(
        accepted,
        rows=rows,
        n_failed=len(session.failures),
        first_error=session.failures[0] if session.failures else "",
    )


def _requests(source: Path, options: TrialOptions) -> tuple[Request, ...]:
    from pairgate.traffic.importing import ReadOptions, read_logs, settle
    from pairgate.traffic.report import Tally
    from pairgate.traffic.sampling import SampleSize, sample

    tally = Tally()
    found = sample(
        read_logs([str(source)], ReadOptions(), tally),
        SampleSize(total=options.n_requests),
        _SEED,
        tally,
    )
    if not found:
        raise InvalidInput(
            f"{source} holds no usable request",
            hint="it takes what `pairgate slice create` takes, e.g. one OpenAI body per line",
        )
    return settle(found)


def _counts_per_request(session: _Session) -> bool:
    """Whether the server sends counts with an answer; found out with one short request."""
    from pairgate.engines.server.block import Load

    session.progress("looking at the server", 0, 1, "")
    try:
        session.warm_up(session.spec, Load(concurrency=1))
    except InvalidEvaluation as error:
        if "sends no" not in error.message:
            raise
        return False
    return True


def _acceptance(session: _Session) -> Trial:
    if not session.counted:
        return _from_counters(session)
    from pairgate.engines.server.block import Load

    n = len(session.requests)
    session.progress("acceptance", 0, n, "")
    load = Load(concurrency=min(session.options.concurrencies))
    batch = session.block(session.spec, tuple(range(n)), load)
    session.progress("acceptance", n, n, "")
    fine = usable(batch)
    totals, rounds = request_totals(fine), verified_rounds(fine)
    histogram = np.bincount(rounds.accepted) if len(rounds.accepted) else np.zeros(0)
    uncounted = np.bincount(
        fine.round_request[fine.round_state == RoundState.UNCOUNTED], minlength=len(fine)
    )
    values = {rate: counters_of(totals, rate) for rate in Rate}
    pooled = {rate: _pooled(v.numerator, v.denominator, v.support) for rate, v in values.items()}
    return Trial(
        version=session.spec.identity.version,
        model=session.spec.identity.model,
        baseline_version=session.target.identity.version if session.target else None,
        rate=Rate.TOKEN_ACCEPTANCE,
        acceptance=pooled[Rate.TOKEN_ACCEPTANCE],
        acceptance_length=pooled[Rate.ACCEPTANCE_LENGTH],
        histogram=tuple((histogram / max(1, histogram.sum())).tolist()),
        n_requests=n,
        n_failed=0,
        n_uncounted=int((uncounted > 0).sum()),
        first_error="",
        rows=(),
    )


def _from_counters(session: _Session) -> Trial:
    """One request at a time; what the counters moved by is that request's."""
    from pairgate.engines.server.block import Load, Replayed

    dialect = dialect_of(session.options.engine)
    moved = []
    for done, request in enumerate(session.requests):
        session.progress("acceptance by counters", done, len(session.requests), "one at a time")
        block = Replayed(
            dialect,
            session.spec,
            Load(concurrency=1, counted=False),
            salt=f"pairgate-try-{secrets.token_hex(8)}",
            watchdog_s=session.options.watchdog_s,
            require_alive=_require_answer,
        )
        (trace,) = block.run([(done, request)])
        if not trace.ok:
            session.failures.append(trace.error)
            continue
        m = block.moved
        if m.n_drafts is None or m.n_draft_tokens is None or m.n_accepted is None:
            raise InvalidEvaluation(
                f"{session.spec.url} has no counters of speculative decoding either",
                hint="is this the server with the draft?",
            )
        moved.append((m.n_accepted, m.n_draft_tokens, m.n_drafts))
    accepted, proposed, drafts = np.array(moved, np.float64).reshape(-1, 3).T
    longest = float(np.max(proposed / np.maximum(drafts, 1), initial=1.0)) + 1.0
    return Trial(
        version=session.spec.identity.version,
        model=session.spec.identity.model,
        baseline_version=session.target.identity.version if session.target else None,
        rate=Rate.ACCEPTANCE_RATE,
        acceptance=_pooled(accepted, proposed, UNIT),
        acceptance_length=_pooled(accepted + drafts, drafts, Range(low=0.0, high=longest)),
        histogram=(),
        n_requests=len(session.requests),
        n_failed=0,
        n_uncounted=0,
        first_error="",
        rows=(),
    )


def _pooled(
    numerator: NDArray[np.generic], denominator: NDArray[np.generic], support: Range
) -> Estimate | Missing:
    keep = denominator.astype(float) > 0
    if not keep.any():
        return Missing(reason="no token was drafted")
    sums = clustered(
        numerator[keep].astype(float), denominator[keep].astype(float), np.arange(int(keep.sum()))
    )
    return pooled_ratio(
        sums, alpha=ALPHA, rng=np.random.default_rng(_SEED), unit="requests", support=support
    )


def _speed_rows(session: _Session) -> Iterator[Row]:
    from pairgate.engines.server.block import Load

    order = tuple(range(len(session.requests)))
    for concurrency in session.options.concurrencies:
        size = _BLOCK_ALONE if concurrency == 1 else max(_BLOCK, 2 * concurrency)
        drawn = blocks_drawn(order, size, seed=_SEED, concurrency=concurrency)
        load = Load(concurrency=concurrency, counted=session.counted)
        yield _row(session, load, [next(drawn) for _ in range(session.options.n_blocks)])
    scale = session.options.arrival_scale
    if scale is not None:
        if all(r.arrival_s is None for r in session.requests):
            raise InvalidInput("the log has no arrival times, so there is no open loop to run")
        load = Load(concurrency=len(order), arrival_scale=scale, counted=session.counted)
        yield _row(session, load, [order])


def _row(session: _Session, load: Load, blocks: list[tuple[int, ...]]) -> Row:
    """The blocks alternate: without, with, with, without, …"""
    servers = [s for s in (session.target, session.spec) if s is not None]
    name = "arrivals" if load.arrival_scale is not None else f"concurrency {load.concurrency}"
    if load.arrival_scale is None:
        for server in servers:
            session.warm_up(server, load)
    found: list[TraceBatch] = []
    for number, indices in enumerate(blocks):
        session.progress(name, number, len(blocks), "")
        for server in servers if number % 2 == 0 else servers[::-1]:
            found.append(replace(session.block(server, indices, load), block=number))
    session.progress(name, len(blocks), len(blocks), "")
    key = found[0].concurrency
    alone = [b for b in found if b.arm is Arm.TARGET]
    ratio: Estimate | Missing = Missing(reason="no baseline was given")
    if alone:
        fine = [usable(b) for b in found]
        ratio = block_ratio_of("speedup", key, fine, alpha=ALPHA)
    return Row(
        load=key,
        with_draft=_arm([b for b in found if b.arm is Arm.SPEC]),
        without_draft=_arm(alone) if alone else None,
        speedup=ratio,
    )


def _arm(batches: list[TraceBatch]) -> ArmSpeed:
    fine = [usable(b) for b in batches]
    ttft = np.concatenate([b.ttft_ms for b in fine])
    tpot = np.concatenate([tpot_ms(b) for b in fine])
    tokens = sum(int(b.completion_tokens.sum()) for b in fine)
    return ArmSpeed(
        ttft_p50=_quantile(ttft, 0.5),
        ttft_p95=_quantile(ttft, 0.95),
        tpot_p50=_quantile(tpot, 0.5),
        tokens_per_s=tokens / sum(b.wall_s for b in batches),
        n_requests=len(ttft),
    )


def _quantile(values: NDArray[np.float64], q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else float("nan")


def _batch(
    rows: list[RequestTrace], endpoint: Endpoint, load: Load, wall_s: float, definition: str
) -> TraceBatch:
    return TraceBatch.from_rows(
        rows,
        arm=Arm.SPEC if endpoint.with_draft else Arm.TARGET,
        phase=Phase.SPEED,
        concurrency=0 if load.arrival_scale is not None else load.concurrency,
        block=0,
        wall_s=wall_s,
        definition=definition,
    )


def _require_answer(endpoint: Endpoint) -> None:
    from pairgate.engines.server.asking import get_text

    get_text(f"{endpoint.url}/metrics")
