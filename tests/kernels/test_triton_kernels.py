"""The Triton kernels against their references, under shared randomness and on poisoned outputs.

The same tests run on a GPU where there is one; elsewhere Triton's interpreter runs the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pairgate_kernels.overlap import chunked_agreement
from pairgate_kernels.overlap import reference as overlap_reference
from pairgate_kernels.sample import reference as sample_reference
from pairgate_kernels.sample.reference import SamplingRows, draw, law
from pairgate_kernels.verify import reference as verify_reference
from pairgate_kernels.verify.reference import Ragged, Verified

pytest.importorskip("triton")  # the group's marker says why; without it nothing below imports
from pairgate_kernels.overlap import triton as overlap_triton
from pairgate_kernels.sample import triton as sample_triton
from pairgate_kernels.verify import triton as verify_triton

pytestmark = [
    pytest.mark.triton,
    # The compiler of 3.9 announces that it will fuse less; nothing here depends on it.
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
INF = float("inf")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The kernels' exp and sums differ from torch's in the last bits, which moves the edges of the
# inverse CDF by that much: a token may differ where so small a change of the uniform changes it.
EPSILON = 2e-6
MIXED = SamplingRows.of(
    [1.0, 0.0, 0.6, 0.9, 1.5], [0, 0, 8, 0, 40], [0.9, 1.0, 1.0, 0.8, 0.95], [0, 0, 0, 0.1, 0]
)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.empty gives NaN (the largest integer), several blocks per row, few interpreted steps;
    the interpreter's NumPy warns where a GPU goes on with NaN."""
    monkeypatch.setattr(sample_triton, "BLOCK", 256)
    if DEVICE == "cpu":
        monkeypatch.setattr(sample_triton, "SEARCH_BLOCK", 512)
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(1).isnan()
    with np.errstate(all="ignore"):
        yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arguments of `verify`, on the CPU."""

    target: Tensor
    draft: Tensor | None
    tokens: Tensor
    shape: Ragged
    rows: SamplingRows
    uniforms: Tensor

    def wanted(self, shift: float = 0.0) -> Verified:
        uniforms = (self.uniforms + shift).clamp(0, 1 - 2**-53)
        return verify_reference.verify(
            self.target, self.draft, self.tokens, self.shape, self.rows, uniforms
        )

    def found(self, *, with_overlap: bool = True) -> Verified:
        result = verify_triton.verify(
            self.target.to(DEVICE),
            None if self.draft is None else self.draft.to(DEVICE),
            self.tokens.to(DEVICE),
            moved(self.shape),
            moved(self.rows),
            self.uniforms.to(DEVICE),
            with_overlap=with_overlap,
        )
        return Verified(**{f.name: getattr(result, f.name).cpu() for f in fields(Verified)})


def moved(value: Ragged | SamplingRows) -> Ragged | SamplingRows:
    tensors = {f.name: getattr(value, f.name) for f in fields(value)}
    return replace(value, **{k: v.to(DEVICE) for k, v in tensors.items() if torch.is_tensor(v)})


def case(
    n: list[int],
    rows: SamplingRows,
    *,
    vocab: int = 300,
    dtype: torch.dtype = torch.float32,
    one_hot: bool = False,
    seed: int = 0,
) -> Case:
    """The target resembles the draft, so that both accepts and rejections occur."""
    generator = torch.Generator().manual_seed(seed)
    shape, total = Ragged.of(n), sum(n)
    draft = (torch.randn(total, vocab, generator=generator) * 2).to(dtype)
    target = torch.randn(total + len(n), vocab, generator=generator) * 2
    target[shape.draft_target] = draft.float() + 0.5 * target[shape.draft_target]
    u = torch.rand(total + len(n), 3, generator=generator, dtype=torch.float64)
    tokens = draw(law(draft, rows, shape.draft_row), u[shape.draft_target, 2])
    return Case(
        target=target.to(dtype),
        draft=None if one_hot else draft,
        tokens=tokens,
        shape=shape,
        rows=rows,
        uniforms=u[:, :2],
    )


def assert_equal(given: Case, found: Verified, keep: Tensor | None = None) -> None:
    """Rows in `keep` (all): tokens and counts exactly, up to EPSILON of the uniform."""
    wanted = given.wanted()
    assert found.bad.tolist() == wanted.bad.tolist()
    rows = ~wanted.bad if keep is None else keep
    same = (found.accepted == wanted.accepted) & (found.token == wanted.token)
    for shift in () if bool(same[rows].all()) else (-EPSILON, EPSILON):
        other = given.wanted(shift)
        same |= (found.accepted == other.accepted) & (found.token == other.token)
    assert same[rows].all()
    positions = rows[given.shape.draft_row]
    torch.testing.assert_close(
        found.overlap[positions], wanted.overlap[positions], atol=2e-6, rtol=2e-6
    )
    positions = rows[given.shape.target_row]
    torch.testing.assert_close(found.margin[positions], wanted.margin[positions], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("one_hot", [False, True])
def test_ragged_rows_of_all_kinds(dtype: torch.dtype, one_hot: bool) -> None:
    given = case([3, 2, 0, 4, 1], MIXED, dtype=dtype, one_hot=one_hot)
    assert_equal(given, given.found())


@pytest.mark.parametrize("n", [[1], [0], [0, 0], [1, 1, 1], [0, 5]])
def test_one_token_and_empty_drafts(n: list[int]) -> None:
    rows = SamplingRows.of([1.0] * len(n))
    for one_hot in (False, True):
        given = case(n, rows, one_hot=one_hot)
        assert_equal(given, given.found())


def test_all_greedy() -> None:
    given = case([3, 0, 2], SamplingRows.of([0.0] * 3))
    assert_equal(given, given.found())


def test_overlap_can_be_left_out() -> None:
    given = case([3, 2, 0, 4, 1], MIXED)
    found = given.found(with_overlap=False)
    assert found.overlap.isnan().all()
    assert_equal(given, replace(found, overlap=given.wanted().overlap))


def test_a_padded_vocabulary_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits as a view of wider rows, whose tail is NaN: the head of many models is padded."""
    given = case([2, 3, 1, 0, 2], MIXED)
    wide = torch.full((len(given.target), 384), torch.nan)
    wide[:, :300] = given.target
    assert given.draft is not None
    tail = torch.full((len(given.draft), 320), torch.nan)
    tail[:, :300] = given.draft
    assert_equal(given, replace(given, target=wide[:, :300], draft=tail[:, :300]).found())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_vocabulary_of_151936(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(sample_triton, "BLOCK", 8192)
    monkeypatch.setattr(sample_triton, "SEARCH_BLOCK", 16384 if DEVICE == "cpu" else 512)
    rows = SamplingRows.of([1.0, 0.8], [0, 50], [1.0, 0.9])
    given = case([2, 1], rows, vocab=151_936, dtype=dtype)
    assert_equal(given, given.found())


def test_rows_without_a_law_are_reported_and_touch_no_other() -> None:
    clean = case([2, 2, 2], SamplingRows.of([1.0, 0.0, 0.7], [0, 0, 5]))
    assert clean.draft is not None
    for place, value in ((0, torch.nan), (0, INF), (0, -INF), (1, torch.nan), (1, INF)):
        target, draft = clean.target.clone(), clean.draft.clone()
        broken = (target, draft)[place]
        broken[0, 3 if value != -INF else slice(None)] = value
        given = replace(clean, target=target, draft=draft)
        found = given.found()
        assert found.bad.tolist() == [True, False, False]
        assert ((found.token >= 0) & (found.token < 300)).all()
        assert_equal(given, found)


def test_masked_tokens_are_never_drawn() -> None:
    given = case([2, 0, 1, 3, 2], MIXED)
    assert given.draft is not None
    mask = torch.arange(300) % 7 != 0
    target, draft = (x.masked_fill(mask, -INF) for x in (given.target, given.draft))
    tokens = draw(law(draft, MIXED, given.shape.draft_row), given.uniforms[: len(draft), 0])
    given = replace(given, target=target, draft=draft, tokens=tokens)
    found = given.found()
    assert_equal(given, found)
    assert (found.token % 7 == 0).all()


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_saturated_float32(temperature: float) -> None:
    """Logits near the end of float32: dividing them by a low temperature first would overflow."""
    largest = torch.finfo(torch.float32).max
    rows = SamplingRows.of([temperature] * 2, [0, 2], [1.0, 0.9])
    given = case([2, 2], rows, vocab=40)
    assert given.draft is not None
    given.target[:, 5] = given.target[:, 9] = given.draft[:, 9] = largest
    given.target[:, 11] = -largest
    assert_equal(given, given.found())
    assert not given.wanted().overlap.isnan().any()
    torch.testing.assert_close(given.wanted().overlap, torch.full((4,), 0.5))


def test_ties_at_the_edge_are_all_kept() -> None:
    logits = torch.tensor([[0.0, -0.0, 1.0, 0.0, -1.0, 2.0]]).expand(3, 6)
    rows = SamplingRows.of([1.0] * 3, [3, 0, 0], [1.0, 0.7, 1.0], [0, 0, 0.3])
    wanted = law(logits, rows)
    found = sample_triton.laws(logits.to(DEVICE), moved(rows))
    kept = logits >= found.numbers[:, 2:3].cpu()
    assert kept.tolist() == (wanted > 0).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sample(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    logits = (torch.randn(5, 300, generator=generator) * 3).to(dtype)
    for _ in range(5):
        u = torch.rand(5, generator=generator, dtype=torch.float64)
        found = sample_triton.sample(logits.to(DEVICE), moved(MIXED), u.to(DEVICE)).cpu()
        near = [sample_reference.sample(logits, MIXED, u + e) for e in (0.0, -EPSILON, EPSILON)]
        assert torch.stack([found == tokens for tokens in near]).any(0).all()


def test_agreement() -> None:
    generator = torch.Generator().manual_seed(3)
    row = torch.tensor([0, 1, 2, 3, 4, 0, 1])
    target = torch.randn(7, 300, generator=generator) * 2
    draft = target + torch.randn(7, 300, generator=generator)
    target[0, 5], draft[2, 7], draft[5, 3], draft[6, 3] = -INF, -INF, torch.nan, torch.nan
    wanted = overlap_reference.agreement(target, draft, MIXED, row)
    found = overlap_triton.agreement(
        target.to(DEVICE), draft.to(DEVICE), moved(MIXED), row.to(DEVICE)
    )
    for name in ("overlap", "divergence"):
        torch.testing.assert_close(
            getattr(found, name).cpu()[:6], getattr(wanted, name)[:6],
            atol=1e-5, rtol=1e-5, equal_nan=True,
        )  # fmt: skip
    assert found.divergence[2] == INF and found.divergence[5:].isnan().all()
    assert found.same_best[:5].tolist() == wanted.same_best[:5].tolist()


def test_chunks_give_the_same_and_never_the_whole() -> None:
    """The product with the head is made chunk by chunk out of hidden states."""
    generator = torch.Generator().manual_seed(4)
    hidden, head = (torch.randn(23, 16, generator=generator) for _ in range(2))
    head = torch.randn(300, 16, generator=generator)
    noise = torch.randn(23, 16, generator=generator) * 0.3
    asked = list[int]()

    def target(begin: int, end: int) -> Tensor:
        asked.append(end - begin)
        return hidden[begin:end] @ head.T

    def draft(begin: int, end: int) -> Tensor:
        return (hidden + noise)[begin:end] @ head.T

    row = torch.arange(23) % 5
    found = chunked_agreement(target, draft, 23, 300, MIXED, row, chunk_logits=1500)
    wanted = overlap_reference.agreement(target(0, 23), draft(0, 23), MIXED, row)
    assert asked[:-1] == [5, 5, 5, 5, 3]
    torch.testing.assert_close(found.overlap, wanted.overlap)
    torch.testing.assert_close(found.divergence, wanted.divergence)
    assert found.same_best.equal(wanted.same_best)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_half_precision_drifts_and_the_kernels_do_not(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """At a high temperature the probabilities of a large vocabulary are below what float16
    resolves: a softmax stored in it is off by 0.1 % in total variation, and a running sum in it
    stops before half of the mass. The same logits through the kernels stay at the float64 law."""
    monkeypatch.setattr(sample_triton, "BLOCK", 8192)
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(1, 151_936, generator=generator) * 2).half()
    exact = torch.softmax(logits.double() / temperature, -1)
    stored = torch.softmax(logits / temperature, -1)
    assert stored.dtype == torch.float16
    assert (stored.double() - exact).abs().sum() / 2 > 1e-3
    assert np.cumsum(stored[0].cpu().numpy(), dtype=np.float16)[-1] < 0.5

    found = sample_triton.laws(logits.to(DEVICE), moved(SamplingRows.of([temperature])))
    first = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    masses = sample_triton.block_masses(found, first).kept[0].cpu().double()
    wanted = torch.nn.functional.pad(exact, (0, 19 * 8192 - 151_936)).view(19, 8192).sum(-1)
    assert (masses - wanted).abs().sum() / 2 < 1e-6
    assert abs(float(masses.sum()) - 1) < 1e-6
