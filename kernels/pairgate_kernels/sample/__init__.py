"""Sampling from logits with the uniforms passed in."""

from __future__ import annotations

from torch import Tensor

from pairgate_kernels import dispatch
from pairgate_kernels.sample import reference
from pairgate_kernels.sample.reference import SamplingRows

__all__ = ["sample"]


def sample(logits: Tensor, sampling: SamplingRows, uniforms: Tensor | None) -> Tensor:
    """`reference.sample` by the implementation that fits the device: logits [R, V], uniforms [R]
    (may be None when all rows are greedy) -> [R] int64."""
    if dispatch.fused(logits):
        from pairgate_kernels.sample import triton

        return triton.sample(logits, sampling, uniforms)
    return reference.sample(logits, sampling, uniforms)
