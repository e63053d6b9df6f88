"""The running ratio of the progress line against the same thing computed at once."""

from __future__ import annotations

import numpy as np
import pytest

from pairgate.stats.running import RunningRatio


def test_it_equals_the_delta_method_over_all_clusters() -> None:
    rng = np.random.default_rng(5)
    bottom = rng.integers(0, 40, 200).astype(float)
    top = rng.binomial(bottom.astype(int), 0.7).astype(float)
    running = RunningRatio()
    for part in np.array_split(np.arange(200), 17):
        running.add(top[part], bottom[part])
    used = bottom > 0
    ratio = top.sum() / bottom.sum()
    residuals = top[used] - ratio * bottom[used]
    n = used.sum()
    error = np.sqrt((residuals**2).sum() * n / (n - 1)) / bottom.sum()
    assert running.n == n
    assert running.value == pytest.approx(ratio)
    assert running.interval() == pytest.approx((ratio - 1.96 * error, ratio + 1.96 * error))


def test_nothing_is_no_number() -> None:
    running = RunningRatio()
    running.add(np.zeros(3), np.zeros(3))
    assert running.value is None
    assert running.interval() is None
