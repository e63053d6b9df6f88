"""The rise test: how often it is wrong, and how soon it is right."""

from __future__ import annotations

import numpy as np
import pytest

from pairgate.errors import InvalidInput
from pairgate.stats.drift import RiseTest

ALPHA = 0.05


def first_alarm(values: np.ndarray, bound: float) -> int | None:
    test = RiseTest(bound=bound)
    for value in values:
        test = test.after(float(value))
        if test.evidence >= 1.0 / ALPHA:
            return test.n
    return None


def test_the_capital_is_fair_when_the_mean_is_the_bound() -> None:
    """Expected capital stays 1: exact for a fair coin over all outcomes of eight observations."""
    total = 0.0
    for outcome in range(2**8):
        test = RiseTest(bound=0.5)
        for i in range(8):
            test = test.after(float(outcome >> i & 1))
        total += test.evidence
    assert total / 2**8 == pytest.approx(1.0, rel=1e-12)


def test_false_alarms_at_the_boundary_stay_under_alpha() -> None:
    """100 runs of 1,000 looks: at alpha 0.05, more than 11 alarms have probability under 0.005."""
    rng = np.random.default_rng(7)
    alarms = sum(first_alarm(rng.beta(9, 11, 1000), 0.45) is not None for _ in range(100))
    assert alarms <= 11


@pytest.mark.parametrize(("quiet", "within"), [(0, 30), (2000, 90)])
def test_a_change_is_found_however_long_all_was_well(quiet: int, within: int) -> None:
    rng = np.random.default_rng(11)
    for _ in range(10):
        good, bad = rng.beta(9, 11, quiet), rng.beta(15, 5, 200)
        at = first_alarm(np.concatenate((good, bad)), 0.5)
        assert at is not None and quiet < at <= quiet + within


def test_values_outside_are_refused() -> None:
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidInput):
            RiseTest(bound=0.5).after(value)
    with pytest.raises(InvalidInput):
        RiseTest(bound=1.0)
