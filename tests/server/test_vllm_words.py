"""vLLM's own words, as recorded from 0.32 with a real draft pair (`recorded/`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from traffic import a_pair, a_profile, a_request

from pairgate.domain.pair import Method
from pairgate.domain.trace import Finish, RoundState
from pairgate.engines.server.client import _Stream
from pairgate.engines.server.dialect import Contradiction, StepCounts, Uncounted
from pairgate.engines.server.rounds import trace_of
from pairgate.engines.server.vllm import VllmDialect, _total, speculative_config
from pairgate.engines.server.wire import Reply, Usage
from pairgate.errors import InvalidEvaluation, Refused
from pairgate.ports import EngineLimits

RECORDED = Path(__file__).with_name("recorded")
DIALECT = VllmDialect()


def events(name: str) -> Iterator[bytes]:
    for line in (RECORDED / f"{name}.sse").read_bytes().splitlines():
        if line.startswith(b"data:"):
            yield line[5:].strip()


def reply(name: str) -> Reply:
    stream = _Stream(begin=0.0)
    for i, event in enumerate(events(name), start=1):
        stream.event(event, i / 100)
    return stream.reply(200, 1.0)


def test_the_last_step_overruns_max_tokens() -> None:
    found = reply("overrun")
    counts = DIALECT.step_counts(found, version="0.32.0")
    assert isinstance(counts, StepCounts)
    trace = trace_of(0, a_request(0, max_tokens=20), found, counts, max_model_len=512)
    assert trace.ok and trace.finish is Finish.LENGTH
    assert trace.completion_tokens == 20 == 1 + trace.emitted.sum()
    assert (trace.proposed == 4).all()
    # The steps yield more than was wanted: the last one was cut, and keeps what it accepted.
    overrun = int((trace.accepted + 1).sum()) - int(trace.emitted.sum())
    assert 0 < overrun <= trace.accepted[-1]
    assert (trace.accepted[:-1] + 1 == trace.emitted[:-1]).all()


def test_a_step_without_a_draft_is_a_state_of_its_own() -> None:
    found = reply("undrafted_step")
    counts = DIALECT.step_counts(found, version="0.32.0")
    trace = trace_of(0, a_request(0, max_tokens=12), found, counts, max_model_len=512)
    assert trace.ok
    assert (trace.round_state == RoundState.SKIPPED).sum() == 1
    assert trace.round_state[-1] == RoundState.SKIPPED
    assert trace.proposed[-4:].tolist() == [3, 2, 1, 0], "the draft gets shorter at the end"
    assert 1 + trace.emitted.sum() == trace.completion_tokens == 12


def test_one_token_has_no_steps() -> None:
    found = reply("one_token")
    counts = DIALECT.step_counts(found, version="0.32.0")
    trace = trace_of(0, a_request(0, max_tokens=1), found, counts, max_model_len=512)
    assert trace.ok and trace.completion_tokens == 1 and len(trace.emitted) == 0


def test_eos_ends_a_request_before_max_tokens() -> None:
    found = reply("eos")
    counts = DIALECT.step_counts(found, version="0.32.0")
    trace = trace_of(0, a_request(0, max_tokens=20), found, counts, max_model_len=512)
    assert trace.finish is Finish.EOS
    assert 1 + trace.emitted.sum() == trace.completion_tokens < 20


def test_a_stop_string_takes_the_counts_away() -> None:
    found = reply("stop_string")
    counts = DIALECT.step_counts(found, version="0.32.0")
    assert isinstance(counts, Uncounted)
    trace = trace_of(0, a_request(0, max_tokens=40), found, counts, max_model_len=512)
    assert trace.finish is Finish.STOP
    assert (trace.round_state == RoundState.UNCOUNTED).all()
    assert 1 + trace.emitted.sum() == trace.completion_tokens == len(trace.tokens)


def test_sums_that_contradict_the_steps_exclude_the_request() -> None:
    found = reply("overrun")
    final = json.loads(found.final)
    final["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] += 1
    counts = DIALECT.step_counts(
        Reply(final=json.dumps(final), finish_reason="length"), version="0.32.0"
    )
    assert isinstance(counts, Contradiction)
    trace = trace_of(0, a_request(0, max_tokens=20), found, counts, max_model_len=512)
    assert trace.finish is Finish.EXCLUDED and "num_accepted_draft_tokens" in trace.error


@pytest.mark.parametrize(("asked", "words"), [(30, "20 of 30 tokens"), (10, "20 tokens where 10")])
def test_another_number_of_tokens_than_asked_is_excluded(asked: int, words: str) -> None:
    found = reply("overrun")
    counts = DIALECT.step_counts(found, version="0.32.0")
    trace = trace_of(0, a_request(0, max_tokens=asked), found, counts, max_model_len=512)
    assert trace.finish is Finish.EXCLUDED and words in trace.error


def test_rounds_that_arrive_together_share_their_time() -> None:
    counts = StepCounts(drafted=np.full(3, 2, np.int16), accepted=np.array([1, 0, 2], np.int16))
    joined = Reply(
        finish_reason="length",
        usage=Usage(prompt_tokens=3, completion_tokens=7),
        token_ids=tuple(range(7)),
        chunk_tokens=(1, 3, 3),
        chunk_ms=(10.0, 30.0, 35.0),
    )
    trace = trace_of(0, a_request(0, max_tokens=7), joined, counts, max_model_len=512)
    assert trace.emitted.tolist() == [2, 1, 3]
    assert trace.round_ms.tolist() == [10.0, 10.0, 5.0]


@pytest.mark.parametrize(("prompt", "cached"), [(1, 0), (257, 256), (1, None)])
def test_a_prefill_of_one_token_is_no_draft_step(prompt: int, cached: int | None) -> None:
    """As vLLM 0.32 answered a prompt of one token beside another request."""
    counts = StepCounts(
        drafted=np.full(6, 4, np.int16), accepted=np.array([0, 0, 1, 1, 0, 1], np.int16)
    )
    answer = Reply(
        finish_reason="length",
        usage=Usage(prompt_tokens=prompt, completion_tokens=8, cached_tokens=cached),
        token_ids=(82, 460, 332, 87, 7, 332, 87, 7),
        chunk_tokens=(1, 1, 2, 2, 1, 1),
        chunk_ms=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    )
    trace = trace_of(0, a_request(0, max_tokens=8), answer, counts, max_model_len=512)
    assert trace.ok, trace.error
    assert trace.accepted.tolist() == [0, 1, 1, 0, 1]
    assert trace.emitted.tolist() == [1, 2, 2, 1, 1]


def test_counters_are_read_from_the_exposition() -> None:
    text = (RECORDED / "metrics.txt").read_text()
    assert _total(text, "vllm:spec_decode_num_draft_tokens_total") > 0
    assert _total(text, "vllm:request_success_total") == 5  # over all reasons
    assert _total(text, "vllm:no_such_total") is None


LIMITS = EngineLimits(max_model_len=512, max_concurrency=8, seed=1)


def command(with_draft: bool, *arguments: str, **decoding: object) -> list[str]:
    profile = a_profile(*arguments)
    words = DIALECT.command(
        ("vllm",), a_pair(**decoding), profile, LIMITS, port=8000, with_draft=with_draft
    )
    return list(words)


def test_the_target_alone_gets_no_flag_that_it_refuses() -> None:
    alone, pair = command(False), command(True)
    assert "--per-request-spec-decode-metrics" in pair
    assert not {"--per-request-spec-decode-metrics", "--speculative-config"} & set(alone)
    assert alone[alone.index("--dtype") + 1] == "float32", "on a CPU"


def test_the_profile_keeps_its_arguments_but_not_what_pairgate_sets() -> None:
    words = command(
        False, "--enforce-eager", "--port", "1", "--max-model-len=9", "--dtype", "bfloat16"
    )
    assert "--enforce-eager" in words
    assert words.count("--port") == 1 and words[words.index("--port") + 1] == "8000"
    assert "--max-model-len=9" not in words
    assert words.count("--dtype") == 1 and words[words.index("--dtype") + 1] == "bfloat16"


def test_how_the_draft_samples_is_said_and_lossy_acceptance_refused() -> None:
    sampled = json.loads(speculative_config(a_pair()))
    greedy = json.loads(speculative_config(a_pair(draft_sampling="greedy")))
    assert sampled["draft_sample_method"] == "probabilistic"
    assert greedy["draft_sample_method"] == "greedy"
    assert (sampled["model"], sampled["num_speculative_tokens"]) == ("draft", 4)
    lossy = json.dumps({"method": "draft_model", "rejection_sample_method": "synthetic"})
    with pytest.raises(Refused, match="synthetic"):
        speculative_config(a_pair(speculative_config=lossy))


def test_ngram_passes_through_without_a_model() -> None:
    own = json.dumps({"method": "ngram", "prompt_lookup_max": 4})
    pair = a_pair(method=Method.NGRAM, num_speculative_tokens=3, speculative_config=own)
    assert json.loads(speculative_config(pair)) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
    }


@pytest.mark.parametrize("event", [b'{"choices": [1]}', b"[1]", b'{"choices": [], "usage": 7}'])
def test_json_of_another_shape_is_garbage_and_not_a_crash(event: bytes) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        _Stream(begin=0.0).event(event, 0.1)


@pytest.mark.parametrize("metrics", [None, [], {}, {"speculative_decoding": 3}])
def test_counts_of_another_shape_are_named(metrics: object) -> None:
    final = json.dumps({"metrics": metrics})
    with pytest.raises(InvalidEvaluation, match=r"0\.32\.0 sends no metrics"):
        DIALECT.step_counts(Reply(final=final, finish_reason="length"), version="0.32.0")
