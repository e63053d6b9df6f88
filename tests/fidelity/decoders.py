"""The demo pair under the decoder that ships, and under decoders that are wrong on purpose.

A variant replaces what the decoding passes call (law, draw, verify) or one step of theirs, so all
the rest is the code that ships.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pairgate.domain.evidence import LawTests
from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.domain.traffic import Request, Sampling
from pairgate.engines.native import passes
from pairgate.engines.native.batched import BatchedDecoder, DecoderSettings
from pairgate.engines.native.laws import DraftLaw, sampling_rows
from pairgate.engines.native.loading import LoadedModel, eos_ids, load_model
from pairgate.engines.native.row import Ends, Row
from pairgate.engines.native.scoring import TeacherForcing
from pairgate.engines.prompts import Prompts
from pairgate.fidelity import law_tests
from pairgate_kernels.sample.reference import SamplingRows, draw, law
from pairgate_kernels.verify.reference import Ragged, Verified, verify

DEMO = Path(__file__).parents[2] / "pipelines" / "demo_pair"
K = 4
_CPU = torch.device("cpu")
WARM = Sampling(temperature=1.0)
COOL = Sampling(temperature=0.7)
NUCLEUS = Sampling(temperature=1.0, top_p=0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPair:
    """The base target and its draft, loaded once, and the prompts of its traffic."""

    target: LoadedModel
    draft: LoadedModel
    prompts: Prompts
    requests: tuple[Request, ...]

    @property
    def end_tokens(self) -> frozenset[int]:
        return eos_ids(self.target.model)

    @property
    def full_stop(self) -> frozenset[int]:
        """An end token that comes often: these models rarely write their own."""
        return frozenset(self.prompts.encode(_text(".")))


def demo_pair() -> DemoPair:
    target_dir = DEMO / "models" / "target-base"
    prompts = Prompts(target_dir)
    log = (DEMO / "slices" / "base.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in log.splitlines()]
    requests = tuple(
        Request(
            id=row["id"],
            domain=row["domain"],
            body="{}",
            max_tokens=row["body"]["max_tokens"],
            sampling=Sampling(
                temperature=row["body"]["temperature"],
                top_p=row["body"].get("top_p", 1.0),
                top_k=row["body"].get("top_k", 0),
            ),
            token_ids=tuple(prompts.encode(_text(row["body"]["prompt"]))),
        )
        for row in rows
    )
    return DemoPair(
        target=load_model(target_dir, "target", device=_CPU),
        draft=load_model(DEMO / "models" / "draft-base", "draft", device=_CPU),
        prompts=prompts,
        requests=requests,
    )


def _text(prompt: str) -> Request:
    return Request(id="p", domain="d", body="{}", max_tokens=1, sampling=Sampling(), text=prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`n_tokens` of output at least, at most 96 per request; `sampling` None is the traffic's own
    (sampled requests only)."""

    n_tokens: int
    sampling: Sampling | None = WARM
    with_draft: bool = True
    greedy_draft: bool = False
    ends: type[Ends] = Ends
    ends_at_full_stop: bool = False
    seed: int = 1


def end_tokens_of(pair: DemoPair, run: Run) -> frozenset[int]:
    return pair.full_stop if run.ends_at_full_stop else pair.end_tokens


