"""How every emitted token stands to the law that it should come from (gate.md, Fidelity, F2, F3).

A scorer feeds finished outputs to the target (and to the draft) and says at each emitted token what
the law there was. `fidelity` turns the columns into tests; it never sees a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.errors import InvalidEvaluation

NEAR_TIE_GAP = {"bfloat16": 0.25, "float16": 0.04}
"""Logit gaps that rounding can turn: about four times the RMS error of a logit."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftScores:
    """The columns that need the draft's law q, one value per scored token [T].

    `score` is min(1, q(y)/p(y)) − Σ min(p, q) and `variance` its variance under p; both are 0
    where the draft has no law. `expected` is the chance that a proposal is accepted there, NaN
    where the draft has no law. `below` marks p(y) < q(y) beyond rounding: a recovered token
    cannot be there.
    """

    score: Floats
    variance: Floats
    expected: Floats
    below: Flags


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """One value per scored token [T], all outputs one after another.

    `row` is the request's row in the batch and `position` the place in its output. `certain`: the
    law is one token (temperature 0, top-k 1). `surprisal` is −log p(y) − H(p) in nats with the
    conditional variance `variance`; `mass_below` is the probability of all smaller token ids and
    `mass` is p(y). `outside`: p(y) = 0 by more than the engine's rounding explains; `excused`: by
    less. Both have 0 for surprisal and variance. `n_after_end` counts tokens that came after an
    end token; they are not among the scored ones.
    """

    row: NDArray[np.int64]
    position: NDArray[np.int64]
    certain: Flags
    surprisal: Floats
    variance: Floats
    mass_below: Floats
    mass: Floats
    outside: Flags
    excused: Flags
    n_after_end: int
    draft: DraftScores | None = None

    def __post_init__(self) -> None:
        n = len(self.row)
        columns = [self.position, self.certain, self.surprisal, self.variance, self.mass_below]
        columns += [self.mass, self.outside, self.excused]
        if self.draft is not None:
            d = self.draft
            columns += [d.score, d.variance, d.expected, d.below]
        if any(len(column) != n for column in columns):
            raise InvalidEvaluation(f"token scores: a column does not have {n} values")

    def __len__(self) -> int:
        return len(self.row)
