"""Acceptance of single requests: the histogram per domain, its null band, the worst requests.

Numbers that decide come from `pairgate.measure`; here they are only drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.trace import RoundState, TraceBatch

N_SIMULATIONS = 400
MIN_TESTED = 15  # below, one request's share says nothing (gate.md, Bimodality)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestAcceptance:
    """Per request [n]: `tested` and `accepted` tokens of drafted rounds, cut at the request's end
    (a rejection beyond the room that was left is not counted: gate.md, Definitions)."""

    request_id: NDArray[np.str_]
    domain: NDArray[np.str_]
    temperature: NDArray[np.float64]
    prompt_tokens: NDArray[np.int32]
    completion_tokens: NDArray[np.int32]
    tested: NDArray[np.int64]
    accepted: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tested)

    @property
    def share(self) -> NDArray[np.float64]:
        """[n] accepted of tested; requests without a tested token are NaN."""
        with np.errstate(invalid="ignore"):
            return self.accepted / np.where(self.tested > 0, self.tested, np.nan)

    def where(self, mask: NDArray[np.bool_]) -> RequestAcceptance:
        return RequestAcceptance(**{name: getattr(self, name)[mask] for name in self.__slots__})


def request_acceptance(batch: TraceBatch) -> RequestAcceptance:
    """The requests of the acceptance pass that neither failed nor were excluded."""
    drafted = batch.round_state == RoundState.DRAFTED
    proposed, accepted, emitted = (
        column[drafted].astype(np.int64)
        for column in (batch.proposed, batch.accepted, batch.emitted)
    )
    kept = np.minimum(accepted, emitted)
    rejected = (accepted < proposed) & (emitted == accepted + 1)
    owner, n = batch.round_request[drafted], len(batch)
    everything = RequestAcceptance(
        request_id=batch.request_id,
        domain=batch.domain,
        temperature=batch.temperature,
        prompt_tokens=batch.prompt_tokens,
        completion_tokens=batch.completion_tokens,
        tested=np.bincount(owner, weights=kept + rejected, minlength=n).astype(np.int64),
        accepted=np.bincount(owner, weights=kept, minlength=n).astype(np.int64),
    )
    return everything.where(batch.ok)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histogram:
    """Requests of one domain by their own token acceptance, over `edges` [bins + 1].

    `low` and `high` [bins] hold 95 % of the counts that a bin would have if all requests of the
    domain had the same acceptance and differed by chance alone.
    """

    domain: str
    n: int
    n_left_out: int
    pooled: float
    median: float
    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def n_outside(self) -> int:
        return int(((self.counts < self.low) | (self.counts > self.high)).sum())


def histogram(
    domain: str, requests: RequestAcceptance, *, seed: int, n_bins: int = 20
) -> Histogram | None:
    """Histogram with its null band; None when no request has `MIN_TESTED` tested tokens.

    The null draws each request's accepted tokens from Binomial(its tested tokens, the domain's
    pooled acceptance), `N_SIMULATIONS` times.
    """
    enough = requests.tested >= MIN_TESTED
    if not enough.any():
        return None
    used = requests.where(enough)
    pooled = float(used.accepted.sum() / used.tested.sum())
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    rng = np.random.default_rng(seed)
    null = np.empty((N_SIMULATIONS, n_bins), np.int64)
    for i in range(N_SIMULATIONS):
        null[i] = _counts(rng.binomial(used.tested, pooled) / used.tested, n_bins)
    low, high = np.quantile(null, (0.025, 0.975), axis=0)
    return Histogram(
        domain=domain,
        n=len(used),
        n_left_out=len(requests) - len(used),
        pooled=pooled,
        median=float(np.median(used.share)),
        edges=edges,
        counts=_counts(used.share, n_bins),
        low=low,
        high=high,
    )


def histograms(
    requests: RequestAcceptance, *, seed: int, n_bins: int = 20
) -> tuple[Histogram, ...]:
    """One per domain that has enough tokens, lowest pooled acceptance first."""
    found = [
        histogram(str(domain), requests.where(requests.domain == domain), seed=seed, n_bins=n_bins)
        for domain in np.unique(requests.domain)
    ]
    return tuple(sorted((h for h in found if h is not None), key=lambda h: (h.pooled, h.domain)))


def worst_requests(requests: RequestAcceptance, n: int) -> RequestAcceptance:
    """The `n` requests with the lowest acceptance among those with enough tested tokens; of equal
    ones the longest first."""
    enough = requests.where(requests.tested >= MIN_TESTED)
    order = np.lexsort((enough.request_id, -enough.tested, enough.share))[:n]
    return RequestAcceptance(**{name: getattr(enough, name)[order] for name in enough.__slots__})


def _counts(shares: NDArray[np.float64], n_bins: int) -> NDArray[np.int64]:
    """[bins] how many fall into each; 1.0 belongs to the last bin, and an exact edge such as 9/15
    to the bin above it in spite of rounding."""
    bins = np.minimum((shares * n_bins + 1e-9).astype(np.int64), n_bins - 1)
    return np.bincount(bins, minlength=n_bins).astype(np.int64)