def decode(pair: DemoPair, run: Run) -> tuple[list[Request], TraceBatch]:
    """Requests in the order of the batch's rows, and what they received."""
    chosen = [r for r in pair.requests if not r.sampling.greedy or run.sampling is not None]
    requests = [
        replace(
            chosen[i % len(chosen)],
            id=f"{i}",
            max_tokens=96,
            sampling=run.sampling or chosen[i % len(chosen)].sampling,
        )
        for i in range(-(-run.n_tokens // 90))
    ]
    decoder = BatchedDecoder(
        pair.target,
        pair.draft,
        DecoderSettings(
            k=K,
            n_rows=32,
            max_model_len=512,
            run_seed=run.seed,
            with_draft=run.with_draft,
            greedy_draft=run.greedy_draft,
        ),
        ends=run.ends(eos=end_tokens_of(pair, run)),
        encode=pair.prompts.encode,
        common_vocab=pair.prompts.n_ids,
    )
    batch = TraceBatch.from_rows(
        decoder.run(enumerate(requests)),
        arm=Arm.SPEC if run.with_draft else Arm.TARGET,
        phase=Phase.ACCEPTANCE,
        concurrency=32,
        block=0,
        wall_s=1.0,
        definition="pairgate.rounds.v1",
    )
    assert batch.ok.all(), batch.error
    return requests, batch


def found_in(pair: DemoPair, run: Run, draft_law: DraftLaw) -> LawTests:
    """Decode, teacher-force, test at F3."""
    requests, batch = decode(pair, run)
    scorer = TeacherForcing(
        pair.target,
        pair.draft,
        encode=pair.prompts.encode,
        end_tokens=end_tokens_of(pair, run),
        draft_law=draft_law,
        common_vocab=pair.prompts.n_ids,
    )
    scores = scorer.score(requests, batch)
    return law_tests(scores, batch, level=scorer.level, alpha=0.05, seed=0)


# --- wrong decoders ---------------------------------------------------------------------------

Break = Callable[[pytest.MonkeyPatch], None]
Judge = Callable[..., Verified]


def _replacing_verify(judge: Judge) -> Break:
    return lambda patch: patch.setattr(passes, "verify_probs", judge)


def _laws(
    target_logits: Tensor,
    tokens: Tensor,
    shape: Ragged,
    sampling: SamplingRows,
    draft_probs: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Target laws of all positions, and p, q of the proposals."""
    probs = law(target_logits, sampling, shape.target_row)
    column = tokens[:, None]
    p = probs[shape.draft_target].gather(1, column).squeeze(1)
    return probs, p, draft_probs.gather(1, column).squeeze(1)


def _decided(
    accept: Tensor, found: Verified, probs: Tensor, shape: Ragged, uniforms: Tensor
) -> Verified:
    """The proposals that `accept` [T] takes, then a token from the target's plain law."""
    place = torch.where(accept, shape.n_draft[shape.draft_row], shape.draft_place)
    n = shape.n_draft.scatter_reduce(0, shape.draft_row, place, "amin", include_self=True)
    end = shape.start + n
    return replace(found, accepted=n, token=draw(probs[end], uniforms[end, 1]))


def _no_residual(
    target_logits: Tensor,
    draft_logits: None,
    tokens: Tensor,
    shape: Ragged,
    sampling: SamplingRows,
    uniforms: Tensor,
    *,
    draft_probs: Tensor,
) -> Verified:
    found = verify(target_logits, None, tokens, shape, sampling, uniforms, draft_probs=draft_probs)
    probs = law(target_logits, sampling, shape.target_row)
    end = shape.start + found.accepted
    return replace(found, token=draw(probs[end], uniforms[end, 1]))


def _typical(
    target_logits: Tensor,
    draft_logits: None,
    tokens: Tensor,
    shape: Ragged,
    sampling: SamplingRows,
    uniforms: Tensor,
    *,
    draft_probs: Tensor,
) -> Verified:
    """Medusa's typical acceptance (arXiv 2401.10774, section 2.3.1): ε = 0.09, δ = 0.3."""
    found = verify(target_logits, None, tokens, shape, sampling, uniforms, draft_probs=draft_probs)
    probs, p, _ = _laws(target_logits, tokens, shape, sampling, draft_probs)
    entropy = -torch.xlogy(probs, probs).sum(-1)[shape.draft_target]
    accept = p > torch.minimum(torch.tensor(0.09), 0.3 * torch.exp(-entropy))
    return _decided(accept, found, probs, shape, uniforms)


def _lenient(
    target_logits: Tensor,
    draft_logits: None,
    tokens: Tensor,
    shape: Ragged,
    sampling: SamplingRows,
    uniforms: Tensor,
    *,
    draft_probs: Tensor,
) -> Verified:
    """Leviathan et al. 2023, appendix A.5: accept where u · 0.9 · q < p."""
    eased = uniforms.clone()
    eased[:, 0] *= 0.9
    return verify(target_logits, None, tokens, shape, sampling, eased, draft_probs=draft_probs)


def _stale(
    target_logits: Tensor,
    draft_logits: None,
    tokens: Tensor,
    shape: Ragged,
    sampling: SamplingRows,
    uniforms: Tensor,
    *,
    draft_probs: Tensor,
) -> Verified:
    """Every proposal but a round's first is judged by the law of the step before."""
    before = torch.arange(len(tokens)) - (shape.draft_place > 0).long()
    return verify(
        target_logits, None, tokens, shape, sampling, uniforms, draft_probs=draft_probs[before]
    )


def _proposing_from(sampling: Sampling) -> Break:
    """The draft draws with parameters of its own and is judged as if with the request's."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = passes.Passes._propose

        def propose(self: passes.Passes, given: Any, steps: int, rows: SamplingRows) -> Any:
            own = sampling_rows([sampling] * len(rows.temperature), _CPU)
            drawn: list[Tensor] = []

            def two_laws(logits: Tensor, asked: SamplingRows) -> Tensor:
                drawn.append(law(logits, own))
                return law(logits, asked)

            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(passes, "law", two_laws)
                inner.setattr(passes, "draw", lambda _, uniforms: draw(drawn[-1], uniforms))
                return original(self, given, steps, rows)

        patch.setattr(passes.Passes, "_propose", propose)

    return apply


def _half_sum(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF drawing with a running sum in float16."""
    half = weights.numpy().astype(np.float16)
    cdf = torch.from_numpy(np.add.accumulate(half, axis=-1, dtype=np.float16).astype(np.float64))
    wanted = uniforms.double()[:, None] * cdf[:, -1:]
    found = torch.searchsorted(cdf, wanted, right=True).squeeze(1)
    return found.clamp_(max=weights.shape[-1] - 1)


def _drawing_in_half(patch: pytest.MonkeyPatch) -> None:
    from pairgate_kernels.sample import reference as sample_reference
    from pairgate_kernels.verify import reference as verify_reference

    for module in (passes, sample_reference, verify_reference):
        patch.setattr(module, "draw", _half_sum)


class LeakingEnds(Ends):
    """An end token ends the request, and what was accepted behind it in the round stays."""

    def cut(self, row: Row, tokens: Sequence[int]) -> tuple[int, Any]:
        n, finish = super().cut(row, tokens)
        return (min(len(tokens), row.room), finish) if finish is not None else (n, finish)


BROKEN: dict[str, tuple[Run, Break]] = {
    "no residual correction": (Run(n_tokens=1500), _replacing_verify(_no_residual)),
    "typical acceptance": (Run(n_tokens=1000), _replacing_verify(_typical)),
    "lenience 0.9": (Run(n_tokens=6000), _replacing_verify(_lenient)),
    "temperature mismatch": (
        Run(n_tokens=2500),
        _proposing_from(COOL),
    ),
    "top-p mismatch": (Run(n_tokens=8000), _proposing_from(NUCLEUS)),
    "float16 running sum": (Run(n_tokens=5000), _drawing_in_half),
    "stale q": (Run(n_tokens=2000), _replacing_verify(_stale)),
    "leak after the end": (
        Run(n_tokens=6000, ends=LeakingEnds, ends_at_full_stop=True),
        lambda patch: None,
    ),
}


# --- lossless variants ------------------------------------------------------------------------


def _consistently_from(sampling: Sampling) -> Break:
    """The draft draws with parameters of its own and is judged by that very law."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = passes.Passes._propose

        def propose(self: passes.Passes, given: Any, steps: int, rows: SamplingRows) -> Any:
            own = sampling_rows([sampling] * len(rows.temperature), _CPU)
            return original(self, given, steps, own)

        patch.setattr(passes.Passes, "_propose", propose)

    return apply


def _judged_one_hot(
    target_logits: Tensor,
    draft_logits: None,
    tokens: Tensor,
    shape: Ragged,
    sampling: SamplingRows,
    uniforms: Tensor,
    *,
    draft_probs: Tensor,
) -> Verified:
    return verify(target_logits, None, tokens, shape, sampling, uniforms)


LOSSLESS: dict[str, tuple[Run, DraftLaw, Break]] = {
    "ends early": (
        Run(n_tokens=6000, ends_at_full_stop=True),
        DraftLaw(),
        lambda patch: None,
    ),
    "draft at another temperature": (
        Run(n_tokens=3000),
        DraftLaw(sampling=COOL),
        _consistently_from(COOL),
    ),
    "top-p on the target only": (
        Run(n_tokens=3000, sampling=NUCLEUS),
        DraftLaw(sampling=WARM),
        _consistently_from(WARM),
    ),
    "sampled draft judged one-hot": (
        Run(n_tokens=3000),
        DraftLaw(judged_one_hot=True),
        _replacing_verify(_judged_one_hot),
    ),
    "greedy draft": (
        Run(n_tokens=3000, greedy_draft=True),
        DraftLaw(greedy=True),
        lambda patch: None,
    ),
}
