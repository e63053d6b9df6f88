"""Looking while a replay still runs, without spending more error than the policy allows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pairgate.domain.evidence import Missing
from pairgate.domain.policy import AcceptanceRule, Mode, Policy, ReplaySettings, SpeedupRule
from pairgate.domain.trace import TraceBatch
from pairgate.measure.acceptance import counted, request_mean
from pairgate.measure.counts import usable
from pairgate.measure.speed import speedup
from pairgate.measure.totals import Sampling, request_totals

_MIN_REQUESTS = 30


def speed_alpha(alpha: float, replay: ReplaySettings) -> float:
    """Level of one look at the speed blocks: alpha spent evenly over the planned looks.

    Looks happen after min_blocks, 2 × min_blocks, … up to max_blocks.
    """
    return alpha / -(-replay.max_blocks // replay.min_blocks)


def speed_looks(policy: Policy, *, alpha: float) -> Callable[[int, tuple[TraceBatch, ...]], bool]:
    """Asks for more blocks at a gated concurrency while its speedup is undecided."""
    rule = next((r for r in policy.rules if isinstance(r, SpeedupRule)), None)
    level = speed_alpha(alpha, policy.replay)

    def more_blocks(concurrency: int, blocks: tuple[TraceBatch, ...]) -> bool:
        if rule is None or rule.mode is Mode.ADVISE or concurrency in rule.advise_at:
            return False
        if rule.concurrencies is not None and concurrency not in rule.concurrencies:
            return False
        found = speedup(concurrency, [usable(b) for b in blocks], alpha=level)
        if isinstance(found, Missing):
            return False  # more of the same would not be measured either
        return found.low <= rule.min_ratio <= found.high

    return more_blocks


def acceptance_stop(policy: Policy, *, alpha: float) -> Callable[[TraceBatch], bool]:
    """Ends the acceptance pass as soon as the request mean is under the threshold for sure.

    Betting stays valid at every look. Only a FAIL stops: the pooled bound of a PASS holds at the
    planned n alone. A break-even threshold is not known before the speed blocks, so it never stops.
    """
    rule = next((r for r in policy.rules if isinstance(r, AcceptanceRule)), None)

    def stop(batch: TraceBatch) -> bool:
        if rule is None or rule.mode is Mode.ADVISE or isinstance(rule.threshold, str):
            return False
        if not policy.replay.early_stopping:
            return False
        totals = request_totals(usable(batch))
        sampling = Sampling(alpha=alpha, rng=np.random.default_rng(policy.seed), shuffle=False)
        everything = np.ones(len(totals), bool)
        mean = request_mean(counted(totals, rule.rate), totals, everything, sampling)
        return (
            not isinstance(mean, Missing) and mean.n >= _MIN_REQUESTS and mean.high < rule.threshold
        )

    return stop
