"""How many requests lie under the floor by themselves, and whether there are two kinds."""

from __future__ import annotations

from pairgate.domain.evidence import OVERALL, Estimate, Metric, Missing, Mixture
from pairgate.domain.trace import Arm
from pairgate.measure.totals import RequestTotals, Sampling
from pairgate.stats.mixture import bimodality


def below_floor(
    totals: RequestTotals, floor: float, sampling: Sampling
) -> tuple[Mixture | None, Metric]:
    """The mixture's description and the metric `share_below_floor` (deconvolved, not raw)."""
    found = bimodality(
        totals.committed,
        totals.tested,
        totals.cluster,
        floor=floor,
        alpha=sampling.alpha,
        rng=sampling.rng,
        unit=totals.unit,
    )
    mixture: Mixture | None = None
    value: Estimate | Missing
    if isinstance(found, Missing):
        value = found
    else:
        mixture, value = found.mixture, found.share_below_floor
    return mixture, Metric(name="share_below_floor", arm=Arm.SPEC, scope=OVERALL, value=value)
