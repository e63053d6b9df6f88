"""The rule online and over recorded rounds is one rule."""

from __future__ import annotations

import numpy as np
import pytest

from pairgate.domain.policy import FallbackSettings
from pairgate.errors import InvalidInput
from pairgate.stats import fallback_rule
from pairgate.stats.fallback_rule import FIRST_GAP, FallbackState, replay_rule, wilson_upper


def rounds(alpha: float, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return np.logical_and.accumulate(rng.random((n, k)) < alpha, axis=1).sum(axis=1)


def test_wilson_against_scipy() -> None:
    from scipy.stats import binomtest

    for successes, n in ((0, 10), (7, 48), (48, 48), (30, 128)):
        interval = binomtest(successes, n).proportion_ci(confidence_level=0.9, method="wilson")
        assert wilson_upper(successes, n, 1.6448536269514722) == pytest.approx(interval.high)


@pytest.mark.parametrize("chunk", [4_000_000, 50])
@pytest.mark.parametrize("reprobe", [False, True])
def test_recorded_rounds_equal_the_online_rule(
    monkeypatch: pytest.MonkeyPatch, chunk: int, reprobe: bool
) -> None:
    monkeypatch.setattr(fallback_rule, "_CHUNK_TOKENS", chunk)
    rng = np.random.default_rng(1)
    k, settings = 4, FallbackSettings(window=64, minimum=20, reprobe=reprobe)
    lengths = [0, 3, 80, 1, 120, 200, 0, 60]
    parts = [rounds(a, n, k, rng) for a, n in zip(np.linspace(0.2, 0.8, 8), lengths, strict=True)]
    accepted = np.concatenate(parts).astype(np.int16)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    found = replay_rule(np.full_like(accepted, k), accepted, accepted + 1, offsets, settings)
    for i, part in enumerate(parts):
        state, first, plain = FallbackState(settings), -1, 0
        for j, a in enumerate(part.tolist()):
            if state.fallen:
                plain += a + 1
                state.decoded_plainly(a + 1)
            elif state.observe(a, a + (a < k)) and first < 0:
                first = j
        assert found.fell_at_round[i] == first
        assert found.fell[i] == (first >= 0)
        assert found.plain_tokens[i] == plain
        assert found.n_returns[i] == state.n_returns
    assert found.fell.any() and not found.fell.all()


def test_too_little_evidence_never_fires_and_the_window_forgets() -> None:
    settings = FallbackSettings()
    state = FallbackState(settings)
    for _ in range(47):
        assert not state.observe(0, 1)
    assert state.observe(0, 1)
    good = FallbackState(settings)
    for _ in range(200):
        good.observe(4, 4)
    n_bad = 0
    while not good.observe(0, 1):
        n_bad += 1
    assert 48 < n_bad < 128  # the old successes leave the window


def test_reprobe_gaps_double() -> None:
    state = FallbackState(FallbackSettings(reprobe=True), fallen=True)
    gaps = []
    for _ in range(3):
        n = 1
        while not state.decoded_plainly(1):
            n += 1
        gaps.append(n)
        state.fallen = True
    assert gaps == [FIRST_GAP, 2 * FIRST_GAP, 4 * FIRST_GAP]
    assert state.n_returns == 3
    stays = FallbackState(FallbackSettings(), fallen=True)
    assert not any(stays.decoded_plainly(100) for _ in range(20))


def test_misfire_and_power_are_as_designed() -> None:
    """gate.md: good requests fire 0.001 to 0.046 per 100 rounds, bad ones 0.93 to 0.99."""
    rng = np.random.default_rng(3)
    offsets = np.arange(0, 500 * 100 + 1, 100)
    for alpha, low, high in ((0.7, 0.0, 0.05), (0.35, 0.9, 1.0)):
        accepted = rounds(alpha, 500 * 100, 4, rng)
        settings = FallbackSettings()
        found = replay_rule(np.full_like(accepted, 4), accepted, accepted + 1, offsets, settings)
        assert low <= found.fell.mean() <= high


def test_break_even_must_be_a_number_first() -> None:
    with pytest.raises(InvalidInput, match="break-even"):
        replay_rule(
            *[np.ones(60, np.int64)] * 3, np.array([0, 60]), FallbackSettings(floor="break-even")
        )
