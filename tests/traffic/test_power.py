"""The spread over requests is read from traces, and decides how many requests are needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pairgate.app.slice_checks import slice_size
from pairgate.app.workspace import Workspace
from pairgate.domain.records import SliceRow
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, RoundState, TraceBatch
from pairgate.store.traces import ParquetTraces
from pairgate.traffic.power import decidable_distance, needed_requests, spreads


def trace(index: int, domain: str, accepted: list[int], **changes: Any) -> RequestTrace:
    n = len(accepted)
    fields: dict[str, Any] = {
        "index": index,
        "request_id": f"r{index}",
        "domain": domain,
        "temperature": 0.0,
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "ttft_ms": 1.0,
        "latency_ms": 2.0,
        "finish": Finish.LENGTH,
        "proposed": np.full(n, 4, np.int16),
        "accepted": np.array(accepted, np.int16),
        "emitted": np.ones(n, np.int16),
        "round_state": np.full(n, RoundState.DRAFTED, np.uint8),
        "round_ms": np.ones(n, np.float32),
    }
    return RequestTrace(**(fields | changes))


def block(rows: list[RequestTrace], phase: Phase = Phase.ACCEPTANCE) -> TraceBatch:
    return TraceBatch.from_rows(
        rows, arm=Arm.SPEC, phase=phase, concurrency=1, block=0, wall_s=1.0, definition="d"
    )


ROWS = [
    trace(0, "a", [4, 4]),  # 8 of 8 tested
    trace(1, "a", [1, 4]),  # 5 of 6: the rejected token was tested too
    trace(2, "a", [0, 0]),  # 0 of 2
    trace(3, "a", [4], finish=Finish.ERROR),
    trace(4, "a", [4], round_state=np.array([RoundState.FALLEN_BACK], np.uint8)),
    trace(5, "b", [4]),
    trace(6, "b", []),
]


def test_spread_counts_tested_tokens_of_whole_requests() -> None:
    (a,) = spreads(block(ROWS))  # b has one request with a tested token: no spread
    assert (a.domain, a.n) == ("a", 3)
    assert a.sd == pytest.approx(np.std([1, 5 / 6, 0], ddof=1))


def test_needed_requests_and_decidable_distance_are_inverse() -> None:
    for needed in needed_requests((0.1, 0.05, 0.02), sd=0.25):
        assert decidable_distance(needed.n, sd=0.25) <= needed.distance
        assert decidable_distance(needed.n - 1, sd=0.25) > needed.distance
    assert needed_requests([0.5], sd=0.1)[0].n == 30  # fewer are never judged


def test_size_takes_the_spread_of_the_newest_evidence(tmp_path: Path) -> None:
    sink = ParquetTraces(tmp_path / "new" / "traces")
    sink.save("acceptance", block(ROWS))
    sink.save("speed", block([trace(0, "a", [4]), trace(1, "a", [0])], Phase.SPEED))
    row = SliceRow(
        digest="sha256:s",
        name="s",
        n_requests=7,
        domains=(("a", 5), ("b", 2)),
        texts_digest="",
        created_at="",
    )
    evidence = [
        SimpleNamespace(slice_digest="sha256:s", created_at="2", folder=str(tmp_path / "new")),
        SimpleNamespace(slice_digest="sha256:s", created_at="1", folder=str(tmp_path / "old")),
        SimpleNamespace(slice_digest="other", created_at="3", folder=str(tmp_path / "other")),
    ]
    registry = SimpleNamespace(
        slice_=lambda _: row,
        lines=lambda: [SimpleNamespace(line="l")],
        evaluations=lambda _: evidence,
    )
    workspace = SimpleNamespace(registry=registry, evaluation_folder=Path)
    found = slice_size(cast("Workspace", workspace), "s")
    assert "newest evidence" in found.assumption
    assert found.sd == pytest.approx(np.std([1, 5 / 6, 0], ddof=1))
    assert [(d.domain, d.n, d.sd) for d in found.domains] == [
        ("a", 5, found.sd),
        ("b", 2, found.sd),
    ]
