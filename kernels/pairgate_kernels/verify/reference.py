"""Reference of `verify`: the accept-or-recover step of speculative sampling, on a ragged batch.

Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1; Chen et al. 2023 (arXiv 2302.01318),
Algorithm 2. Row r has n_r ≥ 0 proposals, hence n_r positions of the draft and n_r + 1 of the
target. Positions of all rows lie one after another: T = Σ n_r of the draft, T + R of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairgate_kernels.sample.reference import SamplingRows, draw, law


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Index tensors of one shape (n_1 … n_R); build once, use for every round of that shape."""

    n_draft: Tensor  # [R] int64
    start: Tensor  # [R] first target position of each row
    draft_row: Tensor  # [T] row of each draft position
    draft_place: Tensor  # [T] place within its row
    draft_target: Tensor  # [T] the target position that judges it
    target_row: Tensor  # [T + R] row of each target position
    equal: int  # n when all rows have it, else −1

    @classmethod
    def of(cls, n_draft: Sequence[int], *, device: torch.device | str = "cpu") -> Ragged:
        n = torch.tensor(n_draft, dtype=torch.int64)
        rows = torch.arange(len(n))
        start = torch.cumsum(n + 1, 0) - (n + 1)
        draft_row = torch.repeat_interleave(rows, n)
        draft_target = torch.arange(len(draft_row)) + draft_row
        equal = n_draft[0] if n_draft and len(set(n_draft)) == 1 else -1
        return cls(
            n_draft=n.to(device),
            start=start.to(device),
            draft_row=draft_row.to(device),
            draft_place=(draft_target - start[draft_row]).to(device),
            draft_target=draft_target.to(device),
            target_row=torch.repeat_interleave(rows, n + 1).to(device),
            equal=equal,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """accepted [R] int64; token [R] int64 (recovered after a rejection, else the bonus token);
    overlap [T] float32 Σ min(p, q); margin [T + R] float32 top-2 gap of the raw target logits;
    bad [R] bool: the row has NaN, +inf or no finite logit, and its other values mean nothing."""

    accepted: Tensor
    token: Tensor
    overlap: Tensor
    margin: Tensor
    bad: Tensor


def verify(
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_tokens: Tensor,
    shape: Ragged,
    sampling: SamplingRows,
    uniforms: Tensor | None,
    *,
    draft_probs: Tensor | None = None,
    with_overlap: bool = True,
) -> Verified:
    """Judge every proposal and draw the token that ends each row's round.

    target_logits [T + R, V] raw; draft_logits [T, V] raw, None for a one-hot (greedy) draft;
    draft_tokens [T] int64; uniforms [T + R, 2]: column 0 for the acceptance test of the proposal
    at that place, column 1 for the recovered or bonus token there (may be None when all rows are
    greedy). `draft_probs` [T, V] float32 replaces law(draft_logits) where the caller has it.
    Without `with_overlap` the overlaps may be NaN. All sums run in float32 or wider.
    """
    margin, best, bad_position = _top_two(target_logits)
    draft_bad = None if draft_logits is None else ~torch.isfinite(draft_logits.amax(-1))
    bad = any_by_row(bad_position, draft_bad, shape)
    if sampling.all_greedy:
        return verify_greedy(best, draft_tokens, shape, margin, bad)
    assert uniforms is not None
    target_probs = law(target_logits, sampling, shape.target_row)
    if draft_probs is None and draft_logits is not None:
        draft_probs = law(draft_logits, sampling, shape.draft_row)
    judged = target_probs[shape.draft_target]  # [T, V]
    column = draft_tokens[:, None]
    p = judged.gather(1, column).squeeze(1)
    if draft_probs is None:
        q, overlap = torch.ones_like(p), p
    else:
        q = draft_probs.gather(1, column).squeeze(1)
        overlap = (
            torch.minimum(judged, draft_probs).sum(-1)
            if with_overlap
            else torch.full_like(p, torch.nan)
        )
    accepted = leading(uniforms[shape.draft_target, 0] * q < p, shape)

    end = shape.start + accepted  # [R] the position whose token ends the round
    residual = target_probs[end]
    if len(draft_tokens):
        rejected = accepted < shape.n_draft
        at = (end - torch.arange(len(end), device=end.device)).clamp_(max=len(draft_tokens) - 1)
        if draft_probs is None:
            taken = torch.zeros_like(residual).scatter_(1, draft_tokens[at][:, None], 1.0)
        else:
            taken = draft_probs[at]
        rest = (residual - taken).clamp_(min=0)
        # p = q up to rounding leaves nothing; then p itself is the right law.
        usable = rejected & (rest.sum(-1) > 0)
        residual = torch.where(usable[:, None], rest, residual)
    return Verified(
        accepted=accepted,
        token=draw(residual, uniforms[end, 1]),
        overlap=overlap,
        margin=margin,
        bad=bad,
    )


def verify_greedy(
    best: Tensor, draft_tokens: Tensor, shape: Ragged, margin: Tensor, bad: Tensor
) -> Verified:
    """The same result when every law is one-hot: accepted where the proposal is the argmax."""
    same = draft_tokens == best[shape.draft_target]
    accepted = leading(same, shape)
    return Verified(
        accepted=accepted,
        token=best[shape.start + accepted],
        overlap=same.float(),
        margin=margin,
        bad=bad,
    )


def _top_two(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N] top-2 gap, [N] argmax, [N] whether the position has no law."""
    top = logits.topk(2, dim=-1).values.float()
    return top[:, 0] - top[:, 1], logits.argmax(-1), ~torch.isfinite(top[:, 0])


def leading(accept: Tensor, shape: Ragged) -> Tensor:
    """[R] number of accepted proposals before the first rejection of each row."""
    if shape.equal > 0:
        return accept.view(-1, shape.equal).long().cumprod(1).sum(1)
    place = torch.where(accept, shape.n_draft[shape.draft_row], shape.draft_place)
    return shape.n_draft.scatter_reduce(0, shape.draft_row, place, "amin", include_self=True)


def any_by_row(target_bad: Tensor, draft_bad: Tensor | None, shape: Ragged) -> Tensor:
    """[R] whether any position of the row is bad."""
    found = torch.zeros_like(shape.n_draft)
    found.index_add_(0, shape.target_row, target_bad.long())
    if draft_bad is not None:
        found.index_add_(0, shape.draft_row, draft_bad.long())
    return found > 0
