"""Looks at the speed blocks: who asks for more (looks at the acceptance: tests/app)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate_traffic import simulate_batch
from pairgate.measure import look, measure, speed_looks
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
    ask = speed_looks(preset("default"), alpha=0.05)
    assert not ask(8, fast)
    assert ask(8, even)
    # Both arms are equally late here: undecided where latency gates.
    assert speed_looks(preset("default"), alpha=0.05, engine="vllm")(8, fast)
    assert speed_looks(STRICT, alpha=0.05)(8, fast)
    shown = "[rules.speedup]\nconcurrencies = [1, 8]\nadvise_at = [8]\n"
    policy = loads_policy(shown, name="p.toml", suffix=".toml")
    assert not speed_looks(policy, alpha=0.05)(8, even)
    assert speed_looks(policy, alpha=0.05)(1, even)


def test_a_look_at_all_requests_sees_what_the_verdict_sees(make_recorded) -> None:
    """Also by the bootstrap: otherwise a FAIL could end a replay whose verdict is none."""
    rng = np.random.default_rng(5)
    domain = np.repeat(["a", "b"], 80)
    batch = simulate_batch(rng.beta(12, 8, 160), np.full(160, 50), rng, domain=domain)
    recorded = make_recorded(batch)
    seen = look(recorded, policy=STRICT, alpha=0.05)
    final = measure(recorded, policy=STRICT, alpha=0.05)
    gated = [m for m in seen.metrics if m.name.startswith("token_acceptance")]
    assert len(gated) > 6
    assert all(final.find(m.name, m.scope) == m.value for m in gated)
