"""The batched decoder equals the reference decoder and the target alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import ARCHITECTURES, build, loaded, prompts, request, run

from pairgate.domain.trace import Finish, RoundState
from pairgate.engines.native.randomness import uniforms
from pairgate.engines.native.reference import decode_reference

PROMPTS = prompts(7)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 5, "seed": 2},
    {"temperature": 0.9, "min_p": 0.1},
    {"temperature": 0.0},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.02},
)


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A target, and a draft that resembles it: the same weights with noise."""
    target = build(seed=1)
    draft = build(seed=1)
    with torch.no_grad():
        draft.lm_head.weight += torch.randn_like(draft.lm_head.weight) * 0.35
    return loaded(target), loaded(draft, "draft")


def greedy_alone(model: Any, prompt: list[int], n: int) -> list[int]:
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(n):
            text.append(int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2"])
def test_greedy_output_is_the_target_alone(architecture: str) -> None:
    target = build(architecture, seed=1)
    draft = build(architecture, seed=2)
    requests = [request(i, p, max_tokens=14) for i, p in enumerate(PROMPTS[:5])]
    traces = run(loaded(target), loaded(draft, "draft"), requests)
    for trace, prompt in zip(traces, PROMPTS, strict=False):
        assert trace.error == ""
        assert trace.tokens.tolist() == greedy_alone(target, prompt, 14)


def test_equals_the_reference_with_the_same_numbers(pair: Any) -> None:
    target, draft = pair
    requests = [
        request(i, p, max_tokens=20, **s)
        for i, (p, s) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True))
    ]
    for greedy_draft in (False, True):
        traces = run(target, draft, requests, k=4, greedy_draft=greedy_draft)
        for trace, r in zip(traces, requests, strict=True):
            u = uniforms(r, 30, run_seed=7, with_draft=True)
            wanted = decode_reference(
                target.model, draft.model, list(r.token_ids or ()), k=4, max_tokens=20,
                sampling=r.sampling, uniforms=u, greedy_draft=greedy_draft,
            )  # fmt: skip
            assert trace.tokens.tolist() == list(wanted.tokens)
            assert trace.accepted.tolist() == list(wanted.accepted)
            assert trace.proposed.tolist() == list(wanted.proposed)
        assert 0 < sum(t.accepted.sum() for t in traces) < sum(t.proposed.sum() for t in traces)


def test_tokens_do_not_depend_on_batch_or_order(pair: Any) -> None:
    target, draft = pair
    requests = [
        request(i, p, max_tokens=8 + i, **s)
        for i, (p, s) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True))
    ]
    wanted = {t.request_id: t.tokens.tolist() for t in run(target, draft, requests, n_rows=1)}
    for n_rows, order in ((2, requests), (7, requests[::-1]), (4, requests[3:] + requests[:3])):
        found = {t.request_id: t.tokens.tolist() for t in run(target, draft, order, n_rows=n_rows)}
        assert found == wanted


def test_a_pair_with_itself_accepts_everything() -> None:
    model = loaded(build(seed=4))
    for temperature in (0.0, 1.0):
        requests = [
            request(i, p, max_tokens=20, temperature=temperature) for i, p in enumerate(PROMPTS)
        ]
        for trace in run(model, model, requests, k=5):
            drafted = trace.round_state == RoundState.DRAFTED
            assert (trace.accepted[drafted] == trace.proposed[drafted]).all()
            np.testing.assert_allclose(trace.overlap, 1.0, atol=1e-4)


def test_counts_and_columns(pair: Any) -> None:
    requests = [request(i, p, max_tokens=15, temperature=0.8) for i, p in enumerate(PROMPTS)]
    for trace in run(*pair, requests, k=4):
        assert trace.completion_tokens == 15 == 1 + trace.emitted.sum()
        assert (trace.accepted <= trace.proposed).all()
        assert (trace.emitted == trace.accepted + 1).all()
        assert len(trace.overlap) == trace.proposed.sum()
        assert len(trace.margin) == 15
        assert (trace.margin >= 0).all() and (trace.overlap >= 0).all()
        assert (trace.overlap <= 1 + 1e-5).all()
        assert trace.ttft_ms > 0 and trace.latency_ms >= trace.ttft_ms


def test_target_only_arm(pair: Any) -> None:
    requests = [request(i, p) for i, p in enumerate(PROMPTS)]
    for trace, r in zip(run(pair[0], None, requests), requests, strict=True):
        assert (trace.round_state == RoundState.TARGET_ONLY).all()
        assert trace.proposed.sum() == 0 and (trace.emitted == 1).all()
        assert trace.tokens.tolist() == greedy_alone(pair[0].model, list(r.token_ids or ()), 12)


