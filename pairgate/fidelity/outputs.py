"""Is the output the target's own? Compares what the arms wrote (gate.md, Fidelity, level F1).

Greedy requests are compared token by token. Sampled ones are compared in law: same prompts with
and without the draft, by a label-swap permutation test. Two runs of the target alone go through
both comparisons as a control. Where the engine gives Σ min(p, q) per proposed position, a white-box
score also checks that the reported acceptance is the one that keeps the target's law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.evidence import Fidelity, ZScore
from pairgate.domain.recorded import Recorded
from pairgate.domain.scores import NEAR_TIE_GAP
from pairgate.domain.trace import Arm, RoundState, TraceBatch
from pairgate.stats.permutation import MAX_PAIRS, SwapTest, Words, label_swap

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MIN_VARIANCE = 20.0  # below, the white-box sum is too far from normal
_DETECT = 3.48 + 1.28  # deviations that are found nine times in ten


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs:
    """What some runs wrote: per request [n], with flat `tokens` and `margin` behind starts."""

    request_id: NDArray[np.str_]
    temperature: NDArray[np.float64]
    start: Ints
    length: Ints
    tokens: NDArray[np.int32]
    margin_start: Ints
    margin_length: Ints
    margin: NDArray[np.float32]

    def rows(self, which: NDArray[np.generic]) -> Outputs:
        return Outputs(
            request_id=self.request_id[which],
            temperature=self.temperature[which],
            start=self.start[which],
            length=self.length[which],
            tokens=self.tokens,
            margin_start=self.margin_start[which],
            margin_length=self.margin_length[which],
            margin=self.margin,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Requests that were compared token by token."""

    n_requests: int = 0
    n_tokens: int = 0
    n_divergent: int = 0
    n_near_tie: int = 0
    n_unclassified: int = 0

    @property
    def n_real(self) -> int:
        return self.n_divergent - self.n_near_tie - self.n_unclassified


@dataclass(frozen=True, slots=True, kw_only=True)
class WhiteBox:
    """Σ(accepted − overlap) over tested positions, standardised."""

    score: ZScore | None
    n_violations: int
    detectable: float


def compare_outputs(recorded: Recorded) -> Fidelity:
    """Fidelity at level F1, from the blocks that ran with and without the draft.

    The reference of a request is its first run by the target alone; its candidate the first run
    with the draft, speed blocks before the acceptance pass.
    """
    dtype = recorded.engine.dtype
    with_draft = [b for b in recorded.speed if b.arm is Arm.SPEC]
    alone = [b for b in recorded.speed if b.arm is Arm.TARGET]
    runs = [[b for b in recorded.control if b.block % 2 == odd] for odd in (0, 1)]
    reference = _outputs([*alone, *runs[0]])
    drafted = [recorded.acceptance] if recorded.acceptance.arm is Arm.SPEC else []
    candidate, partner = _partners(_outputs([*with_draft, *drafted]), reference)
    again, first = _partners(_outputs(runs[1]), _outputs(runs[0]))
    if recorded.acceptance.arm is Arm.TARGET:
        return _of_target_alone(recorded, reference, again, first)
    greedy = compare_greedy(*_where_greedy(candidate, partner), dtype=dtype)
    control = compare_greedy(*_where_greedy(again, first), dtype=dtype)
    swap, control_swap = _swap(candidate, partner), _swap(again, first)
    white = white_box(recorded.acceptance)
    return Fidelity(
        level="F1" if recorded.law is None else recorded.law.level,
        n_greedy_requests=greedy.n_requests,
        n_greedy_tokens=greedy.n_tokens,
        n_divergent=greedy.n_divergent,
        n_near_tie=greedy.n_near_tie,
        n_unclassified=greedy.n_unclassified,
        n_control_requests=len(again.length),
        n_control_divergent=control.n_real,
        n_sampled_tokens=0 if swap is None else swap.n_tokens // 2,
        n_support_violations=white.n_violations,
        scores=_scores(swap) + (() if white.score is None else (white.score,)),
        control_scores=_scores(control_swap),
        smallest_defect=_smallest_defect(greedy, swap, white),
        n_control_tokens=int(again.length.sum()),
        law=recorded.law,
        control_law=recorded.control_law,
    )


