"""Token acceptance from the overlap: the same quantity as accepted / tested, with less noise.

A tested proposal is accepted with probability Σ min(p, q) at its position (Leviathan et al. 2023,
arXiv 2211.17192, Theorem 3.5). Each accepted/rejected flag can therefore be replaced by its
expectation: the sum over tested positions keeps its mean and loses the noise of the coin. What
remains is how requests differ. At temperature 0 the overlap is 0 or 1 and both are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import OVERALL, Estimate, Metric, Missing
from pairgate.domain.trace import Arm, TraceBatch
from pairgate.measure.acceptance import Part, domain_parts, pooled_of, temperature_parts
from pairgate.measure.totals import RequestTotals, Sampling, Verified, verified_rounds
from pairgate.stats.betting import Range

NAME = "token_acceptance.overlap"


def overlap_metrics(
    batch: TraceBatch, totals: RequestTotals, sampling: Sampling, *, domains: Sequence[str]
) -> Iterator[Metric]:
    """Σ overlap / tested, pooled: overall, by domain and by temperature. Shown, never judged.

    Missing unless every request logged the overlap of each position that it proposed.
    """
    rounds = verified_rounds(batch)
    proposed = np.bincount(rounds.request, weights=rounds.proposed, minlength=len(batch))
    n_silent = int((np.diff(batch.overlap_offsets) != proposed).sum())
    expected = None if n_silent else _expected(batch, rounds)
    overall = Part(scope=OVERALL, mask=np.ones(len(totals), bool))
    for part in (overall, *domain_parts(totals, domains), *temperature_parts(totals)):
        value: Estimate | Missing
        if expected is None:
            value = Missing(
                reason=f"{n_silent} of {len(batch)} requests have no log of Σ min(p, q)"
            )
        else:
            value = pooled_of(expected, totals.tested, Range(), totals, part, sampling)
        yield Metric(name=NAME, arm=Arm.SPEC, scope=part.scope, value=value)


def _expected(batch: TraceBatch, rounds: Verified) -> NDArray[np.float64]:
    """[n] per request, the overlaps of the tested positions: the first ones of each round."""
    n_tested = rounds.committed + rounds.rejected
    round_of = np.repeat(np.arange(len(rounds.proposed)), rounds.proposed)
    first = np.cumsum(rounds.proposed) - rounds.proposed
    tested = np.arange(len(round_of)) - first[round_of] < n_tested[round_of]
    values = np.where(tested, np.clip(batch.overlap.astype(np.float64), 0.0, 1.0), 0.0)
    owner = rounds.request[round_of]
    return np.bincount(owner, weights=values, minlength=len(batch)).astype(np.float64)
