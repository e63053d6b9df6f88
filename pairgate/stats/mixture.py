"""Two kinds of requests or one? A beta-binomial mixture of accepted-of-tested counts.

Given a request's own acceptance p, the likelihood of its tested tokens is exactly p^A (1 − p)^R, so
the counts can be fitted without a histogram. p is a beta variable per component and is discretised
on a grid; then EM (Dempster, Laird & Rubin 1977) is a few matrix products and a small Newton step,
for many bootstrap resamples at once. Only unique (accepted, tested) pairs enter, with their counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pairgate.domain.evidence import Estimate, Missing, Mixture
from pairgate.stats.proportion import wilson

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIN_TESTED = 15
MIN_REQUESTS = 100
_GRID = (np.arange(160) + 0.5) / 160.0
_LOG_P, _LOG_Q = np.log(_GRID), np.log1p(-_GRID)
_STEPS, _FIRST_STEPS, _BOOTSTRAP_STEPS = 400, 30, 25
_TOLERANCE = 1e-6  # gain of log-likelihood per request in one step
_RESAMPLES, _RESAMPLE_SIZE, _BOOTSTRAP_UP_TO = 200, 2000, 5000
_MAX_CONCENTRATION = 5000.0
_MIN_GAIN, _N_MODES, _UNIMODAL_UP_TO = 4.0, 5, 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """B fits of a mixture of C betas: `weight`, `a`, `b` [B, C] and `log_likelihood` [B]."""

    weight: Floats
    a: Floats
    b: Floats
    log_likelihood: Floats

    def row(self, i: int) -> Fit:
        return Fit(
            weight=self.weight[i : i + 1],
            a=self.a[i : i + 1],
            b=self.b[i : i + 1],
            log_likelihood=self.log_likelihood[i : i + 1],
        )

    def share_below(self, floor: float) -> Floats:
        """[B] mass of the fitted law of p under `floor`."""
        return np.sum(self.weight * special.betainc(self.a, self.b, floor), axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Counted:
    """Requests as unique (accepted, tested) pairs [U]: their `likelihood` [U, G] on the grid, and
    `which` pair each request [n] is."""

    pairs: Ints
    likelihood: Floats
    which: Ints

    @property
    def counts(self) -> Floats:
        """[1, U] requests per pair."""
        return np.bincount(self.which).astype(float)[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bimodality:
    """The fit's description and the share of requests whose own acceptance is under the floor."""

    mixture: Mixture
    share_below_floor: Estimate


def bimodality(
    accepted: Ints,
    tested: Ints,
    cluster: Ints,
    *,
    floor: float,
    alpha: float,
    rng: np.random.Generator,
    unit: str,
) -> Bimodality | Missing:
    """Fit requests with at least 15 tested tokens; fewer than 100 of them are Missing.

    Strong flag: ΔBIC > 6, valley ≤ half of the lower mode, both masses ≥ 0.05, means ≥ 0.15 apart,
    and twice the gain in log-likelihood over the best law with one mode > 4: two betas fit a flat
    plateau better than one and leave a valley in it that is not there.
    The bound on the share is the larger of bootstrap and Wilson; above 5,000 requests Wilson alone.
    """
    enough = tested >= MIN_TESTED
    counted = _counted(accepted, tested)
    if isinstance(counted, Missing):
        return counted
    cluster, n = cluster[enough], len(counted.which)
    two = _best_of_starts(counted)
    n_clusters = len(np.unique(cluster))
    share = float(two.share_below(floor)[0])
    low, high = wilson(share, n_clusters, alpha=alpha)
    if n <= _BOOTSTRAP_UP_TO:
        boot_low, boot_high = _bootstrap(
            counted.likelihood, two, counted.which, cluster, floor=floor, alpha=alpha, rng=rng
        )
        low, high = min(low, boot_low), max(high, boot_high)
    mixture = _kinds(counted, two, rng)
    return Bimodality(
        mixture=mixture,
        share_below_floor=Estimate(
            value=share,
            low=min(low, share),
            high=max(high, share),
            n=n_clusters,
            unit=unit,
            alpha=alpha,
            method="beta-binomial mixture",
        ),
    )


