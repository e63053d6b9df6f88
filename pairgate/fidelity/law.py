"""Emitted tokens against the law that they should come from (docs/fidelity.md, F2 and F3).

Surprisal and draft score have mean zero at every position if the token was drawn from the target's
law, given everything before it; so their sums are martingales with known variances. A proposal is
accepted with a known chance; a recovered token has p > q; the probability of all smaller token ids
plus a uniform part of the token's own is uniform on [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import Estimate, LawTests, ZScore
from pairgate.domain.scores import TokenScores
from pairgate.domain.trace import RoundState, TraceBatch
from pairgate.stats.martingale import detectable_mean, mean_at, mean_score, standardised, uniform_z

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]

MAX_ABS_Z = 3.48


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roles:
    """How each emitted token of a batch came about, in the order of its `tokens` [T]: `accepted`
    was a proposal, `recovered` was drawn after one had been rejected. Neither: bonus and plain
    tokens, and the first one."""

    accepted: Flags
    recovered: Flags


def law_tests(
    scores: TokenScores, batch: TraceBatch, *, level: str, alpha: float, seed: int
) -> LawTests:
    """All tests that the columns allow. `alpha` is the error of each bound of the two means, `seed`
    draws the uniform part of the probability integral transform."""
    sampled = ~(scores.certain | scores.outside | scores.excused)
    surprisal, variance = scores.surprisal[sampled], scores.variance[sampled]
    found = [
        _z("surprisal", standardised(surprisal, variance), surprisal),
        _pit(scores, sampled, seed),
    ]
    parts = [f"a mean surprisal off by {detectable_mean(variance, max_abs_z=MAX_ABS_Z):.2g} nat"]
    draft_score, n_below = None, 0
    if scores.draft is not None:
        known = sampled & ~np.isnan(scores.draft.expected)
        values, spread = scores.draft.score[known], scores.draft.variance[known]
        draft_score = mean_score(values, spread, alpha=alpha, unit="tokens")
        found.append(_z("draft score", standardised(values, spread), values))
        parts.append(
            f"a mean draft score off by {detectable_mean(spread, max_abs_z=MAX_ABS_Z):.2g}"
        )
        roles = roles_of(batch)
        token = batch.tokens_offsets[scores.row] + scores.position  # where the scored tokens stand
        n_below = int((scores.draft.below & roles.recovered[token] & ~scores.excused).sum())
        white, off = _white_box(scores, roles, token)
        found.append(white)
        parts.append(f"an acceptance off by {off:.2g} per tested token")
    return LawTests(
        level=level,
        n_requests=len(np.unique(scores.row)),
        n_tokens=int((~scores.certain).sum()),
        n_certain=int(scores.certain.sum()),
        n_outside=int(scores.outside.sum()),
        n_after_end=scores.n_after_end,
        n_recovered_below=n_below,
        n_excused=int(scores.excused.sum()),
        scores=tuple(score for score in found if score is not None),
        surprisal=mean_score(surprisal, variance, alpha=alpha, unit="tokens"),
        draft_score=draft_score,
        smallest_defect="; ".join(parts) if surprisal.size else "",
    )


def at_alpha(law: LawTests, alpha: float) -> LawTests:
    """The same tests with the bounds of the means at another error: a later attempt's."""

    def changed(mean: Estimate | None) -> Estimate | None:
        return None if mean is None else mean_at(mean, alpha)

    return replace(law, surprisal=changed(law.surprisal), draft_score=changed(law.draft_score))


def roles_of(batch: TraceBatch) -> Roles:
    """The roles of all emitted tokens; a round that was not drafted has plain ones only."""
    emitted = batch.emitted.astype(np.int64)
    drafted = batch.round_state == RoundState.DRAFTED
    n_accepted = np.where(drafted, np.minimum(batch.accepted, emitted), 0)
    request = batch.round_request
    before = np.cumsum(emitted) - emitted
    first_round = np.append(before, 0)[batch.round_offsets[:-1]][request]
    # The first token of an output is prefill's.
    start = batch.tokens_offsets[:-1][request] + 1 + before - first_round
    accepted = np.zeros(len(batch.tokens), np.bool_)
    recovered = np.zeros(len(batch.tokens), np.bool_)
    row = np.repeat(np.arange(len(emitted)), n_accepted)
    place = np.arange(len(row)) - np.repeat(np.cumsum(n_accepted) - n_accepted, n_accepted)
    accepted[start[row] + place] = True
    ends = drafted & (batch.accepted < batch.proposed) & (emitted == batch.accepted + 1)
    recovered[start[ends] + n_accepted[ends]] = True
    return Roles(accepted=accepted, recovered=recovered)


def _white_box(scores: TokenScores, roles: Roles, token: Ints) -> tuple[ZScore | None, float]:
    """Σ(accepted − its chance) over tested positions, from the decoder's own log."""
    assert scores.draft is not None
    expected = scores.draft.expected
    tested = roles.accepted[token] | roles.recovered[token]
    tested &= ~(scores.outside | scores.excused | np.isnan(expected))
    chance = np.clip(expected[tested], 0.0, 1.0)
    difference = roles.accepted[token][tested] - chance
    variance = chance * (1.0 - chance)
    z = standardised(difference, variance)
    off = detectable_mean(variance, max_abs_z=MAX_ABS_Z)
    return _z("white-box acceptance", z, difference), off


def _pit(scores: TokenScores, sampled: Flags, seed: int) -> ZScore | None:
    """The token-id-ordered probability integral transform against the uniform law.

    Rosenblatt 1952; randomised as in Brockwell 2007, because the law is discrete.
    """
    part = np.random.default_rng(seed).random(int(sampled.sum()))
    values = np.clip(scores.mass_below[sampled] + part * scores.mass[sampled], 0.0, 1.0)
    return _z("token-id order", uniform_z(values), values)


def _z(name: str, z: float | None, values: NDArray[np.float64]) -> ZScore | None:
    return None if z is None else ZScore(name=name, z=z, n=len(values))
