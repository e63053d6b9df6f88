"""Triton kernels of top-k, top-p and min-p: the lowest logit that stays, found without sorting.

A radix search over the bits of the logits, four at a time: each pass reads the row once and weighs
what lies from sixteen pivots on (kernels/README.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SEARCH_BLOCK = 512  # times 16 pivots
# Low bits of a float32 that are the same for all values of a narrower dtype of one sign.
SPARE_BITS = {torch.bfloat16: 16, torch.float16: 12, torch.float32: 0}


@triton.jit
def load_logits(logits, stride, n, ids, vocab):
    """float32 logits of one position; −inf beyond the vocabulary."""
    row = logits + n.to(tl.int64) * stride
    return tl.load(row + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)


@triton.jit
def _order(values, SPARE: tl.constexpr):
    """Keys (uint32) in the order of the values; equal values have equal keys."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.uint32, bitcast=True)
    negative = (bits >> 31) != 0
    return tl.where(negative, bits ^ 0xFFFFFFFF, bits | 0x80000000) >> SPARE


@triton.jit
def _search(
    logits, stride, n, peak, scale, lowest, bound,
    MASS: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr, SPARE: tl.constexpr,
):  # fmt: skip
    """The largest key for which the weight of all keys from it on is at least `bound`, 0 if there
    is none: four bits per pass. A token weighs 1, or with MASS its exp when its key is at least
    `lowest`."""
    digits = tl.arange(0, 16).to(tl.uint32)
    found = tl.full((), 0, tl.uint32)
    shift = tl.full((), 28 - SPARE, tl.uint32)
    for _ in range(0, (32 - SPARE) // 4):
        pivots = found | (digits << shift)
        above = tl.zeros((16,), tl.float64)
        for start in range(0, VOCAB, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            values = load_logits(logits, stride, n, ids, VOCAB)
            keys = _order(values, SPARE)
            if MASS:
                weights = tl.exp((values - peak) * scale)
                weights = tl.where((keys >= lowest) & (values > -float("inf")), weights, 0.0)
            else:
                weights = (ids < VOCAB).to(tl.float32)
            reached = tl.where(keys[:, None] >= pivots[None, :], weights[:, None], 0.0)
            above += tl.sum(reached, 0).to(tl.float64)
        digit = tl.sum(((above >= bound) & (digits > 0)).to(tl.int32), 0)
        found = found | (digit.to(tl.uint32) << shift)
        shift -= 4
    return found


@triton.jit
def _total(
    logits, stride, n, peak, scale, floor, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """float64 sum of the weights of the logits from `floor` on."""
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, VOCAB, BLOCK):
        values = load_logits(logits, stride, n, start + tl.arange(0, BLOCK), VOCAB)
        weights = tl.exp((values - peak) * scale)
        kept = (values >= floor) & (values > -float("inf"))
        total += tl.sum(tl.where(kept, weights, 0.0), 0).to(tl.float64)
    return total


@triton.jit
def _logit(key, SPARE: tl.constexpr):
    """The value that has this key, −inf for key 0."""
    wide = key << SPARE
    positive = (wide >> 31) != 0
    ones: tl.constexpr = (1 << SPARE) - 1
    bits = tl.where(positive, wide ^ 0x80000000, (wide | ones) ^ 0xFFFFFFFF)
    return tl.where(key == 0, -float("inf"), bits.to(tl.float32, bitcast=True))


@triton.jit
def truncate(
    logits, stride, cut, top_k, top_p, log_min_p, numbers,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, SPARE: tl.constexpr,
):  # fmt: skip
    """Floor and total of a position with top-k, top-p or min-p, in this order."""
    n = tl.program_id(0)
    if tl.load(cut + n) == 0:
        return
    peak, scale = tl.load(numbers + n * 4), tl.load(numbers + n * 4 + 3)
    if peak == -float("inf"):
        return
    k, mass = tl.load(top_k + n), tl.load(top_p + n).to(tl.float64)
    floor = tl.full((), -float("inf"), tl.float32)
    none = tl.full((), 0, tl.uint32)
    if k > 0:
        key = _search(
            logits, stride, n, peak, scale, none, k.to(tl.float64),
            MASS=False, VOCAB=VOCAB, BLOCK=BLOCK, SPARE=SPARE,
        )  # fmt: skip
        floor = _logit(key, SPARE)
    if mass < 1.0:
        # A token stays while the mass above it is under top_p: the best token always does.
        bound = mass * _total(logits, stride, n, peak, scale, floor, VOCAB, BLOCK)
        key = _search(
            logits, stride, n, peak, scale, _order(floor, SPARE), bound,
            MASS=True, VOCAB=VOCAB, BLOCK=BLOCK, SPARE=SPARE,
        )  # fmt: skip
        key = tl.minimum(key, _order(peak, SPARE))
        floor = tl.maximum(floor, _logit(key, SPARE))
    floor = tl.maximum(floor, peak + tl.load(log_min_p + n) / scale)
    tl.store(numbers + n * 4 + 2, floor)
    total = _total(logits, stride, n, peak, scale, floor, VOCAB, BLOCK)
    tl.store(numbers + n * 4 + 1, total.to(tl.float32))