def two_kinds(accepted: Ints, tested: Ints, *, rng: np.random.Generator) -> Mixture | Missing:
    """The fit's description alone, without the share and its bootstrap."""
    counted = _counted(accepted, tested)
    if isinstance(counted, Missing):
        return counted
    return _kinds(counted, _best_of_starts(counted), rng)


def _counted(accepted: Ints, tested: Ints) -> _Counted | Missing:
    enough = tested >= MIN_TESTED
    n = int(enough.sum())
    if n < MIN_REQUESTS:
        return Missing(
            reason=f"{n} requests have {MIN_TESTED} tested tokens, {MIN_REQUESTS} are needed", n=n
        )
    both = np.stack((accepted[enough], tested[enough]))
    pairs, which = np.unique(both, axis=1, return_inverse=True)
    return _Counted(pairs=pairs, likelihood=_likelihood(pairs[0], pairs[1] - pairs[0]), which=which)


def _kinds(counted: _Counted, two: Fit, rng: np.random.Generator) -> Mixture:
    """What the two components look like, and whether they are more than one wide kind."""
    likelihood, which = counted.likelihood, counted.which
    start = _single_start(counted.pairs, counted.counts[0])
    one = _em(likelihood, counted.counts, start, _STEPS)
    mixture = _described(len(which), one, two)
    if not mixture.strong:
        return mixture
    kept = which
    if len(which) > _UNIMODAL_UP_TO:
        kept = rng.choice(which, _UNIMODAL_UP_TO, replace=False)
    gained = _gain_over_one_mode(likelihood, kept, two, mixture)
    return replace(mixture, strong=gained > _MIN_GAIN)


def _likelihood(accepted: Ints, rejected: Ints) -> Floats:
    """[U, G] likelihood of each pair at each grid point, over its own largest (against underflow;
    the factor is the same for every model)."""
    log = accepted[:, None] * _LOG_P + rejected[:, None] * _LOG_Q
    return np.exp(log - log.max(axis=1, keepdims=True))


def _em(likelihood: Floats, counts: Floats, start: Fit, steps: int) -> Fit:
    """EM from `start` (B fits) on `counts` [B, U], until no fit gains any more."""
    weight, a, b = start.weight, start.a, start.b
    n_fits, n_parts = weight.shape
    total = counts.sum(axis=1, keepdims=True)
    before = np.full(n_fits, -np.inf)
    for _ in range(steps):
        prior = _beta_on_grid(a, b)  # [B, C, G]
        parts = (prior.reshape(-1, _GRID.size) @ likelihood.T).reshape(n_fits, n_parts, -1)
        parts *= weight[:, :, None]
        mixed = np.maximum(parts.sum(axis=1), 1e-300)
        now = (counts * np.log(mixed)).sum(axis=1)
        if (now - before < _TOLERANCE * total[:, 0]).all():
            break
        before = now
        share = (counts / mixed)[:, None]
        mass = (parts * share).sum(axis=2)  # [B, C] expected requests of each component
        # Posterior over the grid, summed over requests: what a beta is fitted to.
        spread = (share.reshape(n_fits, -1) @ likelihood)[:, None] * prior * weight[:, :, None]
        safe = np.maximum(mass, 1e-9)
        a, b = _beta_step(a, b, spread @ _LOG_P / safe, spread @ _LOG_Q / safe)
        weight = mass / total
    return Fit(weight=weight, a=a, b=b, log_likelihood=before)


