"""Triton kernels of `sample`: the law of every position without a matrix of probabilities.

A law is five numbers per position: best logit, sum of weights, lowest kept logit, 1 / temperature
and best token. From them any probability follows from its logit, so [N, V] is read in blocks and
only sums per block are written (README, "Laws without a matrix"). `verify` and `overlap` build on
these kernels. Accumulation is float32 within a block and float64 across blocks, whatever the
logits' dtype.

The modules that hold Triton code are compiled when a GPU runs them and interpreted on a CPU when
TRITON_INTERPRET=1 was set before triton was first imported.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairgate_kernels.sample.reference import SamplingRows
from pairgate_kernels.sample.triton_truncate import (
    SEARCH_BLOCK,
    SPARE_BITS,
    load_logits,
    truncate,
)

BLOCK = 8192  # logits per program: 19 blocks of a vocabulary of 151,936
N_WARPS = 8  # of such a program


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLaws:
    """The laws of N positions, in the order of `logits` [N, V] (rows may have any stride).

    numbers [N, 4] float32: peak (largest logit), total (sum of exp((logit − peak) · scale) over the
    kept tokens), floor (lowest kept logit, −inf: all), scale (1 / temperature, 0 for a greedy
    position). best [N] int64; margin [N] float32, top-2 gap; full [N] float32, the total without
    truncation, at temperature 1 where greedy; bad [N] bool: NaN, +inf or no finite logit.
    """

    logits: Tensor
    numbers: Tensor
    best: Tensor
    margin: Tensor
    full: Tensor
    bad: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMasses:
    """Sums per position and block of the vocabulary, [N, blocks] float32: of p, of max(p − q, 0)
    and of min(p, q). The last two are 0 where the position has no draft."""

    kept: Tensor
    rest: Tensor
    common: Tensor


def laws(logits: Tensor, sampling: SamplingRows, row: Tensor | None = None) -> PositionLaws:
    """What `reference.law` says of logits [N, V], as numbers; row [N] as there."""
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    n, vocab = logits.shape
    block, blocks = block_shape(vocab)
    scale = _of(torch.where(sampling.greedy, 0.0, _inverse(sampling.temperature)), row)
    peaks, seconds, totals = (_new(logits, (n, blocks)) for _ in range(3))
    firsts = _new(logits, (n, blocks), torch.int32)
    broken = _new(logits, (n, blocks), torch.int32)
    found = PositionLaws(
        logits=logits,
        numbers=_new(logits, (n, 4)),
        best=_new(logits, (n,), torch.int64),
        margin=_new(logits, (n,)),
        full=_new(logits, (n,)),
        bad=_new(logits, (n,), torch.bool),
    )
    if n == 0:
        return found
    _block_stats[(n, blocks)](
        logits, logits.stride(0), vocab, scale, peaks, seconds, totals, firsts, broken,
        BLOCK=block, num_warps=N_WARPS,
    )  # fmt: skip
    _combine[(n,)](
        peaks, seconds, totals, firsts, broken, scale,
        found.numbers, found.best, found.margin, found.full, found.bad,
        blocks, BLOCKS=triton.next_power_of_2(blocks),
    )  # fmt: skip
    if sampling.any_truncated:
        truncate[(n,)](
            logits, logits.stride(0), _of(sampling.truncated, row), _of(sampling.top_k, row),
            _of(sampling.top_p, row), _of(sampling.min_p.log(), row), found.numbers,
            VOCAB=vocab, BLOCK=SEARCH_BLOCK, SPARE=SPARE_BITS[logits.dtype],
        )  # fmt: skip
    return found


def block_masses(
    target: PositionLaws,
    at: Tensor,
    draft: PositionLaws | None = None,
    draft_at: Tensor | None = None,
    draft_tokens: Tensor | None = None,
) -> BlockMasses:
    """Masses of the target's positions `at` [N], each against the draft's position `draft_at` [N]
    (−1: none). Without `draft`, `draft_tokens` [T] are certain proposals; without both, only p."""
    vocab = target.logits.shape[1]
    block, blocks = block_shape(vocab)
    kept, rest, common = (_new(target.logits, (len(at), blocks)) for _ in range(3))
    if len(at):
        _masses[(len(at), blocks)](
            *_operands(target, at, draft, draft_at, draft_tokens), vocab, kept, rest, common,
            DRAFT=_mode(draft, draft_tokens), BLOCK=block, num_warps=N_WARPS,
        )  # fmt: skip
    return BlockMasses(kept=kept, rest=rest, common=common)


def draw_tokens(
    masses: BlockMasses,
    uniforms: Tensor,
    target: PositionLaws,
    at: Tensor,
    draft: PositionLaws | None = None,
    draft_at: Tensor | None = None,
    draft_tokens: Tensor | None = None,
) -> Tensor:
    """[N] int64 by inverse CDF in the order of ids, from max(p − q, 0) where the position has a
    draft and that leaves anything, else from p. uniforms [N] in [0, 1); the others as in
    `block_masses`, which made `masses`."""
    tokens = _new(target.logits, (len(at),), torch.int64)
    vocab = target.logits.shape[1]
    block, blocks = block_shape(vocab)
    if len(at):
        _draw[(len(at),)](
            *_operands(target, at, draft, draft_at, draft_tokens), vocab,
            masses.kept, masses.rest, uniforms.contiguous(), tokens, blocks,
            DRAFT=_mode(draft, draft_tokens), BLOCK=block, BLOCKS=triton.next_power_of_2(blocks),
            num_warps=N_WARPS,
        )  # fmt: skip
    return tokens


def sample(logits: Tensor, sampling: SamplingRows, uniforms: Tensor | None) -> Tensor:
    """`reference.sample` on the device: logits [R, V], uniforms [R] -> [R] int64."""
    if sampling.all_greedy:
        return logits.argmax(-1)
    assert uniforms is not None
    found = laws(logits, sampling)
    at = torch.arange(len(logits), device=logits.device)
    return draw_tokens(block_masses(found, at), uniforms, found, at)


def block_shape(vocab: int) -> tuple[int, int]:
    """Logits per block, and how many blocks."""
    block = min(BLOCK, max(16, triton.next_power_of_2(vocab)))
    return block, triton.cdiv(vocab, block)


def _new(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


def _of(values: Tensor, row: Tensor | None) -> Tensor:
    return values if row is None else values[row]


def _inverse(temperature: Tensor) -> Tensor:
    """Finite also where the temperature is so small that 1 / temperature is not."""
    return temperature.reciprocal().clamp(max=torch.finfo(torch.float32).max)


def _mode(draft: PositionLaws | None, draft_tokens: Tensor | None) -> int:
    """What q is: 0 nothing, 1 a law, 2 one certain token."""
    return 1 if draft is not None else 2 if draft_tokens is not None else 0


def _operands(
    target: PositionLaws,
    at: Tensor,
    draft: PositionLaws | None,
    draft_at: Tensor | None,
    draft_tokens: Tensor | None,
) -> tuple[Tensor | int, ...]:
    """The kernels' first arguments; what a mode does not read is any tensor."""
    other = target if draft is None else draft
    return (
        target.logits, target.logits.stride(0), target.numbers, target.best, at,
        other.logits, other.logits.stride(0), other.numbers, other.best,
        at if draft_at is None else draft_at, at if draft_tokens is None else draft_tokens,
    )  # fmt: skip


