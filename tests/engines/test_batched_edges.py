"""What goes wrong or ends in the batched decoder: NaN, lengths, vocabularies, fallback."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import VOCAB, build, loaded, prompts, request, run

from pairgate.domain.policy import FallbackSettings
from pairgate.domain.trace import Finish, RoundState
from pairgate.engines.native.batched import BatchedDecoder, DecoderSettings
from pairgate.engines.native.row import Ends
from pairgate.errors import Refused

PROMPTS = prompts(6)


def poisoned(seed: int, token: int) -> object:
    """A model whose logits are NaN once it has read `token`."""
    model = build(seed=seed)
    with torch.no_grad():
        model.model.embed_tokens.weight[token] = float("nan")
    return model


def test_nan_logits_fail_that_request_by_name_and_leave_no_trace() -> None:
    target, clean = loaded(poisoned(1, 95)), loaded(build(seed=1))
    draft = loaded(build(seed=2), "draft")
    requests = [
        request(0, [1, 2, 3], temperature=0.8),
        request(1, [4, 95, 6], temperature=0.8),
        *(request(i, [4, 5, i], temperature=0.8, top_p=0.9) for i in range(2, 8)),
    ]
    traces = run(target, draft, requests, n_rows=2)
    assert traces[1].finish is Finish.ERROR
    assert "NaN or infinite logits of the target at output position 0" in traces[1].error
    others = [r for r in requests if r.id != "r1"]
    wanted = {t.request_id: t.tokens.tolist() for t in run(clean, draft, others, n_rows=2)}
    # The row of the failed request was used again: nothing of it may reach the next one. A request
    # to which token 95 is proposed or given later fails too, by name.
    for trace in traces:
        if trace.ok:
            assert trace.tokens.tolist() == wanted[trace.request_id]
        else:
            assert "NaN or infinite logits of the target" in trace.error
    assert sum(t.ok for t in traces) >= 3


def test_nan_of_the_draft_is_told_apart() -> None:
    traces = run(
        loaded(build(seed=1)), loaded(poisoned(2, 7), "draft"), [request(0, [1, 7, 3])], n_rows=1
    )
    assert traces[0].error == "NaN or infinite logits of the draft at output position 1"
    assert traces[0].completion_tokens == 1


@pytest.mark.parametrize("draft_vocab", [VOCAB - 8, VOCAB + 16])
def test_another_vocabulary_size_is_aligned(draft_vocab: int) -> None:
    target = loaded(build(seed=1))
    draft = loaded(build(seed=1, vocab_size=draft_vocab), "draft")
    requests = [request(i, [1 + i, 2], temperature=1.0, max_tokens=20) for i in range(6)]
    greedy = [request(i, [1 + i, 2], max_tokens=20) for i in range(6)]
    for trace in run(target, draft, requests):
        assert trace.ok and trace.tokens.max() < VOCAB and np.isfinite(trace.overlap).all()
    alone = [t.tokens.tolist() for t in run(target, None, greedy)]
    assert [t.tokens.tolist() for t in run(target, draft, greedy)] == alone
    assert max(map(max, alone)) >= 88  # ids that the smaller draft has no embedding for


def test_ids_outside_the_common_vocabulary_are_never_proposed() -> None:
    """The draft would always choose its padding; masked, it proposes something real."""
    draft_model = build(seed=2)
    with torch.no_grad():
        draft_model.lm_head.weight[80:] = draft_model.lm_head.weight[:16] * 50
    seen = []
    decoder = BatchedDecoder(
        loaded(build(seed=1)),
        loaded(draft_model, "draft"),
        DecoderSettings(k=3, n_rows=1, max_model_len=60, run_seed=0, with_draft=True),
        ends=Ends(eos=frozenset()),
        encode=lambda r: list(r.token_ids or ()),
        common_vocab=80,
    )
    original = decoder._passes.draft_round

    def spy(*args: object) -> object:
        result = original(*args)  # type: ignore[arg-type]
        seen.extend(t for row in result.draft_tokens for t in row)
        return result

    decoder._passes.draft_round = spy  # type: ignore[method-assign,assignment]
    assert all(t.ok for t in decoder.run([(0, request(0, [1, 2], temperature=1.0))]))
    assert seen and max(seen) < 80


def test_the_drafts_context_ends_before_the_targets() -> None:
    target = build("gpt2", seed=1)
    draft = build("gpt2", seed=1, n_positions=24)
    requests = [
        request(0, list(range(10)), max_tokens=40),
        request(1, list(range(30)), max_tokens=10),
        request(2, list(range(5)), max_tokens=8),
        request(3, list(range(23)), max_tokens=9),
    ]
    traces = run(loaded(target), loaded(draft, "draft"), requests, n_rows=4)
    alone = run(loaded(target), None, requests, n_rows=1)
    assert [t.tokens.tolist() for t in traces] == [t.tokens.tolist() for t in alone]
    states = traces[0].round_state.tolist()
    assert (
        states == sorted(states) and RoundState.DRAFTED in states and RoundState.SKIPPED in states
    )
    assert set(traces[1].round_state) == {RoundState.SKIPPED}
    assert not traces[1].proposed.any()


def test_lengths_at_the_maximum() -> None:
    model = loaded(build(seed=1))
    limit, k = 30, 3
    lengths = (limit, limit - 1, limit - k, limit - k - 1, 1)
    requests = [request(i, [1] * n, max_tokens=50) for i, n in enumerate(lengths)]
    traces = run(model, model, requests, k=k, max_model_len=limit)
    assert traces[0].finish is Finish.ERROR and "max_model_len 30" in traces[0].error
    for trace, n in zip(traces[1:], lengths[1:], strict=True):
        assert trace.finish is Finish.LENGTH and trace.completion_tokens == limit - n


def test_requests_that_cannot_run_are_data() -> None:
    from dataclasses import replace

    model = loaded(build(seed=1))
    requests = [
        request(0, [1, VOCAB + 3]),
        request(1, []),
        replace(request(2, [1]), unsupported=("frequency_penalty",)),
        request(3, [1, 2]),
    ]
    traces = run(model, model, requests, n_rows=2)
    assert [t.finish for t in traces] == [
        Finish.ERROR,
        Finish.ERROR,
        Finish.EXCLUDED,
        Finish.LENGTH,
    ]
    assert f"outside 0 to {VOCAB - 1}" in traces[0].error
    assert "no tokens" in traces[1].error
    assert "frequency_penalty" in traces[2].error


@pytest.mark.parametrize("reprobe", [False, True])
def test_fallback_acts_costs_no_draft_and_changes_no_greedy_token(reprobe: bool) -> None:
    target, bad = loaded(build(seed=1)), loaded(build(seed=5), "draft")
    settings = FallbackSettings(minimum=8, window=16, reprobe=reprobe)
    requests = [request(i, p, max_tokens=75) for i, p in enumerate(PROMPTS[:4])]
    calls = []
    original = bad.model.forward
    bad.model.forward = lambda *a, **k: calls.append(1) or original(*a, **k)
    traces = run(target, bad, requests, n_rows=3, fallback=settings, k=2)
    bad.model.forward = original
    assert [t.tokens.tolist() for t in traces] == [
        t.tokens.tolist() for t in run(target, None, requests, n_rows=1)
    ]
    for trace in traces:
        fallen = trace.round_state == RoundState.FALLEN_BACK
        assert fallen.any() and trace.fell_back_at > 0
        assert not trace.proposed[fallen].any() and (trace.emitted[fallen] == 1).all()
        assert (trace.n_returns > 0) == reprobe
        if reprobe:
            after = trace.round_state[np.flatnonzero(fallen)[-1] :].tolist()
            assert fallen.sum() >= 64 and after
    if not reprobe:
        drafted = max(int((t.round_state == RoundState.DRAFTED).sum()) for t in traces)
        assert len(calls) <= 2 * (drafted + 1) * 2 + 8  # k passes in a drafting round, prefills


def test_a_good_draft_never_falls_back() -> None:
    model = loaded(build(seed=1))
    requests = [request(i, p, max_tokens=75) for i, p in enumerate(PROMPTS)]
    for trace in run(model, model, requests, fallback=FallbackSettings(minimum=8)):
        assert trace.fell_back_at == -1


def test_the_watchdog_names_a_request_without_progress() -> None:
    model = loaded(build(seed=1))
    traces = run(model, model, [request(0, [1, 2])], watchdog_s=1e-9)
    assert traces[0].finish is Finish.ERROR and "watchdog" in traces[0].error


def test_unsupported_models_are_refused_by_name() -> None:
    import transformers

    bloom = transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2)
    )
    mamba = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    neo = transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            vocab_size=32,
            hidden_size=16,
            num_layers=2,
            num_heads=2,
            window_size=4,
            attention_types=[[["global", "local"], 1]],
            intermediate_size=32,
        )
    )
    for model in (bloom, mamba, neo):
        with pytest.raises(Refused, match=r"cannot run the target \(") as caught:
            loaded(model)
        assert "serving engine" in str(caught.value)
