"""Which implementation a tensor takes: Triton on a GPU, torch elsewhere."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from torch import Tensor


def fused(logits: Tensor) -> bool:
    """Whether the Triton kernels run for these logits."""
    return logits.is_cuda and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
