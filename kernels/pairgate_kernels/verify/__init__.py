"""Accept, recover or take the bonus token."""

from __future__ import annotations

from torch import Tensor

from pairgate_kernels import dispatch
from pairgate_kernels.sample.reference import SamplingRows
from pairgate_kernels.verify import reference
from pairgate_kernels.verify.reference import Ragged, Verified

__all__ = ["Ragged", "Verified", "verify"]


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
    """`reference.verify` by the implementation that fits the device."""
    if dispatch.fused(target_logits):
        from pairgate_kernels.verify import triton

        implementation = triton.verify
    else:
        implementation = reference.verify
    return implementation(
        target_logits, draft_logits, draft_tokens, shape, sampling, uniforms,
        with_overlap=with_overlap,
    )  # fmt: skip