def _beta_on_grid(a: Floats, b: Floats) -> Floats:
    """[.., G] beta densities on the grid, each summing to 1."""
    log = (a[..., None] - 1.0) * _LOG_P + (b[..., None] - 1.0) * _LOG_Q
    density = np.exp(log - log.max(axis=-1, keepdims=True))
    return density / density.sum(axis=-1, keepdims=True)


def _beta_step(
    a: Floats, b: Floats, mean_log_p: Floats, mean_log_q: Floats
) -> tuple[Floats, Floats]:
    """Two Newton steps, on log scale, towards the beta with these sufficient statistics."""
    for _ in range(2):
        both, trigamma = special.digamma(a + b), special.polygamma(1, a + b)
        slope_a = special.digamma(a) - both - mean_log_p
        slope_b = special.digamma(b) - both - mean_log_q
        aa = special.polygamma(1, a) - trigamma
        bb = special.polygamma(1, b) - trigamma
        determinant = aa * bb - trigamma**2
        step_a = (bb * slope_a + trigamma * slope_b) / determinant
        step_b = (aa * slope_b + trigamma * slope_a) / determinant
        # Damped to a factor of e per step, so that a and b stay positive.
        a = np.clip(a * np.exp(np.clip(-step_a / a, -1.0, 1.0)), 0.05, _MAX_CONCENTRATION)
        b = np.clip(b * np.exp(np.clip(-step_b / b, -1.0, 1.0)), 0.05, _MAX_CONCENTRATION)
    return a, b


def _start(weight: list[float], mean: list[float], concentration: float) -> Fit:
    means = np.clip(np.array([mean]), 0.02, 0.98)
    return Fit(
        weight=np.array([weight]),
        a=means * concentration,
        b=(1.0 - means) * concentration,
        log_likelihood=np.zeros(1),
    )


def _single_start(pairs: Ints, counts: Floats) -> Fit:
    return _start([1.0], [float(np.average(pairs[0] / pairs[1], weights=counts))], 10.0)


def _best_of_starts(counted: _Counted) -> Fit:
    """The best of three starts: a split at the median, a low tail, a high tail."""
    likelihood, pairs, counts = counted.likelihood, counted.pairs, counted.counts
    rates = np.repeat(pairs[0] / pairs[1], counts[0].astype(int))
    q10, q25, q50, q75, q90 = np.quantile(rates, (0.1, 0.25, 0.5, 0.75, 0.9))
    starts = [
        _start([0.5, 0.5], [q25, q75], 20.0),
        _start([0.15, 0.85], [min(q10, q50 - 0.15), q75], 20.0),
        _start([0.85, 0.15], [q25, max(q90, q50 + 0.15)], 20.0),
    ]
    joined = Fit(
        weight=np.concatenate([s.weight for s in starts]),
        a=np.concatenate([s.a for s in starts]),
        b=np.concatenate([s.b for s in starts]),
        log_likelihood=np.zeros(len(starts)),
    )
    tried = _em(likelihood, np.repeat(counts, len(starts), axis=0), joined, _FIRST_STEPS)
    return _em(likelihood, counts, tried.row(int(np.argmax(tried.log_likelihood))), _STEPS)


