"""Triton kernel of `verify`, on the laws of `sample.triton`: no [T, V] of probabilities exists."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairgate_kernels.sample.reference import SamplingRows
from pairgate_kernels.sample.triton import PositionLaws, block_masses, draw_tokens, law_at, laws
from pairgate_kernels.verify.reference import (
    Ragged,
    Verified,
    any_by_row,
    leading,
    verify_greedy,
)


def verify(
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_tokens: Tensor,
    shape: Ragged,
    sampling: SamplingRows,
    uniforms: Tensor | None,
    *,
    with_overlap: bool = True,
) -> Verified:
    """`reference.verify` on the device, from logits only.

    Each logit is read once for its law, once more for the overlap where that is wanted, and once
    more at the one position that ends a row's round.
    """
    target = laws(target_logits, sampling, shape.target_row)
    draft = None if draft_logits is None else laws(draft_logits, sampling, shape.draft_row)
    bad = any_by_row(target.bad, None if draft is None else draft.bad, shape)
    if sampling.all_greedy:
        return verify_greedy(target.best, draft_tokens, shape, target.margin, bad)
    assert uniforms is not None
    uniforms = uniforms.contiguous()
    accepted = _accepted(target, draft, draft_tokens, shape, uniforms)
    end = shape.start + accepted  # [R] the position whose token ends the round
    rows = torch.arange(len(end), device=end.device)
    draft_end = torch.where(accepted < shape.n_draft, end - rows, -1)
    overlap = torch.full_like(draft_tokens, torch.nan, dtype=torch.float32)
    if with_overlap:
        masses = block_masses(
            target, shape.draft_target, draft, torch.arange(len(draft_tokens), device=end.device),
            draft_tokens,
        )  # fmt: skip
        overlap = masses.common.sum(-1)
    ends = block_masses(target, end, draft, draft_end, draft_tokens)
    return Verified(
        accepted=accepted,
        token=draw_tokens(ends, uniforms[end, 1], target, end, draft, draft_end, draft_tokens),
        overlap=overlap,
        margin=target.margin,
        bad=bad,
    )


def _accepted(
    target: PositionLaws,
    draft: PositionLaws | None,
    draft_tokens: Tensor,
    shape: Ragged,
    uniforms: Tensor,
) -> Tensor:
    """[R] int64: proposals before the first rejection of each row."""
    passed = torch.empty_like(draft_tokens, dtype=torch.int32)
    other = target if draft is None else draft
    if len(draft_tokens):
        _test[(len(draft_tokens),)](
            target.logits, target.logits.stride(0), target.numbers, target.best,
            shape.draft_target, other.logits, other.logits.stride(0), other.numbers, other.best,
            draft_tokens, uniforms, passed, ONE_HOT=draft is None,
        )  # fmt: skip
    return leading(passed > 0, shape)


@triton.jit
def _test(
    logits, stride, numbers, best, draft_target, draft_logits, draft_stride, draft_numbers,
    draft_best, draft_tokens, uniforms, passed, ONE_HOT: tl.constexpr,
):  # fmt: skip
    """Whether u · q < p at each proposal, in float64 as the reference has it."""
    d = tl.program_id(0).to(tl.int64)
    t, token = tl.load(draft_target + d), tl.load(draft_tokens + d)
    p = law_at(tl.load(logits + t * stride + token).to(tl.float32), token, numbers, best, t)
    q = tl.full((), 1.0, tl.float32)
    if not ONE_HOT:
        value = tl.load(draft_logits + d * draft_stride + token).to(tl.float32)
        q = law_at(value, token, draft_numbers, draft_best, d)
    u = tl.load(uniforms + 2 * t).to(tl.float64)
    tl.store(passed + d, (u * q.to(tl.float64) < p.to(tl.float64)).to(tl.int32))
