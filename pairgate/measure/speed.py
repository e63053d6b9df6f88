"""Speed and latency from interleaved blocks; both arms of a block ran the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import OVERALL, Estimate, Metric, Missing, Scope
from pairgate.domain.trace import Arm, RoundState, TraceBatch
from pairgate.measure.totals import Sampling, session_clusters
from pairgate.stats.betting import Range
from pairgate.stats.blocks import block_mean, block_ratio, quantile_interval
from pairgate.stats.ratio import clustered, pooled_ratio
from pairgate.stats.speculation import break_even

Floats = NDArray[np.float64]
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """The blocks of one concurrency that ran in both arms, in the same order."""

    concurrency: int
    with_draft: tuple[TraceBatch, ...]
    without_draft: tuple[TraceBatch, ...]

    @property
    def scope(self) -> Scope:
        return Scope(kind="concurrency", key=str(self.concurrency))


def speed_metrics(
    speed: Sequence[TraceBatch],
    acceptance: Sequence[Metric],
    sampling: Sampling,
    *,
    ratio_alpha: float,
) -> Iterator[Metric]:
    """Everything per concurrency; `acceptance` are the metrics so far, for the measured τ.

    Ratios of the arms are bounded at `ratio_alpha`: they were looked at on the way.
    """
    tau = next(
        (
            m.value
            for m in acceptance
            if m.name == "acceptance_length.pooled" and m.scope == OVERALL
        ),
        Missing(reason="the acceptance length was not measured"),
    )
    for concurrency in sorted({b.concurrency for b in speed}):
        blocks = _paired(concurrency, speed)
        yield from _ratios(blocks, tau, ratio_alpha)
        for arm in (Arm.SPEC, Arm.TARGET):
            yield from _arm_metrics(blocks.scope, arm, _of(speed, arm, concurrency), sampling)
        yield _plain_share(_of(speed, Arm.SPEC, concurrency), blocks.scope, sampling)
    yield _plain_share([b for b in speed if b.arm is Arm.SPEC], OVERALL, sampling)


def block_ratio_of(
    name: str, concurrency: int, speed: Sequence[TraceBatch], *, alpha: float
) -> Estimate | Missing:
    """One of the ratios with / without draft at one concurrency, by the name of its metric."""
    return _ratio(_paired(concurrency, speed), _RATIOS[name], alpha=alpha)


def break_even_metrics(metrics: Sequence[Metric]) -> Iterator[Metric]:
    """`break_even` per concurrency: the token acceptance at which the acceptance length equals
    the measured cost of a round, with the bounds of that cost carried through."""
    k = next((m.value for m in metrics if m.name == "draft_tokens_per_round"), None)
    if not isinstance(k, Estimate):
        return
    for metric in metrics:
        cost = metric.value
        if metric.name != "round_cost_ratio" or not isinstance(cost, Estimate):
            continue
        yield Metric(
            name="break_even",
            arm=Arm.SPEC,
            scope=metric.scope,
            value=Estimate(
                value=break_even(cost.value, k.value),
                low=break_even(cost.low, k.value),
                high=break_even(cost.high, k.value),
                n=cost.n,
                unit=cost.unit,
                alpha=cost.alpha,
                method="acceptance length = round cost",
            ),
        )


def break_even_points(metrics: Sequence[Metric]) -> tuple[tuple[int, float], ...]:
    """(concurrency, token acceptance at which τ equals the round's cost in plain steps)."""
    return tuple(
        (int(m.scope.key), m.value.value)
        for m in metrics
        if m.name == "break_even" and isinstance(m.value, Estimate)
    )


def carry_over_speedups(speed: Sequence[TraceBatch], *, alpha: float) -> Iterator[Metric]:
    """`speedup` of the arm `carry-over`, per concurrency, against its own blocks of the target."""
    for concurrency in sorted({b.concurrency for b in speed}):
        blocks = _paired(concurrency, speed, Arm.CARRY_OVER)
        value = _ratio(blocks, _tokens_per_s, alpha=alpha)
        yield Metric(name="speedup", arm=Arm.CARRY_OVER, scope=blocks.scope, value=value)


def _of(speed: Sequence[TraceBatch], arm: Arm, concurrency: int) -> list[TraceBatch]:
    return [b for b in speed if b.arm is arm and b.concurrency == concurrency]


def _paired(concurrency: int, speed: Sequence[TraceBatch], drafted: Arm = Arm.SPEC) -> Blocks:
    arms = [
        {b.block: b for b in _of(speed, arm, concurrency) if len(b)}
        for arm in (drafted, Arm.TARGET)
    ]
    both = sorted(arms[0].keys() & arms[1].keys())
    return Blocks(
        concurrency=concurrency,
        with_draft=tuple(arms[0][i] for i in both),
        without_draft=tuple(arms[1][i] for i in both),
    )


def _ratios(blocks: Blocks, tau: Estimate | Missing, alpha: float) -> Iterator[Metric]:
    for name, of in _RATIOS.items():
        value = _ratio(blocks, of, alpha=alpha)
        yield Metric(name=name, arm=Arm.SPEC, scope=blocks.scope, value=value)
    cost = _ratio(blocks, _step_ms, alpha=alpha)
    yield Metric(name="round_cost_ratio", arm=Arm.SPEC, scope=blocks.scope, value=cost)
    yield Metric(
        name="predicted_speedup",
        arm=Arm.SPEC,
        scope=blocks.scope,
        value=_predicted(tau, cost),
    )


def _ratio(
    blocks: Blocks, of: Callable[[TraceBatch], float], *, alpha: float
) -> Estimate | Missing:
    with_draft = np.array([of(b) for b in blocks.with_draft])
    without_draft = np.array([of(b) for b in blocks.without_draft])
    return block_ratio(with_draft, without_draft, alpha=alpha)


def _predicted(tau: Estimate | Missing, cost: Estimate | Missing) -> Estimate | Missing:
    """τ / cost ratio: what the round costs allow. The gap to `speedup` is overhead of the engine,
    prefill and ramps. The bounds are those of both parts at their worst."""
    if isinstance(tau, Missing):
        return tau
    if isinstance(cost, Missing):
        return cost
    return Estimate(
        value=tau.value / cost.value,
        low=tau.low / cost.high,
        high=tau.high / cost.low,
        n=cost.n,
        unit=cost.unit,
        alpha=cost.alpha,
        method="acceptance length / round cost",
    )


def _arm_metrics(
    scope: Scope, arm: Arm, batches: Sequence[TraceBatch], sampling: Sampling
) -> Iterator[Metric]:
    filled = [b for b in batches if len(b)]
    if not filled:
        return
    rates = np.array([_tokens_per_s(b) for b in filled])
    yield Metric(
        name="tokens_per_s", arm=arm, scope=scope, value=block_mean(rates, alpha=sampling.alpha)
    )
    gaps = np.concatenate([b.round_ms[b.emitted > 0].astype(float) for b in filled])
    for name, values, unit in (
        ("ttft_ms", np.concatenate([b.ttft_ms for b in filled]), "requests"),
        ("tpot_ms", np.concatenate([tpot_ms(b) for b in filled]), "requests"),
        ("chunk_gap_ms", gaps, "chunks"),
    ):
        finite = values[np.isfinite(values)]
        for p in PERCENTILES:
            value = quantile_interval(finite, p / 100.0, alpha=sampling.alpha, unit=unit)
            yield Metric(name=f"{name}.p{p}", arm=arm, scope=scope, value=value)


def tpot_ms(batch: TraceBatch) -> Floats:
    """[requests with two tokens at least] mean time per output token after the first."""
    several = batch.completion_tokens > 1
    after_first = batch.latency_ms[several] - batch.ttft_ms[several]
    result: Floats = after_first / (batch.completion_tokens[several] - 1)
    return result


def _tokens_per_s(batch: TraceBatch) -> float:
    return float(batch.completion_tokens.sum()) / batch.wall_s if batch.wall_s > 0 else np.nan


def _quantile(values: Floats, q: float) -> float:
    finite = values[np.isfinite(values)]
    return float(np.quantile(finite, q)) if len(finite) else np.nan


def _step_ms(batch: TraceBatch) -> float:
    """Mean time of a draft round, or of a plain step in the arm without a draft."""
    state = RoundState.TARGET_ONLY if batch.arm is Arm.TARGET else RoundState.DRAFTED
    times = batch.round_ms[(batch.round_state == state) & np.isfinite(batch.round_ms)]
    return float(times.mean(dtype=np.float64)) if len(times) else np.nan


def _plain_share(batches: Sequence[TraceBatch], scope: Scope, sampling: Sampling) -> Metric:
    """Share of the emitted tokens that were decoded without the draft in the arm with one."""
    name, filled = "plain_token_share", [b for b in batches if len(b)]
    value: Estimate | Missing = Missing(reason="no speed block ran with the draft")
    if filled:
        plain = np.concatenate([_plain_tokens(b) for b in filled])
        written = np.concatenate([b.completion_tokens for b in filled]).astype(float)
        session = np.concatenate([b.session for b in filled])
        sums = clustered(plain, written, session_clusters(session))
        unit = "sessions" if bool((session != "").any()) else "requests"
        value = pooled_ratio(
            sums, alpha=sampling.alpha, rng=sampling.rng, unit=unit, support=Range()
        )
    return Metric(name=name, arm=Arm.SPEC, scope=scope, value=value)


def _plain_tokens(batch: TraceBatch) -> Floats:
    plain = (batch.round_state != RoundState.DRAFTED) & (batch.round_state != RoundState.UNCOUNTED)
    weights = np.where(plain, batch.emitted, 0)
    return np.bincount(batch.round_request, weights=weights, minlength=len(batch)).astype(float)


_RATIOS: dict[str, Callable[[TraceBatch], float]] = {
    "speedup": _tokens_per_s,
    "ttft_ratio.p95": lambda b: _quantile(b.ttft_ms, 0.95),
    "tpot_ratio.p95": lambda b: _quantile(tpot_ms(b), 0.95),
}
