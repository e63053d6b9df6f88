"""How near the draft's law stands to the target's at each position, teacher-forced."""

from __future__ import annotations

import torch
from torch import Tensor

from pairgate_kernels import dispatch
from pairgate_kernels.overlap import reference
from pairgate_kernels.overlap.reference import Agreement, LogitsOf
from pairgate_kernels.sample.reference import SamplingRows

__all__ = ["Agreement", "LogitsOf", "agreement", "chunked_agreement"]

_CHUNK_LOGITS = 2**21  # of each model at a time: 8 MiB in float32


def agreement(
    target_logits: Tensor, draft_logits: Tensor, sampling: SamplingRows, row: Tensor | None = None
) -> Agreement:
    """`reference.agreement` by the implementation that fits the device."""
    if dispatch.fused(target_logits):
        from pairgate_kernels.overlap import triton

        return triton.agreement(target_logits, draft_logits, sampling, row)
    return reference.agreement(target_logits, draft_logits, sampling, row)


def chunked_agreement(
    target: LogitsOf,
    draft: LogitsOf,
    n_positions: int,
    vocab: int,
    sampling: SamplingRows,
    row: Tensor | None = None,
    *,
    chunk_logits: int = _CHUNK_LOGITS,
) -> Agreement:
    """`agreement` of N positions whose logits are made chunk by chunk from the hidden states, so
    that [N, vocab] never exists: at most `chunk_logits` logits of each model at a time.

    target and draft give logits [end − begin, vocab] of positions begin to end, e.g.
    `lambda begin, end: hidden[begin:end] @ head.T`; row [N] as in `law`.
    """
    device = sampling.temperature.device
    row = torch.arange(n_positions, device=device) if row is None else row
    overlap, divergence = (torch.empty(n_positions, device=device) for _ in range(2))
    same_best = torch.empty(n_positions, dtype=torch.bool, device=device)
    step = max(1, chunk_logits // vocab)
    for begin in range(0, n_positions, step):
        end = min(begin + step, n_positions)
        part = agreement(target(begin, end), draft(begin, end), sampling, row[begin:end])
        overlap[begin:end], divergence[begin:end] = part.overlap, part.divergence
        same_best[begin:end] = part.same_best
    return Agreement(overlap=overlap, divergence=divergence, same_best=same_best)
