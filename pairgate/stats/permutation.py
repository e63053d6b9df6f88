"""Did two arms draw their outputs from the same law? Label-swap tests paired by prompt.

Both outputs of one prompt may trade places if, and only if, their laws agree; so every sign flip of
the difference of their statistics is equally likely. Two statistics see different defects:

- n-grams: the squared length of the summed differences of hashed unigram and bigram counts. Its
  permutation law is a quadratic form of signs whose first three moments are exact; a gamma law with
  these moments gives the p-value (Josse, Pagès & Husson 2008), also far out where sampled
  permutations do not reach. Sees single tokens that come more or less often.
- surprisal: the outputs of both arms for the other prompts make a bigram model, which swapping
  labels does not change; the difference of a prompt's two surprisals is a signed number. Sees
  sharper or flatter sampling, which moves every token a little and no count much.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Words:
    """One arm's outputs for `n` prompts: token i of `tokens` [T] belongs to prompt `owner[i]`."""

    tokens: NDArray[np.int32]
    owner: Ints
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapTest:
    """Both z are standard normal when the laws agree; `z_ngrams` is large when they differ and
    `z_surprisal` far from 0 on either side. `detectable` is the shift of the output share of a
    token with 1 % share that the n-grams would find nine times in ten."""

    z_ngrams: float
    z_surprisal: float
    n_pairs: int
    n_tokens: int
    detectable: float


def label_swap(first: Words, second: Words) -> SwapTest:
    """Compare the outputs of two arms on the same prompts."""
    counts, others = hashed_counts(first), hashed_counts(second)
    n_tokens = len(first.tokens) + len(second.tokens)
    total = (counts + others).sum(axis=0)
    used = total > 0
    difference = (counts - others)[:, used] / np.sqrt(total[used])
    gram = difference @ difference.T
    np.fill_diagonal(gram, 0.0)
    z, deviation = _z(float(gram.sum()), gram)
    # A token of share π whose count shifts by N·ε adds N ε² / (2 π); 3.48 + 1.28 deviations are
    # found with probability 0.9.
    per_arm = max(n_tokens / 2.0, 1.0)
    detectable = float(np.sqrt(2.0 * 0.01 * (3.48 + 1.28) * deviation / per_arm))
    return SwapTest(
        z_ngrams=z,
        z_surprisal=_z_surprisal(first, second),
        n_pairs=first.n,
        n_tokens=n_tokens,
        detectable=detectable,
    )


def hashed_counts(words: Words) -> Floats:
    """[n, 2 · buckets] unigram and bigram counts per prompt."""
    ids, owner = words.tokens.astype(np.uint64), words.owner
    unigram = _bucket(ids)
    same = owner[1:] == owner[:-1]
    bigram = _bucket(ids[:-1] * np.uint64(1_000_003) + ids[1:] + np.uint64(1))[same] + N_BUCKETS
    width = 2 * N_BUCKETS
    cells = np.concatenate((owner * width + unigram, owner[1:][same] * width + bigram))
    return np.bincount(cells, minlength=words.n * width).reshape(words.n, width).astype(float)


def _z_surprisal(first: Words, second: Words) -> float:
    """Σ differences over √Σ differences²: the sum has mean 0 and this deviation over sign flips."""
    n = first.n
    prompt = np.concatenate((first.owner, second.owner))
    second_arm = np.repeat((0, 1), (len(first.tokens), len(second.tokens)))
    tokens = np.concatenate((first.tokens, second.tokens))
    score = _bigram_surprisal(tokens, prompt, second_arm)
    total = np.bincount(prompt + n * second_arm, weights=score, minlength=2 * n)
    difference = total[:n] - total[n:]
    spread = float(np.sqrt(np.square(difference).sum()))
    return float(difference.sum() / spread) if spread > 1e-9 else 0.0


def _bigram_surprisal(tokens: NDArray[np.int32], prompt: Ints, arm: Ints) -> Floats:
    """Surprisal of each token less the mean; 0 at the beginning of an output.

    The bigrams are those of all other prompts: a model that had seen the very text would call its
    rare turns likely.
    """
    after = 1 + np.flatnonzero((prompt[1:] == prompt[:-1]) & (arm[1:] == arm[:-1]))
    score = np.zeros(len(tokens))
    if len(after) == 0:
        return score
    kinds, token = np.unique(tokens, return_inverse=True)
    before, now, owner = token[after - 1], token[after], prompt[after]
    total = len(after) - np.bincount(owner)[owner]
    prior = (_elsewhere(now, owner) + 0.5) / (total + 0.5 * len(kinds))
    both = _elsewhere(before * len(kinds) + now, owner)
    score[after] = -np.log((both + _SMOOTHING * prior) / (_elsewhere(before, owner) + _SMOOTHING))
    score[after] -= score[after].mean()
    return score


def _elsewhere(value: Ints, owner: Ints) -> Ints:
    """[m] how often each `value` [m] occurs under other owners than its own."""
    _, which, count = np.unique(value, return_inverse=True, return_counts=True)
    _, own, own_count = np.unique(
        owner * (which.max() + 1) + which, return_inverse=True, return_counts=True
    )
    return (count[which] - own_count[own]).astype(np.int64)


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
    return float(np.clip(sps.norm.isf(tail), -38.0, 38.0)), deviation


def _bucket(ids: NDArray[np.uint64]) -> Ints:
    return ((ids * _MULTIPLIER) >> np.uint64(55)).astype(np.int64)
