"""Fallback as it would have happened: the rule over the rounds of the acceptance pass.

In that pass no request leaves speculation, so the rule sees all of every request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pairgate.domain.evidence import OVERALL, Estimate, Metric, Missing
from pairgate.domain.policy import FallbackSettings
from pairgate.domain.trace import Arm, TraceBatch
from pairgate.measure.totals import Ints, RequestTotals, Sampling, verified_rounds
from pairgate.stats.fallback_rule import replay_rule
from pairgate.stats.proportion import anytime_share, share_of_units

N_SIMULATED = 2000


def fallback_metrics(
    batch: TraceBatch,
    totals: RequestTotals,
    settings: FallbackSettings,
    break_even: tuple[tuple[int, float], ...],
    sampling: Sampling,
) -> Iterator[Metric]:
    """`fallback_share` and `fallback_misfire`; the floor `break-even` is that of the largest
    concurrency."""
    known = dict(break_even)
    missing = None
    if not totals.rounds.any():
        missing = Missing(reason="no token was drafted")
    elif isinstance(settings.floor, str):
        if known:
            settings = replace(settings, floor=known[max(known)])
        else:
            missing = Missing(reason="the break-even floor is not known: no speed blocks ran")
    if missing is not None:
        for name in ("fallback_share", "fallback_misfire"):
            yield Metric(name=name, arm=Arm.SPEC, scope=OVERALL, value=missing)
        return
    yield _share(batch, totals, settings, sampling)
    yield _misfire(totals, settings, sampling)


def _share(
    batch: TraceBatch, totals: RequestTotals, settings: FallbackSettings, sampling: Sampling
) -> Metric:
    rounds = verified_rounds(batch)
    ends = np.concatenate(([0], np.cumsum(totals.rounds)))
    replayed = replay_rule(rounds.proposed, rounds.accepted, rounds.emitted, ends, settings)
    drafted = totals.rounds > 0
    fell, cluster = replayed.fell[drafted], np.unique(totals.cluster[drafted], return_inverse=True)
    value = (
        anytime_share(fell, cluster[1], alpha=sampling.final_alpha, unit=totals.unit)
        if sampling.stopped
        else share_of_units(fell, cluster[1], alpha=sampling.final_alpha, unit=totals.unit)
    )
    return Metric(name="fallback_share", arm=Arm.SPEC, scope=OVERALL, value=value)


def _misfire(totals: RequestTotals, settings: FallbackSettings, sampling: Sampling) -> Metric:
    """How often the rule would fire if every request had the pooled acceptance, by chance alone.

    2,000 requests are simulated with the measured numbers of rounds and the mean draft length.
    """
    rng, drafted = sampling.rng, totals.rounds > 0
    tested = max(int(totals.tested.sum()), 1)
    acceptance = min(float(totals.committed.sum()) / tested, 1.0)
    if not isinstance(settings.floor, str) and acceptance < settings.floor:
        reason = f"the pooled acceptance {acceptance:.2f} lies under the floor {settings.floor:.2f}"
        value: Estimate | Missing = Missing(reason=f"{reason}, so firing is no mistake")
        return Metric(name="fallback_misfire", arm=Arm.SPEC, scope=OVERALL, value=value)
    k = max(1, round(float(totals.proposed.sum() / totals.rounds.sum())))
    n_rounds: Ints = rng.choice(totals.rounds[drafted], N_SIMULATED)
    total = int(n_rounds.sum())
    # A run of accepts until the first rejection, cut at K.
    accepted = (
        np.full(total, k)
        if acceptance >= 1.0
        else np.minimum(rng.geometric(1.0 - acceptance, total) - 1, k)
    )
    replayed = replay_rule(
        np.full(total, k),
        accepted,
        accepted + 1,
        np.concatenate(([0], np.cumsum(n_rounds))),
        settings,
    )
    value = share_of_units(
        replayed.fell, np.arange(N_SIMULATED), alpha=sampling.alpha, unit="simulated requests"
    )
    return Metric(name="fallback_misfire", arm=Arm.SPEC, scope=OVERALL, value=value)