def _bootstrap(
    likelihood: Floats,
    fit: Fit,
    which: Ints,
    cluster: Ints,
    *,
    floor: float,
    alpha: float,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Bounds on the share under the floor from refitted resamples of whole clusters.

    A resample has at most 2,000 clusters; its deviations shrink by √(size / n) to the full n.
    """
    ids, position = np.unique(cluster, return_inverse=True)
    n = len(ids)
    size = min(n, _RESAMPLE_SIZE)
    counts = np.empty((_RESAMPLES, len(likelihood)))
    for i in range(_RESAMPLES):
        times = np.bincount(rng.integers(0, n, size), minlength=n)
        counts[i] = np.bincount(which, weights=times[position], minlength=len(likelihood))
    start = Fit(
        weight=np.repeat(fit.weight, _RESAMPLES, axis=0),
        a=np.repeat(fit.a, _RESAMPLES, axis=0),
        b=np.repeat(fit.b, _RESAMPLES, axis=0),
        log_likelihood=np.zeros(_RESAMPLES),
    )
    shares = _em(likelihood, counts, start, _BOOTSTRAP_STEPS).share_below(floor)
    middle = float(fit.share_below(floor)[0])
    deviation = (shares - middle) * np.sqrt(size / n)
    # 200 resamples reach no further than their own extremes.
    tail = max(alpha, 1.0 / _RESAMPLES)
    low, high = np.quantile(deviation, (tail, 1.0 - tail))
    return max(0.0, middle + float(low)), min(1.0, middle + float(high))


def _described(n: int, one: Fit, two: Fit) -> Mixture:
    means = (two.a / (two.a + two.b))[0]
    low, high = int(np.argmin(means)), int(np.argmax(means))
    if low == high:
        low, high = 0, 1
    gained = float(two.log_likelihood[0] - one.log_likelihood[0])
    delta_bic = 2.0 * gained - 3.0 * float(np.log(n))
    weight_low = float(two.weight[0, low])
    valley = _valley(two)
    return Mixture(
        n=n,
        weight_low=weight_low,
        mean_low=float(means[low]),
        mean_high=float(means[high]),
        delta_bic=delta_bic,
        valley_ratio=valley,
        strong=(
            delta_bic > 6.0
            and valley <= 0.5
            and 0.05 <= weight_low <= 0.95
            and float(means[high] - means[low]) >= 0.15
        ),
    )


def _gain_over_one_mode(likelihood: Floats, which: Ints, two: Fit, mixture: Mixture) -> float:
    """Twice the log-likelihood of the two betas less that of the best law of p with a single mode.

    Laws with one mode are mixtures of uniforms that share an end (Khintchine 1938), so for each
    candidate mode between the two means their weights are a concave problem for EM.
    """
    kept, counts = np.unique(which, return_counts=True)
    likelihood = likelihood[kept]
    density = (two.weight[0][:, None] * _beta_on_grid(two.a[0], two.b[0])).sum(axis=0)
    of_two = float(counts @ np.log(likelihood @ density))
    running = np.concatenate((np.zeros((len(kept), 1)), np.cumsum(likelihood, axis=1)), axis=1)
    size = _GRID.size
    modes = np.linspace(mixture.mean_low, mixture.mean_high, _N_MODES) * size
    best = max(_one_mode(running, counts, int(mode)) for mode in np.clip(modes, 1, size - 2))
    return 2.0 * (of_two - best)


def _one_mode(running: Floats, counts: Ints, mode: int) -> float:
    """Largest log-likelihood of a law whose mode is grid point `mode`; `running` [U, G + 1] are
    the likelihoods summed up along the grid."""
    size = running.shape[1] - 1
    ends = np.arange(0, size + 1, 4)
    left, right = ends[ends < mode], ends[ends > mode]
    uniforms = np.concatenate(
        [
            (running[:, [mode + 1]] - running[:, left]) / (mode + 1 - left),
            (running[:, right] - running[:, [mode]]) / (right - mode),
        ],
        axis=1,
    )
    weight = np.full(uniforms.shape[1], 1.0 / uniforms.shape[1])
    for _ in range(_STEPS):
        weight *= (counts / (uniforms @ weight)) @ uniforms / counts.sum()
    return float(counts @ np.log(uniforms @ weight))


def _valley(fit: Fit) -> float:
    """Lowest density between two modes over the lower mode; 1 for a single mode."""
    density = (fit.weight[0][:, None] * _beta_on_grid(fit.a[0], fit.b[0])).sum(axis=0)
    left = np.maximum.accumulate(density)
    right = np.maximum.accumulate(density[::-1])[::-1]
    lower = np.minimum(left, right)
    inside = lower > 0.0  # beyond the outermost modes the density underflows
    return float((density[inside] / lower[inside]).min())
