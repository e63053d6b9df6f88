"""The pair that ships with the checkout, on every greedy request of its slice, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pairgate.app.register import materialise, register
from pairgate.app.slices import create_slice, load_slice
from pairgate.app.workspace import Workspace
from pairgate.domain.trace import RequestTrace, RoundState
from pairgate.domain.traffic import Request
from pairgate.engines.native import NativeEngine
from pairgate.ports import EngineLimits, GenerateOptions

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "pipelines" / "demo_pair"
CONCURRENCY = 8


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    opened = Workspace.open(home=str(tmp_path_factory.mktemp("demo-pair")), create=True)
    opened.registry.create_line("demo", "2026-01-01T00:00:00.000000Z")
    create_slice(opened, "base", [DEMO / "slices" / "base.jsonl"])
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def greedy(ws: Workspace) -> list[Request]:
    return [r for r in load_slice(ws, "base").requests if r.sampling.greedy]


def _run(
    ws: Workspace, draft: str, requests: list[Request], arms: tuple[bool, ...]
) -> list[list[RequestTrace]]:
    """The traces of each arm, in the order of the requests; True is with the draft."""
    models = DEMO / "models"
    made = register(ws, "demo", target=str(models / "target-base"), draft=str(models / draft), k=4)
    engine = NativeEngine(device="cpu")
    try:
        with materialise(ws, made.pair) as pair:
            engine.start(pair, EngineLimits(max_model_len=512, max_concurrency=8, seed=1))
            runs = []
            for with_draft in arms:
                options = GenerateOptions(with_draft=with_draft, concurrency=CONCURRENCY, seed=1)
                traces = engine.generate(enumerate(requests), options)
                runs.append(sorted(traces, key=lambda t: t.index))
            return runs
    finally:
        engine.close()


def test_greedy_output_is_the_targets_own_on_every_request(
    ws: Workspace, greedy: list[Request]
) -> None:
    assert len(greedy) >= 180
    drafted, alone = _run(ws, "draft-base", greedy, (True, False))
    assert all(t.ok for t in drafted + alone)
    different = [
        t.request_id
        for t, u in zip(drafted, alone, strict=True)
        if not np.array_equal(t.tokens, u.tokens)
    ]
    assert different == []


def test_a_pair_with_itself_accepts_everything(ws: Workspace, greedy: list[Request]) -> None:
    (traces,) = _run(ws, "target-base", greedy[:48], (True,))
    rounds = [t.round_state == RoundState.DRAFTED for t in traces]
    proposed = np.concatenate([t.proposed[r] for t, r in zip(traces, rounds, strict=True)])
    accepted = np.concatenate([t.accepted[r] for t, r in zip(traces, rounds, strict=True)])
    assert proposed.sum() > 500
    assert (accepted == proposed).all()
