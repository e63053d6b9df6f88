"""Reference of `overlap`: Σ min(p, q), the chance that a proposal from q is accepted under p."""

from __future__ import annotations

import torch
from torch import Tensor

from pairgate_kernels.sample.reference import SamplingRows, law


def overlap(
    target_logits: Tensor, draft_logits: Tensor, sampling: SamplingRows, row: Tensor | None = None
) -> Tensor:
    """Σ min(p, q) per position, in float32.

    target_logits and draft_logits [N, V]; row [N] as in `law`. Returns [N] float32 in [0, 1];
    NaN where either side has no law. Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.5.
    """
    target_probs = law(target_logits, sampling, row)
    draft_probs = law(draft_logits, sampling, row)
    return torch.minimum(target_probs, draft_probs).sum(-1)
