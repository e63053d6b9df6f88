"""What teacher forcing says of each token, against the definitions and a plain pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pairgate.domain.scores import TokenScores
from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.domain.traffic import Request, Sampling
from pairgate.engines.native import scoring
from pairgate.engines.native.laws import DraftLaw
from pairgate.engines.native.loading import LoadedModel
from pairgate.engines.native.scoring import TeacherForcing
from pairgate.fidelity.law import roles_of
from tests.engines.tiny_models import build, loaded, prompts, request, run

SAMPLINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 0.0},
    {"temperature": 1.3, "top_k": 12},
    {"temperature": 1.0, "min_p": 0.05},
]


@pytest.fixture(scope="module")
def models() -> tuple[LoadedModel, LoadedModel]:
    torch.set_num_threads(1)
    return loaded(build(seed=0, scale=3.0)), loaded(build(seed=1, scale=3.0), "draft")


def _decoded(models: tuple[LoadedModel, LoadedModel]) -> tuple[list[Request], TraceBatch]:
    requests = [
        request(i, prompt, max_tokens=7 + i, **SAMPLINGS[i % len(SAMPLINGS)])
        for i, prompt in enumerate(prompts(20))
    ]
    batch = TraceBatch.from_rows(
        run(*models, requests),
        arm=Arm.SPEC,
        phase=Phase.ACCEPTANCE,
        concurrency=3,
        block=0,
        wall_s=1.0,
        definition="pairgate.rounds.v1",
    )
    return requests, batch


def _scorer(
    target: LoadedModel, draft: LoadedModel | None, *, ends: frozenset[int] = frozenset()
) -> TeacherForcing:
    return TeacherForcing(target, draft, encode=lambda r: list(r.token_ids or ()), end_tokens=ends)


def _law(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Softmax, top-k, top-p, min-p and argmax written out for one position."""
    if sampling.temperature == 0.0:
        return np.eye(len(logits))[logits.argmax()]
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    order = np.argsort(-weights)
    kept = order[: sampling.top_k or len(order)]
    share = weights[kept] / weights[kept].sum()
    kept = kept[np.cumsum(share) - share < sampling.top_p]
    kept = kept[weights[kept] >= sampling.min_p * weights.max()]
    kept = np.flatnonzero(weights >= weights[kept].min() * (1 - 1e-9))  # ties are all kept
    law = np.zeros(len(logits))
    law[kept] = weights[kept]
    return law / law.sum()


@torch.inference_mode()
def _plain(model: LoadedModel, text: list[int]) -> np.ndarray:
    return model.model(input_ids=torch.tensor([text])).logits[0].double().numpy()


