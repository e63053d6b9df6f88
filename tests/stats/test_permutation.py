from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from pairgate.stats.permutation import hashed_counts, label_swap

N_PAIRS, N_TOKENS, VOCABULARY = 60, 64, 200


def _outputs(rng: np.random.Generator, law: NDArray[np.float64]) -> NDArray[np.float64]:
    tokens = rng.choice(VOCABULARY, N_PAIRS * N_TOKENS, p=law).astype(np.int32)
    return hashed_counts(tokens, np.repeat(np.arange(N_PAIRS), N_TOKENS), N_PAIRS)


def _law(rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.dirichlet(np.full(VOCABULARY, 0.3))


def test_z_is_calibrated_when_the_laws_agree() -> None:
    """200 simulations: mean 0 ± 0.25, and |z| > 3.48 never (expected 0.1)."""
    rng = np.random.default_rng(1)
    law = _law(rng)
    z = np.array([label_swap(_outputs(rng, law), _outputs(rng, law)).z for _ in range(200)])
    assert abs(z.mean()) < 0.25
    assert 0.8 < z.std() < 1.2
    assert np.abs(z).max() < 3.48


def test_the_gamma_tail_agrees_with_sampled_permutations() -> None:
    rng = np.random.default_rng(2)
    law = _law(rng)
    first, second = _outputs(rng, law), _outputs(rng, law)
    total = (first + second).sum(axis=0)
    difference = (first - second)[:, total > 0] / np.sqrt(total[total > 0])
    signs = rng.choice((-1.0, 1.0), (4000, N_PAIRS))
    lengths = np.square(signs @ difference).sum(axis=1)
    own = np.square(difference.sum(axis=0)).sum()
    sampled = float(sps.norm.isf((lengths >= own).mean()))
    assert abs(label_swap(first, second).z - sampled) < 0.15


def test_another_temperature_is_found() -> None:
    rng = np.random.default_rng(3)
    law = _law(rng)
    sharper = law**1.5 / (law**1.5).sum()
    assert label_swap(_outputs(rng, sharper), _outputs(rng, law)).z > 3.48


def test_equal_outputs_are_no_evidence() -> None:
    counts = _outputs(np.random.default_rng(4), np.full(VOCABULARY, 1 / VOCABULARY))
    assert label_swap(counts, counts).z == 0.0


def test_bigrams_do_not_cross_requests() -> None:
    tokens = np.array([1, 2, 3, 4], np.int32)
    counts = hashed_counts(tokens, np.array([0, 0, 1, 1]), 2)
    assert counts.sum(axis=1).tolist() == [3.0, 3.0]  # two unigrams and one bigram each
