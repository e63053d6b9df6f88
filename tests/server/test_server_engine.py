"""The engine against a fake that answers as vLLM does: counts, order, counters, faults."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from fake_vllm import FakeVllm, Running
from traffic import a_request, attached, generate

from pairgate.domain.trace import Arm, Finish, Phase, RoundState, TraceBatch
from pairgate.errors import InvalidEvaluation, Refused, Unavailable
from pairgate.measure.counts import consistent

REQUESTS = [a_request(i, max_tokens=5 + i % 9) for i in range(24)]


@pytest.fixture
def target() -> Iterator[Running]:
    with Running(FakeVllm()) as running:
        yield running


def _spec(**settings: object) -> Running:
    return Running(FakeVllm(k=4, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("joins_chunks", [False, True])
def test_every_request_is_counted_and_adds_up(target: Running, joins_chunks: bool) -> None:
    with _spec(joins_chunks=joins_chunks) as spec:
        engine = attached(spec, target)
        drafted = generate(engine, REQUESTS)
        plain = generate(engine, REQUESTS, with_draft=False)
    counters = spec.server.counters
    assert sum(int(t.proposed.sum()) for t in drafted) == counters["draft_tokens"]
    assert sum(int(t.accepted.sum()) for t in drafted) == counters["accepted"] > 0
    for traces, arm in ((drafted, Arm.SPEC), (plain, Arm.TARGET)):
        batch = TraceBatch.from_rows(
            traces,
            arm=arm,
            phase=Phase.SPEED,
            concurrency=4,
            block=0,
            wall_s=1.0,
            definition="vllm.per_request.v1",
        )
        assert batch.ok.all()
        assert consistent(batch).all()
        assert np.isfinite(batch.round_ms).all()
        assert (batch.latency_ms >= batch.ttft_ms).all() and (batch.ttft_ms > 0).all()
        assert batch.completion_tokens.tolist() == [r.max_tokens for r in REQUESTS]
        assert (batch.cached_tokens == 0).all()
    assert all((t.round_state == RoundState.TARGET_ONLY).all() for t in plain)
    assert [t.tokens.tolist() for t in drafted] == [t.tokens.tolist() for t in plain]


def test_the_body_goes_out_as_it_was_but_for_what_replay_names(target: Running) -> None:
    with _spec() as spec:
        request = a_request(1, logit_bias={"5": 2}, user="u1")
        generate(attached(spec, target), [request, a_request(2)])
    sent = {b["prompt"]: b for b in spec.server.bodies}
    body = sent["request 1"]
    assert (body["logit_bias"], body["user"]) == ({"5": 2}, "u1")
    assert body["stream_options"] == {"include_usage": True}
    assert body["cache_salt"] == sent["request 2"]["cache_salt"], "one salt for one block"
    assert "seed" not in body


def test_each_block_has_a_salt_of_its_own(target: Running) -> None:
    with _spec() as spec:
        engine = attached(spec, target)
        generate(engine, REQUESTS[:2])
        generate(engine, REQUESTS[:2])
    assert len({b["cache_salt"] for b in spec.server.bodies}) == 2


def test_a_session_runs_in_order(target: Running) -> None:
    turns = [a_request(i, session="s" if i % 2 else None) for i in range(10)]
    with _spec(step_s=0.003) as spec:
        generate(attached(spec, target), turns, concurrency=8)
    sent = [b["prompt"] for b in spec.server.bodies]
    odd = [p for p in sent if int(p.split()[1]) % 2]
    assert odd == [f"request {i}" for i in (1, 3, 5, 7, 9)]


def test_ignore_eos_is_no_evidence(target: Running) -> None:
    with _spec() as spec:
        traces = generate(attached(spec, target), [a_request(0, ignore_eos=True), a_request(1)])
    assert [t.finish for t in traces] == [Finish.EXCLUDED, Finish.LENGTH]
    assert "ignore_eos" in traces[0].error
    assert spec.server.n_requests == 1


def test_a_prompt_that_is_too_long_is_an_error_of_that_request(target: Running) -> None:
    with _spec() as spec:
        traces = generate(attached(spec, target), [a_request(0, prompt="x" * 2100), a_request(1)])
    assert [t.finish for t in traces] == [Finish.ERROR, Finish.LENGTH]
    assert "HTTP 400" in traces[0].error


@pytest.mark.parametrize(
    ("fault", "finish", "words"),
    [
        ("429", Finish.ERROR, "HTTP 429: "),
        ("500", Finish.ERROR, "HTTP 500: "),
        ("garbage", Finish.ERROR, "garbage after"),
        ("truncated", Finish.ERROR, "the connection broke after"),
        ("hang", Finish.ERROR, "no progress for 0.3 s after"),
        ("too many", Finish.EXCLUDED, "accepted"),
        ("lost steps", Finish.EXCLUDED, "the counts do not add up"),
    ],
)
def test_one_bad_answer_costs_one_request(
    target: Running, fault: str, finish: Finish, words: str
) -> None:
    with _spec(fault=lambda n: fault if n == 5 else "") as spec:
        engine = attached(spec, target)
        traces = generate(engine, REQUESTS, watchdog_s=0.3)
    bad = [t for t in traces if not t.ok]
    assert [t.finish for t in bad] == [finish]
    assert words in bad[0].error
    assert sum(t.ok for t in traces) == len(REQUESTS) - 1


def test_changed_field_names_stop_with_version_and_field(target: Running) -> None:
    with (
        _spec(version="0.32.9", fault=lambda n: "renamed" if n == 3 else "") as spec,
        pytest.raises(InvalidEvaluation, match=r"vLLM 0\.32\.9 sends no .*per_step_drafted"),
    ):
        generate(attached(spec, target), REQUESTS)


def test_another_version_than_the_profile_names_is_refused_at_once(target: Running) -> None:
    with (
        _spec(version="0.33.0") as spec,
        pytest.raises(Refused, match=r"is vllm 0\.33\.0, the profile vllm names 0\.32\.0"),
    ):
        generate(attached(spec, target), REQUESTS)
    assert spec.server.n_requests == 0


def test_a_server_without_per_request_counts_is_told_the_flag(target: Running) -> None:
    with (
        _spec(fault=lambda n: "no counts") as spec,
        pytest.raises(InvalidEvaluation, match=r"metrics\.speculative_decoding") as caught,
    ):
        generate(attached(spec, target), REQUESTS)
    assert "--per-request-spec-decode-metrics detailed" in str(caught.value.hint)


def test_other_traffic_is_noticed(target: Running) -> None:
    with _spec() as spec:
        server = spec.server
        server.fault = lambda n: (
            server.counters.update(finished=server.counters["finished"] + n // 9) or ""
        )
        with pytest.raises(InvalidEvaluation, match="other traffic reached"):
            generate(attached(spec, target), REQUESTS)


def test_a_hanging_server_is_not_waited_for_request_by_request(target: Running) -> None:
    with (
        _spec(fault=lambda n: "hang") as spec,
        pytest.raises(Unavailable, match="hangs: 4 requests one after the other"),
    ):
        generate(attached(spec, target), REQUESTS, watchdog_s=0.2)


def test_a_server_that_is_gone_ends_the_block(target: Running) -> None:
    with _spec() as spec:
        engine = attached(spec, target)
        generate(engine, REQUESTS[:2])
    with pytest.raises(Unavailable, match="does not answer"):
        generate(engine, REQUESTS)


def test_a_server_that_takes_less_than_the_slice_needs_is_refused(target: Running) -> None:
    with (
        _spec(max_model_len=100) as spec,
        pytest.raises(Refused, match="takes 100 tokens, the slice needs 512"),
    ):
        generate(attached(spec, target), REQUESTS)


def test_leaving_early_leaves_nothing_in_flight(target: Running) -> None:
    from traffic import a_pair

    from pairgate.ports import EngineLimits, GenerateOptions

    with _spec(step_s=0.2) as spec:
        engine = attached(spec, target)
        engine._limits = EngineLimits(max_model_len=512, max_concurrency=2, seed=1)
        engine._pair = a_pair()
        options = GenerateOptions(with_draft=True, concurrency=2, seed=1)
        running = engine.generate(enumerate(REQUESTS), options)
        next(running)
        running.close()
        assert spec.server.n_requests <= 4