@triton.jit
def law_at(values, ids, numbers, best, n):
    """float32 probabilities of the tokens `ids` with these logits at position n."""
    peak, total = tl.load(numbers + n * 4), tl.load(numbers + n * 4 + 1)
    floor, scale = tl.load(numbers + n * 4 + 2), tl.load(numbers + n * 4 + 3)
    probs = tl.exp((values - peak) * scale) / total
    probs = tl.where((values >= floor) & (values > -float("inf")), probs, 0.0)
    return tl.where(scale == 0.0, (ids == tl.load(best + n)).to(tl.float32), probs)


@triton.jit
def _block_stats(
    logits, stride, vocab, scales, peaks, seconds, totals, firsts, broken,
    BLOCK: tl.constexpr,
):  # fmt: skip
    n, block = tl.program_id(0), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    read = load_logits(logits, stride, n, ids, vocab)
    scale = tl.load(scales + n)
    scale = tl.where(scale == 0.0, 1.0, scale)
    fine = read < float("inf")  # false for NaN
    values = tl.where(fine, read, -float("inf"))
    peak = tl.max(values, 0)
    first = tl.min(tl.where(values == peak, ids, 2147483647), 0)
    weights = tl.where(values > -float("inf"), tl.exp((values - peak) * scale), 0.0)
    out = n.to(tl.int64) * tl.num_programs(1) + block
    tl.store(peaks + out, peak)
    tl.store(seconds + out, tl.max(tl.where(ids == first, -float("inf"), values), 0))
    tl.store(totals + out, tl.sum(weights, 0))
    tl.store(firsts + out, first)
    tl.store(broken + out, tl.max((~fine).to(tl.int32), 0))