def _of_target_alone(
    recorded: Recorded, reference: Outputs, again: Outputs, first: Outputs
) -> Fidelity:
    """A version without a draft: does the target agree with itself?

    Beside the control, its greedy outputs in the acceptance pass against those of the speed blocks:
    another concurrency, the same numbers. (Sampled ones are then equal for no deep reason.)
    """
    dtype = recorded.engine.dtype
    mine, theirs = _where_greedy(*_partners(_outputs([recorded.acceptance]), reference))
    control = compare_greedy(*_where_greedy(again, first), dtype=dtype)
    greedy = compare_greedy(mine, theirs, dtype=dtype)
    return Fidelity(
        level="F1" if recorded.law is None else recorded.law.level,
        n_greedy_requests=0,
        n_greedy_tokens=0,
        n_divergent=0,
        n_near_tie=0,
        n_control_requests=len(again.length) + greedy.n_requests,
        n_control_divergent=control.n_real + greedy.n_real,
        n_sampled_tokens=0,
        n_support_violations=0,
        control_scores=_scores(_swap(again, first)),
        n_control_tokens=int(again.length.sum()) + greedy.n_tokens,
        law=recorded.law,
    )


def compare_greedy(candidate: Outputs, reference: Outputs, *, dtype: str) -> Greedy:
    """First divergence of each row pair; near ties by the reference's margin (or its partner's).

    In float32 every divergence is real: the pass shapes do not change an argmax there.
    """
    n = len(candidate.length)
    if n == 0:
        return Greedy()
    at = first_divergence(candidate, reference)
    divergent = np.flatnonzero(at >= 0)
    gap = _margin_at(reference, divergent, at[divergent])
    other = _margin_at(candidate, divergent, at[divergent])
    gap = np.where(np.isnan(gap), other, gap)
    tolerance = 0.0 if dtype == "float32" else NEAR_TIE_GAP.get(dtype, NEAR_TIE_GAP["bfloat16"])
    near = gap < tolerance
    unknown = np.isnan(gap) & (dtype != "float32")
    compared = np.where(at >= 0, at + 1, candidate.length)
    return Greedy(
        n_requests=n,
        n_tokens=int(compared.sum()),
        n_divergent=len(divergent),
        n_near_tie=int(near.sum()),
        n_unclassified=int(unknown.sum()),
    )


def first_divergence(candidate: Outputs, reference: Outputs) -> Ints:
    """[n] position of the first differing token, −1 where two outputs are equal.

    An output that ends earlier diverges where it ends.
    """
    common = np.minimum(candidate.length, reference.length)
    at = np.where(candidate.length == reference.length, -1, common)
    row, offset = _ragged(common)
    differs = np.flatnonzero(
        candidate.tokens[candidate.start[row] + offset]
        != reference.tokens[reference.start[row] + offset]
    )
    rows, first = np.unique(row[differs], return_index=True)
    at[rows] = offset[differs][first]
    return at


def white_box(batch: TraceBatch) -> WhiteBox:
    """The decoder's own log: accepted − Σ min(p, q) has mean zero at each tested position.

    Only positions that were tested and had room count (the censored last round). An accepted token
    where the overlap is exactly 0 is outside the support.
    """
    drafted = batch.round_state == RoundState.DRAFTED
    request = batch.round_request[drafted]
    proposed = batch.proposed[drafted].astype(np.int64)
    accepted = batch.accepted[drafted].astype(np.int64)
    emitted = batch.emitted[drafted].astype(np.int64)
    expected = np.bincount(request, weights=proposed, minlength=len(batch)).astype(np.int64)
    logged = np.diff(batch.overlap_offsets) == expected
    usable = batch.ok & logged
    # Where a round's overlaps begin: the request's, plus what its earlier rounds proposed.
    before = np.cumsum(proposed) - proposed
    first_round = np.searchsorted(request, np.arange(len(batch)))
    padded = np.concatenate((before, [0]))
    start = batch.overlap_offsets[:-1][request] + before - padded[first_round][request]
    committed = np.minimum(accepted, emitted)
    rejected = (accepted < proposed) & (emitted == accepted + 1)
    tested = np.where(usable[request], committed + rejected, 0)
    row, offset = _ragged(tested)
    flag = offset < committed[row]
    overlap = np.clip(batch.overlap[start[row] + offset].astype(np.float64), 0.0, 1.0)
    variance = float((overlap * (1.0 - overlap)).sum())
    violations = int((flag & (overlap == 0.0)).sum())
    if variance < _MIN_VARIANCE:
        return WhiteBox(score=None, n_violations=violations, detectable=0.0)
    z = float((flag - overlap).sum() / np.sqrt(variance))
    return WhiteBox(
        score=ZScore(name="white-box acceptance", z=z, n=len(flag)),
        n_violations=violations,
        detectable=_DETECT * float(np.sqrt(variance)) / len(flag),
    )


