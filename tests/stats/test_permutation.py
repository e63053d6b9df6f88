from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sps

from pairgate.stats.permutation import Words, hashed_counts, label_swap

N_PAIRS, N_TOKENS, VOCABULARY = 60, 64, 200


def _outputs(rng: np.random.Generator, law: NDArray[np.float64]) -> Words:
    tokens = rng.choice(VOCABULARY, N_PAIRS * N_TOKENS, p=law).astype(np.int32)
    return Words(tokens=tokens, owner=np.repeat(np.arange(N_PAIRS), N_TOKENS), n=N_PAIRS)


def _law(rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.dirichlet(np.full(VOCABULARY, 0.3))


def test_z_is_calibrated_when_the_laws_agree() -> None:
    """200 simulations: mean 0 ± 0.25, and |z| > 3.48 never (expected 0.1)."""
    rng = np.random.default_rng(1)
    law = _law(rng)
    tests = [label_swap(_outputs(rng, law), _outputs(rng, law)) for _ in range(200)]
    for z in (
        np.array([t.z_ngrams for t in tests]),
        np.array([t.z_surprisal for t in tests]),
    ):
        assert abs(z.mean()) < 0.25
        assert 0.8 < z.std() < 1.2
        assert np.abs(z).max() < 3.48


def test_the_gamma_tail_agrees_with_sampled_permutations() -> None:
    rng = np.random.default_rng(2)
    law = _law(rng)
    first, second = _outputs(rng, law), _outputs(rng, law)
    ours, theirs = hashed_counts(first), hashed_counts(second)
    total = (ours + theirs).sum(axis=0)
    difference = (ours - theirs)[:, total > 0] / np.sqrt(total[total > 0])
    signs = rng.choice((-1.0, 1.0), (4000, N_PAIRS))
    lengths = np.square(signs @ difference).sum(axis=1)
    own = np.square(difference.sum(axis=0)).sum()
    sampled = float(sps.norm.isf((lengths >= own).mean()))
    assert abs(label_swap(first, second).z_ngrams - sampled) < 0.15


def test_another_temperature_is_found_by_surprisal() -> None:
    rng = np.random.default_rng(3)
    law = _law(rng)
    sharper = law**1.4 / (law**1.4).sum()
    assert label_swap(_outputs(rng, sharper), _outputs(rng, law)).z_surprisal < -3.48
    flatter = law**0.7 / (law**0.7).sum()
    assert label_swap(_outputs(rng, flatter), _outputs(rng, law)).z_surprisal > 3.48


def test_a_token_that_comes_too_often_is_found_by_ngrams() -> None:
    rng = np.random.default_rng(4)
    law = _law(rng)
    bent = law.copy()
    bent[np.argsort(law)[-5]] += 0.12
    assert label_swap(_outputs(rng, bent / bent.sum()), _outputs(rng, law)).z_ngrams > 3.48


def test_equal_outputs_are_no_evidence() -> None:
    words = _outputs(np.random.default_rng(4), np.full(VOCABULARY, 1 / VOCABULARY))
    found = label_swap(words, words)
    assert found.z_ngrams == found.z_surprisal == 0.0


def test_bigrams_do_not_cross_requests() -> None:
    tokens = np.array([1, 2, 3, 4], np.int32)
    counts = hashed_counts(Words(tokens=tokens, owner=np.array([0, 0, 1, 1]), n=2))
    assert counts.sum(axis=1).tolist() == [3.0, 3.0]  # two unigrams and one bigram each
