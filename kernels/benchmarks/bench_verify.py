"""`verify`: the Triton kernels against the torch reference and the bandwidth of a copy.

On a CPU: what the reference costs with the overlap, with truncation, and with the draft's law at
hand (as the decoder calls it there).
"""

from __future__ import annotations

import torch
from bench import Variant, compare, copy_rate, say_where
from torch import Tensor

from pairgate_kernels.sample.reference import SamplingRows, draw, law
from pairgate_kernels.verify import verify
from pairgate_kernels.verify.reference import Ragged, Verified
from pairgate_kernels.verify.reference import verify as reference

VOCAB, K = 151_936, 3


def main() -> None:
    device = say_where()
    n_rows = 1024 if device == "cuda" else 2
    shape = Ragged.of([K] * n_rows, device=device)
    generator = torch.Generator(device).manual_seed(0)
    draft = torch.randn(n_rows * K, VOCAB, generator=generator, device=device)
    target = torch.randn(n_rows * (K + 1), VOCAB, generator=generator, device=device) * 0.3
    target[shape.draft_target] += draft
    draft, target = draft.bfloat16(), target.bfloat16()
    u = torch.rand(n_rows * (K + 1), 2, generator=generator, device=device, dtype=torch.float64)
    for title, top_k, top_p in (("temperature 1", 0, 1.0), ("top-k 50, top-p 0.9", 50, 0.9)):
        rows = SamplingRows.of([1.0] * n_rows, [top_k] * n_rows, [top_p] * n_rows, device=device)
        # The draft's law a few rows at a time: it need not fit beside the rest.
        tokens = torch.cat(
            [
                draw(law(draft[i : i + 64], rows, shape.draft_row[i : i + 64]), v)
                for i, v in zip(
                    range(0, len(draft), 64), u[shape.draft_target, 0].split(64), strict=True
                )
            ]
        )
        check(verify(target, draft, tokens, shape, rows, u),
              reference(target, draft, tokens, shape, rows, u))  # fmt: skip
        measure(title, target, draft, tokens, shape, rows, u)


def check(found: Verified, wanted: Verified) -> None:
    """Equal up to draws at an edge of the inverse CDF (tests/kernels has the exact rule)."""
    torch.testing.assert_close(found.overlap, wanted.overlap, atol=1e-5, rtol=1e-5)
    same = (found.accepted == wanted.accepted) & (found.token == wanted.token)
    assert same.float().mean() >= 0.99, "the kernels and the reference disagree"


def measure(
    title: str, target: Tensor, draft: Tensor, tokens: Tensor, shape: Ragged, rows: SamplingRows,
    u: Tensor,
) -> None:  # fmt: skip
    n_bytes = 2 * (target.numel() + draft.numel())
    variants = [Variant(
        name="torch reference", run=lambda: reference(target, draft, tokens, shape, rows, u),
        n_bytes=n_bytes,
    )]  # fmt: skip
    if target.is_cuda:
        for name, overlap in (("triton", False), ("triton with overlap", True)):

            def run(overlap: bool = overlap) -> object:
                return verify(target, draft, tokens, shape, rows, u, with_overlap=overlap)

            variants.append(Variant(name=name, run=run, n_bytes=n_bytes))
        variants.append(copy_rate(n_bytes))
    else:
        probs = law(draft, rows, shape.draft_row)

        def without_overlap() -> object:
            return reference(target, draft, tokens, shape, rows, u, with_overlap=False)

        def with_law() -> object:
            return reference(target, None, tokens, shape, rows, u, draft_probs=probs)

        variants.append(Variant(name="torch reference, no overlap", run=without_overlap))
        variants.append(Variant(name="torch reference, draft's law given", run=with_law))
    compare(f"verify, {title}, {list(target.shape)} {target.dtype}", variants)


if __name__ == "__main__":
    main()