def test_every_column_is_what_it_is_defined_to_be(
    models: tuple[LoadedModel, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, batch = _decoded(models)
    monkeypatch.setattr(scoring, "_CHUNK_ELEMENTS", 96 * 16 * 3)  # three positions at a time
    found = _scorer(*models).score(requests, batch)
    assert found.draft is not None
    assert len(found) == len(batch.tokens)
    assert not found.outside.any()
    at = 0
    for row, asked in enumerate(requests):
        output = batch.row(row).tokens.tolist()
        text = [*(asked.token_ids or ()), *output]
        target, draft = (_plain(model, text) for model in models)
        for place, token in enumerate(output):
            before = len(text) - len(output) + place - 1
            p, q = (_law(x[before], asked.sampling) for x in (target, draft))
            log_p = np.log(np.where(p > 0, p, 1.0))
            entropy, overlap = -(p * log_p).sum(), np.minimum(p, q).sum()
            square = (np.minimum(p, q) ** 2 / np.where(p > 0, p, 1.0)).sum()
            wanted = (
                (found.surprisal, -log_p[token] - entropy),
                (found.variance, (p * log_p**2).sum() - entropy**2),
                (found.mass, p[token]),
                (found.mass_below, p[:token].sum()),
                (found.draft.score, min(1.0, q[token] / p[token]) - overlap),
                (found.draft.variance, square - overlap**2),
                (found.draft.expected, overlap),
            )
            assert (found.row[at], found.position[at]) == (row, place)
            assert found.certain[at] == (p.max() > 1 - 1e-6)
            for column, value in wanted:
                assert column[at] == pytest.approx(value, abs=2e-4)
            at += 1


def test_a_recovered_token_is_likelier_under_the_target(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    requests, batch = _decoded(models)
    found = _scorer(*models).score(requests, batch)
    assert found.draft is not None
    roles = roles_of(batch)
    assert roles.recovered.sum() > 20
    assert not (found.draft.below & roles.recovered).any()
    assert (found.draft.below & roles.accepted).any()  # that is where they come from


def test_tokens_outside_the_law_and_after_the_end_are_seen(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    requests, batch = _decoded(models)
    scorer = _scorer(models[0], None)
    honest = scorer.score(requests, batch)
    assert scorer.level == "F2" and honest.draft is None
    greedy = int(np.flatnonzero(batch.temperature == 0.0)[0])
    at = int(batch.tokens_offsets[greedy])
    other = batch.tokens.copy()
    other[at] = (other[at] + 1) % 96
    assert _outside(scorer.score(requests, replace(batch, tokens=other))) >= 1
    end = frozenset({int(batch.tokens[at])})
    leaked = _scorer(models[0], None, ends=end).score(requests, batch)
    assert leaked.n_after_end > 0
    assert len(leaked) + leaked.n_after_end == len(batch.tokens)


def _outside(scores: TokenScores) -> int:
    return int(scores.outside.sum())


def test_rounding_excuses_a_near_tie_only(models: tuple[LoadedModel, LoadedModel]) -> None:
    """The same token is excused where the engine's precision explains it."""
    requests, batch = _decoded(models)
    greedy = np.flatnonzero(batch.temperature == 0.0)
    row = int(greedy[np.argmin([batch.row(int(i)).margin.min() for i in greedy])])
    place = int(batch.row(row).margin.argmin())
    gap = float(batch.row(row).margin[place])
    text = [*(requests[row].token_ids or ()), *batch.row(row).tokens.tolist()]
    logits = _plain(models[0], text)[len(requests[row].token_ids or ()) + place - 1]
    second = int(np.argsort(-logits)[1])
    tokens = batch.tokens.copy()
    tokens[batch.tokens_offsets[row] + place] = second
    changed = replace(batch, tokens=tokens).where(np.arange(len(batch)) == row)
    assert 1e-3 < gap < 0.25
    for dtype, outside, excused in (("float32", True, False), ("bfloat16", False, True)):
        scorer = TeacherForcing(
            models[0],
            None,
            encode=lambda r: list(r.token_ids or ()),
            end_tokens=frozenset(),
            engine_dtype=dtype,
        )
        found = scorer.score([requests[row]], changed)
        assert (bool(found.outside[place]), bool(found.excused[place])) == (outside, excused)


def test_a_text_that_the_draft_cannot_read_has_no_draft_columns(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    requests, batch = _decoded(models)
    short = loaded(build(seed=1, scale=3.0, max_position_embeddings=16), "draft")
    found = _scorer(models[0], short).score(requests, batch)
    assert found.draft is not None
    assert np.isnan(found.draft.expected).any()
    assert (found.mass > 0).all()


def test_a_greedy_draft_proposes_its_argmax(models: tuple[LoadedModel, LoadedModel]) -> None:
    requests, batch = _decoded(models)
    scorer = TeacherForcing(
        *models,
        encode=lambda r: list(r.token_ids or ()),
        end_tokens=frozenset(),
        draft_law=DraftLaw(greedy=True),
    )
    found = scorer.score(requests, batch)
    assert found.draft is not None
    one_hot = np.isclose(found.draft.score + found.draft.expected, 1.0) | np.isclose(
        found.draft.score, -found.draft.expected
    )
    assert one_hot[~np.isnan(found.draft.expected)].all()
