"""`sample`: drawing one token per row, the Triton kernels against the torch reference.

On a CPU: the reference by what the rows ask for.
"""

from __future__ import annotations

import torch
from bench import Variant, compare, copy_rate, say_where

from pairgate_kernels.sample import sample
from pairgate_kernels.sample.reference import SamplingRows
from pairgate_kernels.sample.reference import sample as reference

VOCAB = 151_936


def main() -> None:
    device = say_where()
    n = 1024 if device == "cuda" else 4
    generator = torch.Generator(device).manual_seed(0)
    logits = (torch.randn(n, VOCAB, generator=generator, device=device) * 3).bfloat16()
    u = torch.rand(n, generator=generator, device=device, dtype=torch.float64)
    variants: list[Variant] = []
    for title, top_k, top_p, min_p in (
        ("temperature 1", 0, 1.0, 0.0),
        ("top-k 50", 50, 1.0, 0.0),
        ("top-p 0.9", 0, 0.9, 0.0),
        ("min-p 0.05", 0, 1.0, 0.05),
    ):
        rows = SamplingRows.of([1.0] * n, [top_k] * n, [top_p] * n, [min_p] * n, device=device)
        same = sample(logits, rows, u) == reference(logits, rows, u)
        # Equal up to draws at an edge of the inverse CDF (tests/kernels has the exact rule).
        assert same.float().mean() >= 0.99, "the kernels and the reference disagree"

        def by_torch(rows: SamplingRows = rows) -> object:
            return reference(logits, rows, u)

        def by_device(rows: SamplingRows = rows) -> object:
            return sample(logits, rows, u)

        n_bytes = logits.numel() * logits.element_size()
        variants.append(Variant(name=f"torch reference, {title}", run=by_torch, n_bytes=n_bytes))
        if logits.is_cuda:
            variants.append(Variant(name=f"triton, {title}", run=by_device, n_bytes=n_bytes))
    if logits.is_cuda:
        variants.append(copy_rate(logits.numel() * logits.element_size()))
    compare(f"sample, {list(logits.shape)} {logits.dtype}", variants)


if __name__ == "__main__":
    main()