def _swap(candidate: Outputs, reference: Outputs) -> SwapTest | None:
    """The permutation tests over sampled requests, the first 1,000 of them."""
    sampled = np.flatnonzero(candidate.temperature > 0.0)[:MAX_PAIRS]
    if len(sampled) < 2:
        return None
    return label_swap(_words(candidate.rows(sampled)), _words(reference.rows(sampled)))


def _words(outputs: Outputs) -> Words:
    row, offset = _ragged(outputs.length)
    return Words(
        tokens=outputs.tokens[outputs.start[row] + offset], owner=row, n=len(outputs.length)
    )


def _scores(test: SwapTest | None) -> tuple[ZScore, ...]:
    if test is None:
        return ()
    return (
        ZScore(name="label-swap n-grams", z=test.z_ngrams, n=test.n_pairs),
        ZScore(name="label-swap surprisal", z=test.z_surprisal, n=test.n_pairs),
    )


def _outputs(batches: Sequence[TraceBatch]) -> Outputs:
    """The first run of each request that neither failed nor was excluded."""
    kept = [b.where(b.ok) for b in batches]
    if not kept:
        none = np.empty(0, np.int64)
        return Outputs(
            request_id=np.empty(0, np.str_),
            temperature=np.empty(0),
            start=none,
            length=none,
            tokens=np.empty(0, np.int32),
            margin_start=none,
            margin_length=none,
            margin=np.empty(0, np.float32),
        )
    length = np.concatenate([np.diff(b.tokens_offsets) for b in kept])
    margin_length = np.concatenate([np.diff(b.margin_offsets) for b in kept])
    outputs = Outputs(
        request_id=np.concatenate([b.request_id for b in kept]),
        temperature=np.concatenate([b.temperature for b in kept]),
        start=np.cumsum(length) - length,
        length=length,
        tokens=np.concatenate([b.tokens for b in kept]),
        margin_start=np.cumsum(margin_length) - margin_length,
        margin_length=margin_length,
        margin=np.concatenate([b.margin for b in kept]),
    )
    return outputs.rows(np.sort(np.unique(outputs.request_id, return_index=True)[1]))


def _partners(candidate: Outputs, reference: Outputs) -> tuple[Outputs, Outputs]:
    """The rows of both that answer the same request, in one order."""
    _, mine, theirs = np.intersect1d(
        candidate.request_id, reference.request_id, assume_unique=True, return_indices=True
    )
    return candidate.rows(mine), reference.rows(theirs)


def _where_greedy(candidate: Outputs, reference: Outputs) -> tuple[Outputs, Outputs]:
    greedy = candidate.temperature == 0.0
    return candidate.rows(greedy), reference.rows(greedy)


def _margin_at(outputs: Outputs, row: Ints, position: Ints) -> NDArray[np.float64]:
    """The margin at a position of each row, NaN where the engine gave none."""
    known = position < outputs.margin_length[row]
    where = np.where(known, outputs.margin_start[row] + position, 0)
    padded = np.append(outputs.margin, np.nan).astype(np.float64)
    return np.where(known, padded[where], np.nan)


def _ragged(lengths: Ints) -> tuple[Ints, Ints]:
    """Row and position inside the row of every cell of a ragged array."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _smallest_defect(greedy: Greedy, swap: SwapTest | None, white: WhiteBox) -> str:
    """What would have been found nine times in ten."""
    parts = []
    if greedy.n_requests:
        parts.append(
            f"a defect that changes {1 - 0.1 ** (1 / greedy.n_requests):.1%} of the greedy outputs"
        )
    if swap is not None and swap.detectable > 0.0:
        parts.append(
            f"a token of 1 % of the sampled output changing by {100 * swap.detectable:.2g} points"
        )
    if white.score is not None:
        parts.append(f"an acceptance off by {white.detectable:.2g} per tested token")
    return "; ".join(parts)
