from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairgate.stats.speculation import acceptance_length, acceptance_rate, break_even


def test_the_pages_own_numbers() -> None:
    assert acceptance_rate(0.8, 5) == pytest.approx(0.54, abs=0.005)
    assert acceptance_length(1.0, 5) == 6.0


@given(alpha=st.floats(0.01, 0.99), k=st.integers(1, 16))
def test_break_even_inverts_the_acceptance_length(alpha: float, k: int) -> None:
    assert break_even(acceptance_length(alpha, k), k) == pytest.approx(alpha, abs=1e-6)


def test_break_even_at_the_ends() -> None:
    assert break_even(0.9, 5) == 0.0
    assert break_even(6.5, 5) == 1.0
