"""The references of sample, verify and overlap: shapes, edges, and the law of the output."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from pairgate_kernels.overlap.reference import overlap
from pairgate_kernels.sample.reference import SamplingRows, draw, law, sample
from pairgate_kernels.verify.reference import Ragged, Verified, verify

INF = float("inf")


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_law_agrees_with_transformers_warpers(dtype: torch.dtype) -> None:
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = normal(5, 50).to(dtype)
    cases = [(0.7, 0, 1.0, 0.0), (1.3, 9, 1.0, 0.0), (1.0, 0, 0.8, 0.0), (0.9, 20, 0.9, 0.05)]
    for temperature, top_k, top_p, min_p in cases:
        warpers = [TemperatureLogitsWarper(temperature)]
        if top_k:
            warpers.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            warpers.append(TopPLogitsWarper(top_p))
        if min_p:
            warpers.append(MinPLogitsWarper(min_p))
        wanted = torch.softmax(LogitsProcessorList(warpers)(None, logits.float()), -1)
        rows = SamplingRows.of([temperature] * 5, [top_k] * 5, [top_p] * 5, [min_p] * 5)
        found = law(logits, rows)
        # bfloat16 logits tie; we keep all ties at the edge, transformers those its sort names.
        if dtype == torch.float32:
            torch.testing.assert_close(found, wanted)
        else:
            assert ((found > 0) >= (wanted > 0)).all()


def test_truncation_of_some_rows_leaves_the_others_alone() -> None:
    logits = normal(4, 30)
    rows = SamplingRows.of([1.0, 0.0, 1.0, 2.0], [0, 5, 3, 0], [1.0, 1.0, 1.0, 0.5])
    found = law(logits, rows)
    torch.testing.assert_close(found[0], torch.softmax(logits[0], -1))
    assert found[1].max() == 1 and found[1].argmax() == logits[1].argmax()
    assert (found[2] > 0).sum() == 3
    for i in range(4):
        one = SamplingRows.of(
            [[1.0, 0.0, 1.0, 2.0][i]], [[0, 5, 3, 0][i]], [[1.0, 1.0, 1.0, 0.5][i]]
        )
        torch.testing.assert_close(law(logits[i : i + 1], one)[0], found[i])


def test_masked_logits_are_fine_and_never_drawn() -> None:
    logits = torch.tensor([[-INF, 0.0, -INF, 1.0]])
    rows = SamplingRows.of([1.0])
    for u in (0.0, 0.5, 1 - 2**-53):
        assert int(sample(logits, rows, torch.tensor([u], dtype=torch.float64))) in (1, 3)


def test_draw_is_the_inverse_of_the_running_sum() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]]).expand(4, 5)
    u = torch.tensor([0.0, 0.2499, 0.25, 0.9999])
    assert draw(weights, u).tolist() == [1, 1, 3, 3]


def test_overlap_is_the_chance_of_acceptance() -> None:
    p, q = normal(6, 40), normal(6, 40, seed=1)
    rows = SamplingRows.of([1.0] * 6)
    found = overlap(p, q, rows)
    wanted = 1 - 0.5 * (torch.softmax(p, -1) - torch.softmax(q, -1)).abs().sum(-1)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(overlap(p, p, rows), torch.ones(6))
    torch.testing.assert_close(overlap(p, p, SamplingRows.of([0.0] * 6)), torch.ones(6))


def by_hand(
    target: torch.Tensor, draft: torch.Tensor | None, tokens: list[int], n: list[int],
    rows: SamplingRows, u: torch.Tensor,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """The algorithm of the paper, row by row and token by token."""
    accepted, last, t, d = [], [], 0, 0
    for r, k in enumerate(n):
        index = torch.full((k + 1,), r)
        p = law(target[t : t + k + 1], rows, index)
        if draft is None:
            q = torch.nn.functional.one_hot(
                torch.tensor(tokens[d : d + k], dtype=torch.int64), p.shape[1]
            ).float()
        else:
            q = law(draft[d : d + k], rows, index[:k])
        a = 0
        while a < k and u[t + a, 0] * q[a, tokens[d + a]] < p[a, tokens[d + a]]:
            a += 1
        weights = p[a] if a == k else (p[a] - q[a]).clamp(min=0)
        accepted.append(a)
        last.append(int(draw(weights[None], u[t + a, 1][None])))
        t, d = t + k + 1, d + k
    return accepted, last


@pytest.mark.parametrize("n", [[3, 3, 3], [2, 0, 3], [0, 1, 4], [1, 1, 1]])
@pytest.mark.parametrize("one_hot", [False, True])
def test_ragged_batches_equal_the_algorithm_by_hand(n: list[int], one_hot: bool) -> None:
    rows = SamplingRows.of([1.0, 0.0, 0.6], [0, 0, 8], [0.9, 1.0, 1.0])
    for seed in range(20):
        total = sum(n)
        draft = normal(total, 24, seed=seed)
        shape = Ragged.of(n)
        # The target resembles the draft, so that both accepts and rejections occur.
        target = normal(total + 3, 24, seed=seed + 100)
        target[shape.draft_target] = draft + 0.5 * target[shape.draft_target]
        tokens = draw(law(draft, rows, shape.draft_row), uniform(total, seed=seed))
        u = uniform(total + 3, 2, seed=seed + 50)
        given = None if one_hot else draft
        found = verify(target, given, tokens, shape, rows, u)
        accepted, last = by_hand(target, given, tokens.tolist(), n, rows, u)
        assert found.accepted.tolist() == accepted
        assert found.token.tolist() == last
        assert not found.bad.any()


def test_the_greedy_path_equals_the_general_one() -> None:
    n = [3, 2, 0]
    shape = Ragged.of(n)
    target = normal(8, 20)
    tokens = target.argmax(-1)[shape.draft_target].clone()
    tokens[1] = (tokens[1] + 1) % 20
    greedy = SamplingRows.of([0.0] * 3)
    # One sampled row more makes the whole batch take the general path.
    mixed = SamplingRows.of([0.0] * 3 + [1.0])
    fast = verify(target, None, tokens, shape, greedy, None)
    extra = torch.cat((target, normal(1, 20, seed=9)))
    slow = verify(extra, None, tokens, Ragged.of([*n, 0]), mixed, uniform(9, 2))
    assert fast.accepted.tolist() == slow.accepted.tolist()[:3] == [1, 2, 0]
    assert fast.token.tolist() == slow.token.tolist()[:3]
    torch.testing.assert_close(fast.overlap, slow.overlap)
    torch.testing.assert_close(fast.margin, slow.margin[:8])


def test_broken_rows_are_reported_and_do_not_touch_others() -> None:
    shape = Ragged.of([2, 2])
    rows = SamplingRows.of([1.0, 1.0])
    target, draft = normal(6, 10), normal(4, 10, seed=1)
    tokens = torch.tensor([1, 2, 3, 4])
    clean = verify(target, draft, tokens, shape, rows, uniform(6, 2))
    for where, value in ((target, float("nan")), (target, INF), (draft, float("nan"))):
        broken = where.clone()
        broken[0, 3] = value
        found = verify(
            broken if where is target else target, broken if where is draft else draft,
            tokens, shape, rows, uniform(6, 2),
        )  # fmt: skip
        assert found.bad.tolist() == [True, False]
        assert found.token[1] == clean.token[1] and found.accepted[1] == clean.accepted[1]


def distribution(found: Verified, tokens: torch.Tensor, vocab: int) -> np.ndarray:
    first = torch.where(found.accepted > 0, tokens, found.token)
    return np.bincount(first.numpy(), minlength=vocab)


@pytest.mark.parametrize(
    ("temperature", "top_p", "one_hot"), [(1.0, 1.0, False), (0.7, 0.8, False), (1.0, 1.0, True)]
)
def test_the_output_has_the_targets_law(temperature: float, top_p: float, one_hot: bool) -> None:
    """Chi-square on the first emitted token over 40,000 rows with one proposal each. The false
    alarm is 0.001 at each of three settings; seeds are fixed."""
    n, vocab = 40_000, 8
    target_row, draft_row = normal(vocab, seed=3), normal(vocab, seed=4)
    rows = SamplingRows.of([temperature] * n, None, [top_p] * n)
    target = torch.stack((target_row, target_row)).repeat(n, 1)
    draft = draft_row.expand(n, vocab)
    if one_hot:
        tokens = torch.full((n,), int(draft_row.argmax()))
    else:
        tokens = draw(law(draft, rows), uniform(n, seed=5))
    found = verify(target, None if one_hot else draft, tokens, Ragged.of([1] * n), rows,
                   uniform(2 * n, 2, seed=6))  # fmt: skip
    p = law(target_row[None], SamplingRows.of([temperature], None, [top_p]))[0].double().numpy()
    counts = distribution(found, tokens, vocab)
    assert counts[p == 0].sum() == 0
    kept = p > 0
    statistic = ((counts - n * p)[kept] ** 2 / (n * p)[kept]).sum()
    assert statistic < chi2.ppf(0.999, kept.sum() - 1)
    # The reported overlap is the share that was accepted (four standard errors).
    share = found.accepted.float().mean().item()
    assert abs(share - found.overlap[0].item()) < 4 * 0.5 / n**0.5
