"""Reference of `overlap`: how near the draft's law stands to the target's, teacher-forced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pairgate_kernels.sample.reference import SamplingRows, law

LogitsOf = Callable[[int, int], Tensor]
"""The logits [end − begin, V] of positions begin to end: an lm_head on a part of the hidden states.
Asked once for each position, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Per position [N]: `overlap` float32, Σ min(p, q) of the laws that are sampled from, the
    chance that a proposal is accepted; `divergence` float32, KL(target ‖ draft) in nats of the laws
    without top-k, top-p and min-p (at temperature 1 for a greedy row), which stays finite where
    truncation would not; `same_best` bool, whether both have the same best token. The floats are
    NaN where either side has NaN, +inf or no finite logit, unless (overlap only) the row is
    greedy."""

    overlap: Tensor
    divergence: Tensor
    same_best: Tensor


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


def agreement(
    target_logits: Tensor, draft_logits: Tensor, sampling: SamplingRows, row: Tensor | None = None
) -> Agreement:
    """All three numbers of `Agreement`; arguments as in `overlap`."""
    temperature = torch.where(sampling.greedy, 1.0, sampling.temperature)
    if row is not None:
        temperature = temperature[row]
    target_log, draft_log = (_log_law(x, temperature) for x in (target_logits, draft_logits))
    probs = target_log.exp()
    terms = torch.where(probs == 0, 0.0, probs * (target_log - draft_log))
    return Agreement(
        overlap=overlap(target_logits, draft_logits, sampling, row),
        divergence=terms.sum(-1),
        same_best=target_logits.argmax(-1) == draft_logits.argmax(-1),
    )


def _log_law(logits: Tensor, temperature: Tensor) -> Tensor:
    """Log-probabilities without truncation, shifted before the division as in `law`."""
    shifted = logits.float() - logits.amax(-1, keepdim=True).float()
    return torch.log_softmax(shifted / temperature[:, None], dim=-1)
