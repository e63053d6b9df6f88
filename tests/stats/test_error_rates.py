"""The acceptance rule's error rates, in short; benchmarks/gate_error_rates.py --full has the rest.

120 simulations each: a true rate of 0.05 shows more than 0.12 with probability 0.0006.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gate_error_rates import SHAPES, Shape, error_rates


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_false_pass_is_near_alpha_and_naive_is_not(shape: Shape) -> None:
    found = error_rates(shape, 100, 120, alpha=0.05, rng=np.random.default_rng(7))
    assert found.mean_false_pass <= 0.12
    assert found.pooled_false_pass <= 0.12
    assert found.naive_false_pass >= 0.15
    assert found.pooled_power >= 0.4
