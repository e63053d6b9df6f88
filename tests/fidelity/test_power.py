"""A few runs of the simulation behind the table of docs/fidelity.md."""

from __future__ import annotations

import numpy as np

from benchmarks.fidelity_power import DECODERS, P, shares

F1, F2, F3, WITH_LOG = range(4)
N_RUNS = 4


def test_every_law_is_a_law() -> None:
    for name, make in DECODERS.items():
        decoder = make()
        np.testing.assert_allclose(decoder.emitted.sum(axis=1), 1.0, err_msg=name)
        assert ((decoder.accepted > 0) & (decoder.accepted <= 1 + 1e-9)).all()
    np.testing.assert_allclose(DECODERS["correct"]().emitted, P, atol=1e-12)


def test_the_right_decoder_raises_no_alarm() -> None:
    """12 runs at four levels; one alarm is expected in some 100 such tests."""
    assert shares("correct", 2_000, 3 * N_RUNS, seed=11).max() == 0.0


def test_what_each_level_sees_of_2_000_words() -> None:
    """Rows of the table that are 0.00 or 1.00 there."""
    sharper = shares("temperature 1/1.1", 2_000, N_RUNS, seed=11)
    assert sharper[F2] == sharper[F3] == 1.0
    no_residual = shares("no residual correction", 2_000, N_RUNS, seed=11)
    assert no_residual[F3] == 1.0
    assert no_residual[F1] == no_residual[F2] == 0.0  # published as poor
    ignored = shares("top-p 0.99 ignored", 2_000, N_RUNS, seed=11)
    assert ignored[F2] == 1.0
