"""`diagnose` names the one cause, on servers that answer (the fake of tests/server)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from click.testing import Result
from fake_vllm import Answer, FakeVllm, Running
from replica import Replica

Run = Callable[..., Result]


@dataclass(kw_only=True)
class OtherTarget(FakeVllm):
    """Writes other tokens for the same prompts."""

    def _answer(self, body: dict[str, Any], ids: list[int]) -> Answer:
        found = super()._answer(body, ids)
        return replace(found, chunks=[[t % 250 + 1 for t in c] for c in found.chunks])


@dataclass(kw_only=True)
class LowTraffic(FakeVllm):
    """Counters that say what production's own traffic did."""

    def live(self, n_drafts: int, rate: float) -> None:
        accepted = round(4 * n_drafts * rate)
        added = (n_drafts // 10, n_drafts + accepted, n_drafts, 4 * n_drafts, accepted)
        for name, n in zip(self.counters, added, strict=True):
            self.counters[name] += n


def asked(run: Run, url: str, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        run("diagnose", "line", "--metrics", url, "--json", *words).stdout
    )
    return found


@pytest.fixture
def good(names: list[str]) -> dict[str, Any]:
    """Arguments of a server of production that is what the evidence saw."""
    return {"k": 4, "acceptance": 0.8, "max_model_len": 1024, "model": names[1]}


def test_speculation_is_off(run: Run, names: list[str]) -> None:
    with Running(FakeVllm(model=names[1])) as server:
        found = asked(run, server.url)
    assert "without a speculative config" in found["cause"]["answer"]
    assert "pairgate render line@production" in found["cause"]["command"]
    assert len(found["findings"]) == 1, "it stops at the first cause"


def test_no_server_answers(run: Run) -> None:
    assert "no server answers" in asked(run, "http://127.0.0.1:1")["cause"]["answer"]


def test_another_pair_is_served(run: Run, good: dict[str, Any]) -> None:
    with Running(FakeVllm(**good | {"model": f"line@sha256-{'0' * 64}"})) as server:
        found = asked(run, server.url)
    assert "production is line@1" in found["cause"]["answer"]


def test_another_draft_length_or_engine_version(run: Run, names: list[str]) -> None:
    with Replica(names=names, version="0.33.1") as a:
        found = asked(run, a.url)
        assert "0.33.1" in found["cause"]["answer"] and "0.32.0" in found["cause"]["answer"]
        a.version = "0.32.4"
        text = a.totals.text
        a.totals.text = lambda: text().replace('position="3"', 'position="9"} 0\n' + PER5)  # type: ignore[method-assign]
        assert "5 tokens per step" in asked(run, a.url)["cause"]["answer"]


PER5 = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="3"'


def test_all_is_well(run: Run, good: dict[str, Any]) -> None:
    with Running(FakeVllm(**good)) as server:
        found = asked(run, server.url)
        assert found["cause"] is None
        text = run("diagnose", "line", "--metrics", server.url).stdout
    answers = {f["question"]: f for f in found["findings"]}
    assert answers["did the output change?"]["answer"].startswith("0 of 50")
    assert answers["draft or traffic?"]["outcome"] == "ok"
    assert "on the same requests" in answers["draft or traffic?"]["answer"]
    assert text.rstrip().endswith("no cause found")


def test_the_draft_is_worse_on_the_same_requests(run: Run, good: dict[str, Any]) -> None:
    with Running(FakeVllm(**good | {"acceptance": 0.3})) as server:
        found = asked(run, server.url)
        text = run("diagnose", "line", "--metrics", server.url).stdout
    assert found["cause"]["answer"].startswith("the draft:")
    assert found["cause"]["command"].startswith("pairgate disable line")
    assert "do:    pairgate disable line" in text


def test_the_target_is_another_one(run: Run, good: dict[str, Any]) -> None:
    with Running(OtherTarget(**good)) as server:
        found = asked(run, server.url)
    assert "50 of 50 greedy answers differ" in found["cause"]["answer"]
    assert "pairgate rollback line" in found["cause"]["command"]


def test_the_traffic_moved(run: Run, good: dict[str, Any]) -> None:
    server = LowTraffic(**good)
    with Running(server) as running:
        where = ("watch", "line", "--metrics", running.url, "--once")
        server.live(100, 0.5)
        run(*where)
        for _ in range(40):
            server.live(300, 0.2)
            shown = run_until(run, *where)
            if shown:
                break
        assert shown
        found = json.loads(run("diagnose", "line", "--json").stdout)
        questions = [f["question"] for f in found["findings"]]
        assert "pairgate slice create" in found["cause"]["command"]
        since = found["findings"][questions.index("since when?")]["answer"]
    assert since.startswith("degraded at ") and "well at" in since


def run_until(run: Run, *words: str) -> bool:
    from click.testing import CliRunner

    from pairgate.cli import cli

    code = CliRunner().invoke(cli, list(words)).exit_code
    assert code in (0, 10)
    return code == 10


def test_without_counts_per_request_other_traffic_makes_it_unknown(
    run: Run, good: dict[str, Any]
) -> None:
    @dataclass(kw_only=True)
    class Busy(FakeVllm):
        async def _stream(self, *words: Any) -> Any:
            self.counters["finished"] += 1  # somebody else's
            return await super()._stream(*words)

        def _final(self, answer: Answer, ids: list[int], fault: str) -> dict[str, Any]:
            return {k: v for k, v in super()._final(answer, ids, fault).items() if k != "metrics"}

    with Running(Busy(**good)) as server:
        found = asked(run, server.url)
    answers = {f["question"]: f for f in found["findings"]}
    assert "other traffic" in answers["draft or traffic?"]["answer"]
    assert found["cause"] is None
