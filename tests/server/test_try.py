"""`pairgate try` on two fakes: with counts per request, without them, and by arrival times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_vllm import FakeVllm, Running

from pairgate.app.trial import TrialOptions, try_servers
from pairgate.cli import cli
from pairgate.domain.evidence import Estimate
from pairgate.domain.policy import Rate
from pairgate.errors import InvalidEvaluation


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    lines = [
        {
            "id": f"r{i}",
            "arrival_s": i * 0.001,
            "body": {"prompt": f"say {i}", "max_tokens": 8 + i % 9, "temperature": 0},
        }
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_table_of_two_servers(log: Path) -> None:
    with (
        Running(FakeVllm(k=4, acceptance=0.8, step_s=0.003)) as spec,
        Running(FakeVllm(step_s=0.006)) as target,
    ):
        found = try_servers(
            log, TrialOptions(endpoint=spec.url, baseline=target.url, concurrencies=(1, 4))
        )
        words = f"try --endpoint {spec.url} --baseline {target.url}/v1 --concurrency 2".split()
        shown = CliRunner().invoke(cli, [*words, "--requests", str(log)])
    assert found.rate is Rate.TOKEN_ACCEPTANCE
    assert isinstance(found.acceptance, Estimate)
    assert found.acceptance.low < 0.8 < found.acceptance.high
    assert sum(found.histogram) == pytest.approx(1.0)
    assert [row.load for row in found.rows] == [1, 4]
    for row in found.rows:
        assert isinstance(row.speedup, Estimate) and row.speedup.value > 1.0
        assert row.with_draft.ttft_p50 > 0
    assert shown.exit_code == 0, shown.output
    assert "at concurrency 2" in shown.stdout and "without draft" in shown.stdout
    assert "not evidence" in shown.stderr


def test_without_counts_per_request_the_counters_are_differenced(log: Path) -> None:
    with Running(FakeVllm(k=4, fault=lambda n: "no counts")) as spec:
        options = TrialOptions(endpoint=spec.url, concurrencies=(4,), n_requests=20)
        found = try_servers(log, options)
    assert found.rate is Rate.ACCEPTANCE_RATE
    assert isinstance(found.acceptance, Estimate) and found.acceptance.n == 20
    assert isinstance(found.acceptance_length, Estimate)
    assert 1.0 < found.acceptance_length.value <= 5.0
    assert found.histogram == ()
    assert found.rows[0].without_draft is None


def test_counters_that_others_move_are_refused(log: Path) -> None:
    server = FakeVllm(k=4)

    def somebody_else(n: int) -> str:
        if n == 9:
            server.counters["finished"] += 1
        return "no counts"

    server.fault = somebody_else
    with Running(server) as spec, pytest.raises(InvalidEvaluation, match="other traffic"):
        try_servers(log, TrialOptions(endpoint=spec.url, concurrencies=(1,)))


def test_by_arrival_times_the_queue_is_in_the_ttft(log: Path) -> None:
    """Forty requests in 40 ms at a server with two slots: those at the end wait for all others."""
    with Running(FakeVllm(k=4, slots=2, step_s=0.004)) as spec:
        found = try_servers(
            log, TrialOptions(endpoint=spec.url, concurrencies=(1,), arrival_scale=1.0)
        )
    alone, open_loop = found.rows
    assert open_loop.load == 0
    assert open_loop.with_draft.ttft_p95 > 10 * alone.with_draft.ttft_p95
    assert open_loop.with_draft.n_requests == 40
