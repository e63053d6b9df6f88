"""Reference of `sample`: the law of one position, and one token drawn from it.

The law is softmax(logits / temperature) cut by top-k, top-p and min-p in this order (the order of
transformers' generate) and renormalised; temperature 0 is the one-hot law of the argmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Sampling parameters of R rows, on the device, and what the host knows of them.

    temperature [R] float32 (0 is greedy), top_k [R] int64 (0 is off), top_p [R] float32 (1 is
    off), min_p [R] float32 (0 is off), greedy [R] bool, truncated [R] bool (any of the three on).
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    greedy: Tensor
    truncated: Tensor
    all_greedy: bool
    any_greedy: bool
    any_truncated: bool

    @classmethod
    def of(
        cls,
        temperature: Sequence[float],
        top_k: Sequence[int] | None = None,
        top_p: Sequence[float] | None = None,
        min_p: Sequence[float] | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> SamplingRows:
        n = len(temperature)
        top_k = [0] * n if top_k is None else top_k
        top_p = [1.0] * n if top_p is None else top_p
        min_p = [0.0] * n if min_p is None else min_p
        greedy = [t == 0 for t in temperature]
        cut = [
            not g and (k > 0 or p < 1 or m > 0)
            for g, k, p, m in zip(greedy, top_k, top_p, min_p, strict=True)
        ]
        return cls(
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            top_k=torch.tensor(top_k, dtype=torch.int64, device=device),
            top_p=torch.tensor(top_p, dtype=torch.float32, device=device),
            min_p=torch.tensor(min_p, dtype=torch.float32, device=device),
            greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
            truncated=torch.tensor(cut, dtype=torch.bool, device=device),
            all_greedy=all(greedy),
            any_greedy=any(greedy),
            any_truncated=any(cut),
        )


def law(logits: Tensor, sampling: SamplingRows, row: Tensor | None = None) -> Tensor:
    """The probabilities that a row with these parameters samples from.

    logits [N, V] of any floating dtype (−inf allowed); row [N] int64 is the row of `sampling` that
    each position belongs to (None: N = R, in order). Returns [N, V] float32. A position with NaN
    or +inf, or without a finite logit, gives NaN unless its row is greedy.
    """
    temperature, greedy = sampling.temperature, sampling.greedy
    if row is not None:
        temperature, greedy = temperature[row], greedy[row]
    # From the best logit on, so that nothing overflows when a low temperature divides a logit near
    # the end of float32. A greedy row is divided by 1: its softmax is replaced below.
    scaled = logits.float() - logits.amax(-1, keepdim=True).float()
    scaled /= torch.where(greedy, 1.0, temperature)[:, None]
    if sampling.any_truncated:
        scaled = _truncate(scaled, sampling, row)
    probs = torch.softmax(scaled, dim=-1)
    if sampling.any_greedy:
        one_hot = torch.zeros_like(probs).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
        probs = torch.where(greedy[:, None], one_hot, probs)
    return probs


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF draw, one per row.

    weights [N, V] ≥ 0, not necessarily normalised; uniforms [N] in [0, 1). Returns [N] int64: the
    first token whose running sum exceeds uniform × total, so a token without weight is never
    drawn. The sum runs in float64: a float16 one is visible in the output (README).
    """
    cdf = weights.cumsum(-1, dtype=torch.float64)
    wanted = uniforms.to(torch.float64)[:, None] * cdf[:, -1:]
    tokens = torch.searchsorted(cdf, wanted, right=True).squeeze(1)
    return tokens.clamp_(max=weights.shape[-1] - 1)


def sample(logits: Tensor, sampling: SamplingRows, uniforms: Tensor | None) -> Tensor:
    """One token per row: logits [R, V], uniforms [R] (may be None when all rows are greedy) ->
    [R] int64."""
    if sampling.all_greedy:
        return logits.argmax(-1)
    assert uniforms is not None
    return draw(law(logits, sampling), uniforms)


def _truncate(scaled: Tensor, sampling: SamplingRows, row: Tensor | None) -> Tensor:
    """−inf outside top-k, top-p and min-p. Ties with the last kept logit are all kept, so that the
    law does not depend on a sort's order."""
    cut, top_k = sampling.truncated, sampling.top_k
    top_p, min_p = sampling.top_p, sampling.min_p
    if row is not None:
        cut, top_k, top_p, min_p = cut[row], top_k[row], top_p[row], min_p[row]
    if not scaled.is_cuda:  # sorting dominates on a CPU; on a GPU the selection would synchronise
        chosen = cut.nonzero().squeeze(1)
        if len(chosen) < len(cut):
            part = scaled[chosen]
            floor = _lowest_kept(part, top_k[chosen], top_p[chosen], min_p[chosen])
            return scaled.index_copy(0, chosen, part.masked_fill(part < floor, -torch.inf))
    floor = _lowest_kept(scaled, top_k, top_p, min_p)
    return scaled.masked_fill(scaled < floor, -torch.inf)


def _lowest_kept(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """[N, 1] the lowest scaled logit that stays."""
    vocab = scaled.shape[-1]
    ranked = scaled.sort(dim=-1, descending=True).values
    last = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab) - 1
    floor_k = ranked.gather(1, last[:, None])
    probs = torch.softmax(ranked.masked_fill(ranked < floor_k, -torch.inf), dim=-1)
    # Kept while the mass before it is under top_p: the best token always stays.
    before = probs.cumsum(-1, dtype=torch.float64) - probs
    n_kept = (before < top_p.to(torch.float64)[:, None]).sum(-1, keepdim=True)
    n_kept = torch.where(top_p[:, None] < 1, n_kept, vocab)
    floor_p = ranked.gather(1, n_kept.clamp(min=1) - 1)
    floor_min = ranked[:, :1] + min_p.log()[:, None]  # log 0 = −inf: off
    return torch.maximum(torch.maximum(floor_k, floor_p), floor_min)