def test_the_arms_of_a_request_are_independent() -> None:
    r = request(0, [1, 2], temperature=1.0, seed=5)
    spec = uniforms(r, 8, run_seed=1, with_draft=True)
    assert not np.allclose(spec, uniforms(r, 8, run_seed=1, with_draft=False))
    np.testing.assert_array_equal(spec, uniforms(r, 20, run_seed=2, with_draft=True)[:8])


def test_eos_inside_a_round_cuts_it(pair: Any) -> None:
    target, _ = pair
    requests = [request(i, p, max_tokens=20) for i, p in enumerate(PROMPTS)]
    whole = run(target, target, requests, k=5)
    eos = int(whole[0].tokens[3])  # inside the first round of request 0
    for before, after in zip(
        whole, run(target, target, requests, k=5, eos=frozenset([eos])), strict=True
    ):
        tokens = before.tokens.tolist()
        wanted = tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
        assert after.tokens.tolist() == wanted
        assert after.finish == (Finish.EOS if eos in tokens else Finish.LENGTH)
        assert after.completion_tokens == 1 + after.emitted.sum()
    cut = run(target, target, requests[:1], k=5, eos=frozenset([eos]))[0]
    assert cut.accepted[0] == 5 and cut.emitted[0] == 3


def test_stop_strings_end_with_the_token_that_completes_them(pair: Any) -> None:
    target, draft = pair
    whole = run(target, draft, [request(0, PROMPTS[0], max_tokens=20)])[0].tokens.tolist()
    text = "".join(chr(97 + i % 26) for i in whole)
    stop = text[4:7]
    found = run(target, draft, [request(0, PROMPTS[0], max_tokens=20, stop=("??", stop))])[0]
    assert found.finish is Finish.STOP
    assert found.tokens.tolist() == whole[: text.index(stop) + 3]


def test_top_k_and_top_p_are_honoured(pair: Any) -> None:
    target, draft = pair
    for limits in ({"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.5}):
        requests = [
            request(i, p, max_tokens=25, temperature=1.5, **limits) for i, p in enumerate(PROMPTS)
        ]
        for trace, r in zip(run(target, draft, requests), requests, strict=True):
            text = [*(r.token_ids or ()), *trace.tokens.tolist()]
            with torch.inference_mode():
                logits = target.model(torch.tensor([text])).logits[0] / 1.5
            start = len(r.token_ids or ())
            probs = torch.softmax(logits[start - 1 : -1], -1)
            chosen = probs.gather(1, torch.from_numpy(trace.tokens.astype(np.int64))[:, None])
            better = (probs > chosen * (1 + 1e-4)).sum(-1)
            before = torch.where(probs > chosen * (1 + 1e-4), probs, 0.0).sum(-1)
            if "top_k" in limits:
                assert (better < 3).all()
            elif "top_p" in limits:
                assert (before < 0.4 + 1e-4).all()
            else:
                assert (chosen[:, 0] >= 0.5 * probs.amax(-1) * (1 - 1e-4)).all()


def test_first_tokens_follow_the_targets_law() -> None:
    """Chi-square over pairs of output tokens at temperature 1; false alarm 0.001 by choice of the
    bound, and the seed is fixed, so it cannot flicker. The draft has another law."""
    from scipy.stats import chi2

    vocab, n = 6, 1200
    target = build(seed=1, vocab_size=vocab, scale=2.0)
    draft = loaded(build(seed=9, vocab_size=vocab, scale=2.0), "draft")
    prompt = [1, 2, 3]
    requests = [request(i, prompt, max_tokens=3, temperature=1.0) for i in range(n)]
    traces = run(loaded(target), draft, requests, k=2, n_rows=250, max_model_len=16)
    counts = np.zeros((vocab, vocab))
    for trace in traces:
        counts[trace.tokens[1], trace.tokens[2]] += 1  # both come from the first draft round
    with torch.inference_mode():
        first = torch.softmax(target(torch.tensor([prompt])).logits[0, -1], -1)
        text = torch.tensor([[*prompt, a, b] for a in range(vocab) for b in range(vocab)])
        probs = torch.softmax(target(text).logits, -1).view(vocab, vocab, 5, vocab)
    law = torch.einsum("a,ab,abc->bc", first, probs[:, 0, 3], probs[:, :, 4]).numpy()
    statistic = ((counts - n * law) ** 2 / (n * law)).sum()
    assert statistic < chi2.ppf(0.999, vocab * vocab - 1)
    # The same statistic does see the draft's law: the test has power.
    assert sum(t.accepted.sum() for t in traces) < 0.9 * sum(t.proposed.sum() for t in traces)
