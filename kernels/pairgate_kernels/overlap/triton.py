"""Triton kernel of `overlap`, on the laws of `sample.triton`: no [N, V] of probabilities exists."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairgate_kernels.overlap.reference import Agreement
from pairgate_kernels.sample.reference import SamplingRows
from pairgate_kernels.sample.triton import N_WARPS, block_shape, law_at, laws
from pairgate_kernels.sample.triton_truncate import load_logits


def agreement(
    target_logits: Tensor, draft_logits: Tensor, sampling: SamplingRows, row: Tensor | None = None
) -> Agreement:
    """`reference.agreement` on the device; each logit is read twice."""
    target, draft = laws(target_logits, sampling, row), laws(draft_logits, sampling, row)
    n, vocab = target_logits.shape
    block, blocks = block_shape(vocab)
    common = torch.empty((n, blocks), dtype=torch.float32, device=target_logits.device)
    terms = torch.empty_like(common)
    if n:
        _agreement[(n, blocks)](
            target.logits, target.logits.stride(0), target.numbers, target.best,
            draft.logits, draft.logits.stride(0), draft.numbers, draft.best,
            vocab, common, terms, BLOCK=block, num_warps=N_WARPS,
        )  # fmt: skip
    bad = target.bad | draft.bad
    greedy = target.numbers[:, 3] == 0
    # KL = Σ p (x_p − x_q) + log Z_q − log Z_p, where the kernel leaves out 1 / Z_p.
    divergence = terms.sum(-1) / target.full + draft.full.log() - target.full.log()
    return Agreement(
        overlap=torch.where(bad & ~greedy, torch.nan, common.sum(-1)),
        divergence=torch.where(bad, torch.nan, divergence),
        same_best=target.best == draft.best,
    )


@triton.jit
def _agreement(
    logits, stride, numbers, best, draft_logits, draft_stride, draft_numbers, draft_best,
    vocab, common, terms, BLOCK: tl.constexpr,
):  # fmt: skip
    n, block = tl.program_id(0), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    values = load_logits(logits, stride, n, ids, vocab)
    others = load_logits(draft_logits, draft_stride, n, ids, vocab)
    p = law_at(values, ids, numbers, best, n)
    q = law_at(others, ids, draft_numbers, draft_best, n)
    scale = tl.load(numbers + n * 4 + 3)
    heat = tl.where(scale == 0.0, 1.0, scale)
    mine = (values - tl.load(numbers + n * 4)) * heat
    theirs = (others - tl.load(draft_numbers + n * 4)) * heat
    weights = tl.exp(mine)
    term = tl.where((ids < vocab) & (weights > 0.0), weights * (mine - theirs), 0.0)
    out = n.to(tl.int64) * tl.num_programs(1) + block
    tl.store(common + out, tl.sum(tl.minimum(p, q), 0))
    tl.store(terms + out, tl.sum(term, 0))
