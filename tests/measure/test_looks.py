"""Looks during a replay: who asks for more blocks, and when the acceptance pass ends early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate_error_rates import simulate_batch
from pairgate.measure import acceptance_stop, speed_looks
from pairgate.measure.looks import speed_alpha
from pairgate.policyfile import loads_policy, preset

STRICT = preset("strict")


def test_alpha_is_spent_over_the_planned_looks() -> None:
    assert speed_alpha(0.06, STRICT.replay) == pytest.approx(0.02)
    assert speed_alpha(0.06, replace(STRICT.replay, max_blocks=3)) == 0.06


def test_more_blocks_only_while_undecided_and_gated(make_recorded) -> None:
    rng = np.random.default_rng(0)
    batch = simulate_batch(rng.beta(16, 4, 40), np.full(40, 40), rng)
    fast = make_recorded(batch, speedup=1.5).speed
    even = make_recorded(batch, speedup=1.0).speed
    ask = speed_looks(STRICT, alpha=0.05)
    assert not ask(8, fast)
    assert ask(8, even)
    shown = "[rules.speedup]\nconcurrencies = [1, 8]\nadvise_at = [8]\n"
    policy = loads_policy(shown, name="p.toml", suffix=".toml")
    assert not speed_looks(policy, alpha=0.05)(8, even)
    assert speed_looks(policy, alpha=0.05)(1, even)


def test_the_acceptance_pass_stops_on_a_clear_fail_only() -> None:
    rng = np.random.default_rng(1)
    stop = acceptance_stop(STRICT, alpha=0.05)
    bad = simulate_batch(rng.beta(12, 18, 128), np.full(128, 60), rng)
    good = simulate_batch(rng.beta(16, 4, 128), np.full(128, 60), rng)
    assert stop(bad)
    assert not stop(bad.where(np.arange(128) < 20))  # under 30 requests nothing is claimed
    assert not stop(good)
    assert not acceptance_stop(preset("default"), alpha=0.05)(bad)  # break-even is not known yet


def test_a_pair_at_the_floor_is_seldom_stopped() -> None:
    """60 runs of 4 looks at a true mean of 0.6: more than 8 stops have probability 0.003."""
    rng = np.random.default_rng(2)
    stop = acceptance_stop(STRICT, alpha=0.05)
    stopped = 0
    for _ in range(60):
        batch = simulate_batch(rng.beta(12, 8, 256), np.full(256, 60), rng)
        rows = np.arange(256)
        stopped += any(stop(batch.where(rows < n)) for n in range(64, 257, 64))
    assert stopped <= 8
