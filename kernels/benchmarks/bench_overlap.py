"""`overlap` with the head's product: chunk by chunk against all logits at once.

The time beside what the logits of both models take at once.
"""

from __future__ import annotations

import torch
from bench import Variant, compare, say_where

from pairgate_kernels.overlap import Agreement, chunked_agreement
from pairgate_kernels.overlap.reference import agreement as reference
from pairgate_kernels.sample.reference import SamplingRows

VOCAB = 49_152


def main() -> None:
    device = say_where()
    n, width = (8192, 2048) if device == "cuda" else (32, 288)
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    head = normal(VOCAB, width) / width**0.5 * 2
    hidden = normal(n, width)
    near = hidden + 0.3 * normal(n, width)
    rows = SamplingRows.of([1.0], [0], [1.0], device=device)
    row = torch.zeros(n, dtype=torch.int64, device=device)

    def whole() -> Agreement:
        return reference(hidden @ head.T, near @ head.T, rows, row)

    def chunked(chunk_logits: int) -> Agreement:
        return chunked_agreement(
            lambda begin, end: hidden[begin:end] @ head.T,
            lambda begin, end: near[begin:end] @ head.T,
            n, VOCAB, rows, row, chunk_logits=chunk_logits,
        )  # fmt: skip

    wanted = whole()
    variants = [Variant(name=f"whole, {2 * 4 * n * VOCAB >> 20} MiB of logits", run=whole)]
    for bits in (18, 20, 21):
        found = chunked(2**bits)
        torch.testing.assert_close(found.overlap, wanted.overlap, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.divergence, wanted.divergence, atol=1e-4, rtol=1e-3)
        assert (found.same_best == wanted.same_best).float().mean() > 0.99

        def run(chunk_logits: int = 2**bits) -> object:
            return chunked(chunk_logits)

        variants.append(Variant(name=f"chunked, {2 * 4 * 2**bits >> 20} MiB of logits", run=run))
    compare(f"overlap, {n} positions, vocabulary {VOCAB}, float32", variants, repeats=3)


if __name__ == "__main__":
    main()
