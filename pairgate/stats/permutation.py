"""Did two arms draw their outputs from the same law? A label-swap test paired by prompt.

Both outputs of one prompt may trade places if, and only if, their laws agree; so every sign flip of
the difference of their token counts is equally likely. The statistic is the squared length of the
summed differences over hashed unigrams and bigrams. Its permutation law is a quadratic form of
signs whose first three moments are exact (Josse, Pagès & Husson 2008), and a gamma law with these
moments gives the p-value, also far out where sampled permutations do not reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

N_BUCKETS = 512  # each for unigrams and bigrams
MAX_PAIRS = 1000
_SMOOTHING = 2.0  # weight of the unigram law, in observations
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing, 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapTest:
    """`z` is standard normal when the laws agree and large when they differ; `detectable` is the
    shift of the output share of a token with 1 % share that would be found nine times in ten."""

    z: float
    n_pairs: int
    n_tokens: int
    detectable: float


def hashed_counts(tokens: NDArray[np.int32], owner: Ints, n: int) -> Floats:
    """[n, 2 · buckets] unigram and bigram counts; token i belongs to row `owner[i]`."""
    ids = tokens.astype(np.uint64)
    unigram = _bucket(ids)
    same = owner[1:] == owner[:-1]
    bigram = _bucket(ids[:-1] * np.uint64(1_000_003) + ids[1:] + np.uint64(1))[same] + N_BUCKETS
    width = 2 * N_BUCKETS
    cells = np.concatenate((owner * width + unigram, owner[1:][same] * width + bigram))
    return np.bincount(cells, minlength=n * width).reshape(n, width).astype(float)


def label_swap(first: Floats, second: Floats) -> SwapTest:
    """Compare the counts of two arms [n, buckets], row by row of the same prompt."""
    n_tokens = int(first[:, :N_BUCKETS].sum() + second[:, :N_BUCKETS].sum())
    total = (first + second).sum(axis=0)
    used = total > 0
    difference = (first - second)[:, used] / np.sqrt(total[used])
    gram = difference @ difference.T
    np.fill_diagonal(gram, 0.0)
    statistic = float(gram.sum())
    z, deviation = _z(statistic, gram)
    # A token of share π whose count shifts by N·ε adds N ε² / (2 π); 3.48 + 1.28 deviations are
    # found with probability 0.9.
    per_arm = max(n_tokens / 2.0, 1.0)
    detectable = float(np.sqrt(2.0 * 0.01 * (3.48 + 1.28) * deviation / per_arm))
    return SwapTest(z=z, n_pairs=len(first), n_tokens=n_tokens, detectable=detectable)


def surprisal_swap(
    first: NDArray[np.int32], first_owner: Ints, second: NDArray[np.int32], second_owner: Ints
) -> float:
    """z of the difference in surprisal between two arms whose token i belongs to prompt `owner[i]`.

    Both arms together make a smoothed bigram model, which swapping labels does not change; the
    difference of a prompt's two surprisals then has either sign with equal probability. Sharper or
    flatter sampling shifts it on every token, where counts of single tokens hardly move.
    """
    n = 1 + int(max(first_owner.max(initial=-1), second_owner.max(initial=-1)))
    owner = np.concatenate((first_owner, second_owner + n))
    score = _bigram_surprisal(np.concatenate((first, second)).astype(np.int64), owner)
    total = np.bincount(owner, weights=score, minlength=2 * n)
    difference = total[:n] - total[n : 2 * n]
    spread = float(np.sqrt(np.square(difference).sum()))
    return float(difference.sum() / spread) if spread > 1e-9 else 0.0


def _bigram_surprisal(tokens: Ints, owner: Ints) -> Floats:
    """Surprisal of each token less the mean, under the text's own bigrams; 0 at each beginning."""
    inside = np.concatenate(([False], owner[1:] == owner[:-1]))
    after = np.flatnonzero(inside)
    _, token, unigram = np.unique(tokens, return_inverse=True, return_counts=True)
    pair_code = token[after - 1] * len(unigram) + token[after]
    _, pair, bigram = np.unique(pair_code, return_inverse=True, return_counts=True)
    context = np.bincount(token[after - 1], minlength=len(unigram))
    prior = unigram[token[after]] / len(tokens)
    score = np.zeros(len(tokens))
    score[after] = -np.log(
        (bigram[pair] + _SMOOTHING * prior) / (context[token[after - 1]] + _SMOOTHING)
    )
    if len(after):
        score[after] -= score[after].mean()
    return score


def _z(statistic: float, gram: Floats) -> tuple[float, float]:
    """z of the statistic Σ_{i≠j} s_i s_j G_ij (mean 0) and its deviation over sign flips."""
    square = gram @ gram
    variance = 2.0 * float(np.trace(square))
    if variance <= 1e-12:
        return 0.0, 0.0  # the outputs are equal, or there is one pair only
    third = 8.0 * float(np.sum(square * gram))
    deviation = float(np.sqrt(variance))
    skew = max(third / deviation**3, 1e-3)
    shape = 4.0 / skew**2
    standard = statistic / deviation
    # Pearson III: gamma with the same mean, deviation and skewness.
    tail = float(sps.gamma.sf(standard * np.sqrt(shape) + shape, shape))
    return float(np.clip(sps.norm.isf(tail), -38.0, 38.0)) if 0 < tail < 1 else (
        38.0 if tail <= 0 else -38.0
    ), deviation


def _bucket(ids: NDArray[np.uint64]) -> Ints:
    return ((ids * _MULTIPLIER) >> np.uint64(55)).astype(np.int64)
