"""From scores of tokens to tests: roles, sums, and what each test sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as sps

from pairgate.domain.evidence import LawTests
from pairgate.domain.scores import DraftScores, TokenScores
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, RoundState, TraceBatch
from pairgate.errors import InvalidEvaluation
from pairgate.fidelity.law import at_alpha, law_tests, roles_of
from pairgate.stats.martingale import detectable_mean, mean_score, standardised, uniform_z

V = 40


def _batch(rows: list[RequestTrace]) -> TraceBatch:
    return TraceBatch.from_rows(
        rows,
        arm=Arm.SPEC,
        phase=Phase.ACCEPTANCE,
        concurrency=8,
        block=0,
        wall_s=1.0,
        definition="pairgate.rounds.v1",
    )


def _row(index: int, rounds: list[tuple[int, int, int]], state: RoundState) -> RequestTrace:
    """Rounds of (proposed, accepted, emitted)."""
    n = 1 + sum(emitted for _, _, emitted in rounds)
    proposed, accepted, emitted = (np.array(x, np.int16) for x in zip(*rounds, strict=True))
    return RequestTrace(
        index=index,
        request_id=f"r{index}",
        domain="d",
        temperature=1.0,
        prompt_tokens=3,
        completion_tokens=n,
        ttft_ms=1.0,
        latency_ms=2.0,
        finish=Finish.LENGTH,
        proposed=proposed,
        accepted=accepted,
        emitted=emitted,
        round_state=np.full(len(rounds), state, np.uint8),
        round_ms=np.zeros(len(rounds), np.float32),
        tokens=np.zeros(n, np.int32),
    )


def row_of_tokens(n: int, n_rows: int = 1) -> TraceBatch:
    """Rows of n sampled tokens, decoded plainly."""
    return _batch([_row(i, [(0, 0, 1)] * (n - 1), RoundState.TARGET_ONLY) for i in range(n_rows)])


def test_roles_of_tokens() -> None:
    rounds = [(3, 1, 2), (3, 3, 4), (2, 0, 1), (3, 2, 1)]  # the last one is cut by the limit
    batch = _batch(
        [_row(0, rounds, RoundState.DRAFTED), _row(1, [(0, 0, 1)] * 3, RoundState.SKIPPED)]
    )
    roles = roles_of(batch)
    accepted = [0, 1, 0, 1, 1, 1, 0, 0, 1] + [0] * 4
    recovered = [0, 0, 1, 0, 0, 0, 0, 1, 0] + [0] * 4
    assert roles.accepted.tolist() == [bool(x) for x in accepted]
    assert roles.recovered.tolist() == [bool(x) for x in recovered]


def _simulated(n: int, emitted_power: float = 1.0, seed: int = 0) -> tuple[TokenScores, TraceBatch]:
    """n tokens from random laws raised to a power: 1 is the law that they are scored by."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(V, 0.4), n), rng.dirichlet(np.full(V, 0.4), n)
    q = 0.6 * p + 0.4 * q
    out = p**emitted_power / (p**emitted_power).sum(axis=1, keepdims=True)
    y = (np.cumsum(out, axis=1) < rng.random(n)[:, None]).sum(axis=1).clip(max=V - 1)
    at = np.arange(n)
    log_p = np.log(np.maximum(p, 1e-300))
    entropy, overlap = -(p * log_p).sum(1), np.minimum(p, q).sum(1)
    scores = TokenScores(
        row=np.zeros(n, np.int64),
        position=at,
        certain=np.zeros(n, np.bool_),
        surprisal=-log_p[at, y] - entropy,
        variance=(p * log_p**2).sum(1) - entropy**2,
        mass_below=(np.cumsum(p, axis=1) - p)[at, y],
        mass=p[at, y],
        outside=np.zeros(n, np.bool_),
        excused=np.zeros(n, np.bool_),
        n_after_end=0,
        draft=DraftScores(
            score=np.minimum(1.0, q[at, y] / p[at, y]) - overlap,
            variance=(np.minimum(p, q) ** 2 / np.maximum(p, 1e-300)).sum(1) - overlap**2,
            expected=overlap,
            below=p[at, y] < q[at, y],
        ),
    )
    # Every second token is tested: one proposal per round, taken with the chance it should have.
    taken = rng.random(n) < overlap
    rounds = [(1, int(t), 1 + int(t)) for t in taken[1 : (n - 1) // 2]]
    n_in_rounds = 1 + sum(e for _, _, e in rounds)
    rounds += [(1, 1, 1)] * (n - n_in_rounds)
    return scores, _batch([_row(0, rounds, RoundState.DRAFTED)])


def _found(scores: TokenScores, batch: TraceBatch) -> dict[str, float]:
    tests = law_tests(scores, batch, level="F3", alpha=0.05, seed=0)
    return {score.name: score.z for score in tests.scores}


def test_the_right_law_raises_no_alarm() -> None:
    found = [_found(*_simulated(2000, seed=seed)) for seed in range(20)]
    for name in ("surprisal", "draft score", "token-id order"):
        values = np.array([f[name] for f in found])
        assert np.abs(values).max() < 3.48
    spread = np.std([f["surprisal"] for f in found])
    assert 0.6 < spread < 1.5  # the variances are the right ones


def test_a_sharper_law_is_found_by_its_surprisal() -> None:
    assert abs(_found(*_simulated(2000, emitted_power=1.3))["surprisal"]) > 3.48


def _tests(**changes: object) -> LawTests:
    scores, batch = _simulated(500)
    return law_tests(replace(scores, **changes), batch, level="F3", alpha=0.05, seed=0)  # type: ignore[arg-type]


def test_violations_are_counted_and_kept_out_of_the_sums() -> None:
    outside = np.arange(500) < 3
    found = _tests(outside=outside, n_after_end=2)
    assert (found.n_outside, found.n_after_end) == (3, 2)
    assert found.n_violations >= 5
    assert found.surprisal is not None and found.surprisal.n == 497
    excused = _tests(excused=outside)
    assert (excused.n_outside, excused.n_excused) == (0, 3)


def test_only_recovered_tokens_must_be_likelier_under_the_target() -> None:
    scores, batch = _simulated(500)
    assert scores.draft is not None
    roles = roles_of(batch)
    below = np.where(roles.recovered, False, True)
    honest = replace(scores, draft=replace(scores.draft, below=below))
    assert law_tests(honest, batch, level="F3", alpha=0.05, seed=0).n_recovered_below == 0
    bent = replace(scores, draft=replace(scores.draft, below=np.ones(500, np.bool_)))
    found = law_tests(bent, batch, level="F3", alpha=0.05, seed=0)
    assert found.n_recovered_below == roles.recovered.sum() > 0


def test_accepting_more_often_than_the_overlap_shows_in_the_white_box() -> None:
    scores, batch = _simulated(4000)
    assert scores.draft is not None
    fewer = replace(scores.draft, expected=0.9 * scores.draft.expected)
    assert _found(replace(scores, draft=fewer), batch)["white-box acceptance"] > 3.48


def test_no_sampled_token_gives_no_means() -> None:
    found = _tests(certain=np.ones(500, np.bool_))
    assert (found.n_tokens, found.n_certain) == (0, 500)
    assert found.surprisal is None and found.draft_score is None


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(InvalidEvaluation, match="500"):
        _tests(outside=np.zeros(3, np.bool_))


def test_bounds_of_another_attempt() -> None:
    found = _tests()
    later = at_alpha(found, 0.025)
    assert found.surprisal is not None and later.surprisal is not None
    ratio = (later.surprisal.high - later.surprisal.value) / (
        found.surprisal.high - found.surprisal.value
    )
    assert ratio == pytest.approx(sps.norm.isf(0.025) / sps.norm.isf(0.05))
    assert later.surprisal.alpha == 0.025


def test_sums_by_hand() -> None:
    scores, variances = np.array([1.0, -1.0, 2.0] * 20), np.full(60, 4.0)
    assert standardised(scores, variances) == pytest.approx(40.0 / np.sqrt(240.0))
    mean = mean_score(scores, variances, alpha=0.05, unit="tokens")
    assert mean is not None
    assert (mean.value, mean.n) == (pytest.approx(40.0 / 60.0), 60)
    assert mean.high - mean.value == pytest.approx(1.6449 * np.sqrt(240.0) / 60.0, rel=1e-4)
    one_large = np.concatenate(([100.0], np.full(59, 1.0)))
    assert standardised(scores, one_large) is None
    assert standardised(scores, np.zeros(60)) is None
    assert detectable_mean(variances, max_abs_z=3.48) == pytest.approx(
        4.7616 * 2.0 / np.sqrt(60.0), rel=1e-4
    )


def test_uniform_values_and_others() -> None:
    rng = np.random.default_rng(0)
    even = uniform_z(rng.random(5000))
    bent = uniform_z(rng.beta(1.0, 1.15, 5000))
    assert even is not None and even < 3.48
    assert bent is not None and bent > 3.48
    assert uniform_z(rng.random(99)) is None
    assert uniform_z(np.zeros(5000)) == 38.0