@triton.jit
def _combine(
    peaks, seconds, totals, firsts, broken, scales,
    numbers, best, margin, full, bad, blocks, BLOCKS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    places = tl.arange(0, BLOCKS)
    there = places < blocks
    offset = n.to(tl.int64) * blocks + places
    tops = tl.load(peaks + offset, mask=there, other=-float("inf"))
    scale = tl.load(scales + n)
    heat = tl.where(scale == 0.0, 1.0, scale)
    peak = tl.max(tops, 0)
    parts = tl.load(totals + offset, mask=there, other=0.0)
    total = tl.sum(tl.where(tops > -float("inf"), parts * tl.exp((tops - peak) * heat), 0.0), 0)
    own = tl.load(firsts + offset, mask=there, other=2147483647)
    first = tl.min(tl.where(there & (tops == peak), own, 2147483647), 0)
    # The second best is the second of the block that holds the best, or the best of another.
    runners = tl.where(own == first, tl.load(seconds + offset, mask=there, other=0.0), tops)
    wrong = tl.max(tl.load(broken + offset, mask=there, other=0), 0)
    tl.store(numbers + n * 4, peak)
    tl.store(numbers + n * 4 + 1, total)
    tl.store(numbers + n * 4 + 2, -float("inf"))
    tl.store(numbers + n * 4 + 3, scale)
    tl.store(best + n, first.to(tl.int64))
    tl.store(margin + n, peak - tl.max(runners, 0))
    tl.store(full + n, total)
    tl.store(bad + n, (wrong > 0) | (peak == -float("inf")))


@triton.jit
def _pair_at(
    logits, stride, numbers, best, n, draft_logits, draft_stride, draft_numbers, draft_best, d,
    draft_tokens, ids, vocab, DRAFT: tl.constexpr,
):  # fmt: skip
    """p and q of some tokens; q is 0 without a draft (d < 0)."""
    p = law_at(load_logits(logits, stride, n, ids, vocab), ids, numbers, best, n)
    q = tl.zeros_like(p)
    if DRAFT == 1:  # noqa: SIM102 - decided at compile time, the inner test at run time
        if d >= 0:
            q = law_at(load_logits(draft_logits, draft_stride, d, ids, vocab), ids, draft_numbers,
                       draft_best, d)  # fmt: skip
    if DRAFT == 2:
        token = tl.load(draft_tokens + d, mask=d >= 0, other=-1)
        q = (ids == token).to(tl.float32)
    return p, q


@triton.jit
def _masses(
    logits, stride, numbers, best, at, draft_logits, draft_stride, draft_numbers, draft_best,
    draft_at, draft_tokens, vocab, kept, rest, common,
    DRAFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i, block = tl.program_id(0), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(draft_at + i)
    p, q = _pair_at(
        logits, stride, numbers, best, tl.load(at + i), draft_logits, draft_stride, draft_numbers,
        draft_best, d, draft_tokens, ids, vocab, DRAFT=DRAFT,
    )  # fmt: skip
    out = i.to(tl.int64) * tl.num_programs(1) + block
    tl.store(kept + out, tl.sum(p, 0))
    tl.store(rest + out, tl.sum(tl.maximum(p - q, 0.0), 0))
    tl.store(common + out, tl.sum(tl.minimum(p, q), 0))


@triton.jit
def _draw(
    logits, stride, numbers, best, at, draft_logits, draft_stride, draft_numbers, draft_best,
    draft_at, draft_tokens, vocab, kept, rest, uniforms, tokens, blocks,
    DRAFT: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    places = tl.arange(0, BLOCKS)
    offset, there = i.to(tl.int64) * blocks + places, places < blocks
    masses = tl.load(kept + offset, mask=there, other=0.0)
    d = tl.load(draft_at + i)
    use_rest = False
    if DRAFT > 0:
        left = tl.load(rest + offset, mask=there, other=0.0)
        # p = q up to rounding leaves nothing; then p itself is the right law.
        use_rest = (d >= 0) & (tl.sum(left, 0) > 0.0)
        masses = tl.where(use_rest, left, masses)
    masses = masses.to(tl.float64)
    sums = tl.cumsum(masses, 0)
    wanted = tl.load(uniforms + i).to(tl.float64) * tl.sum(masses, 0)
    last = tl.max(tl.where(masses > 0.0, places, 0), 0)
    block = tl.minimum(tl.sum((sums <= wanted).to(tl.int32), 0), last)
    before = tl.sum(tl.where(places < block, masses, 0.0), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    p, q = _pair_at(
        logits, stride, numbers, best, tl.load(at + i), draft_logits, draft_stride, draft_numbers,
        draft_best, d, draft_tokens, ids, vocab, DRAFT=DRAFT,
    )  # fmt: skip
    weights = tl.where(use_rest, tl.maximum(p - q, 0.0), p).to(tl.float64)
    passed = tl.sum((tl.cumsum(weights, 0) <= wanted - before).to(tl.int32), 0)
    # The block's sum was rounded: never beyond its last token that has weight.
    end = tl.max(tl.where(weights > 0.0, tl.arange(0, BLOCK), 0), 0)
    tl.store(tokens + i, (block * BLOCK + tl.minimum(passed, end)).to(tl.int64))
