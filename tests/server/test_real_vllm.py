"""The real vLLM (CPU build, in an environment of its own) with the demo pair of the checkout.

Servers are started once: about a minute each. What is checked: per-request counts against the
server's counters and against conservation, equal greedy output of both arms at several
concurrencies, the whole gate through the command line, and that nothing is left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pairgate.cli import cli
from pairgate.domain.pair import DecodingConfig, Method, ModelRef, Pair
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, RoundState, TraceBatch
from pairgate.domain.traffic import Request
from pairgate.engines.server import ServerEngine, Started
from pairgate.engines.server.places import launch_with
from pairgate.engines.server.vllm import VllmDialect
from pairgate.measure.counts import consistent
from pairgate.ports import EngineLimits, GenerateOptions, MaterialisedPair

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "pipelines" / "demo_pair"
PYTHON = Path(os.environ.get("PAIRGATE_TEST_VLLM_PYTHON") or ROOT / ".vllm" / "bin" / "python")
LIMITS = EngineLimits(max_model_len=448, max_concurrency=8, seed=7, watchdog_s=120.0)


@pytest.fixture(scope="module")
def pair() -> MaterialisedPair:
    from traffic import a_pair

    small = a_pair().pair
    target = replace(small.target.architecture, n_parameters=6_000_000, vocab_size=2048)
    return MaterialisedPair(
        pair=Pair(
            target=ModelRef(role="target", files=small.target.files, architecture=target),
            draft=small.draft,
            decoding=DecodingConfig(
                method=Method.DRAFT_MODEL, num_speculative_tokens=4, draft_sampling="greedy"
            ),
        ),
        target_dir=DEMO / "models" / "target-base",
        draft_dir=DEMO / "models" / "draft-base",
    )


@pytest.fixture(scope="module")
def engine(pair: MaterialisedPair) -> Iterator[ServerEngine]:
    from traffic import a_profile

    dialect = VllmDialect()
    profile = a_profile("--enforce-eager", "--no-async-scheduling")
    launch = launch_with(dialect, python=PYTHON, command=None)
    found = ServerEngine(dialect, Started(dialect, profile, launch), profile)
    try:
        found.start(pair, LIMITS)
        yield found
    finally:
        found.close()


def requests(n: int) -> list[Request]:
    from pairgate.traffic.importing import ReadOptions, read_logs
    from pairgate.traffic.report import Tally

    source = str(DEMO / "slices" / "base.jsonl")
    found = [f.request for f in read_logs([source], ReadOptions(), Tally())]
    fitting = [r for r in found if len(r.text or "") < 600 and r.max_tokens <= 96]
    # vLLM 0.32's CPU build samples wrongly with a draft (docs/serving.md), so greedy ones only.
    return [r for r in fitting if r.sampling.greedy][:n]


def run(
    engine: ServerEngine, asked: list[Request], *, with_draft: bool, concurrency: int
) -> list[RequestTrace]:
    options = GenerateOptions(with_draft=with_draft, concurrency=concurrency, seed=7)
    # `generate` itself raises when the server's counters do not agree with the requests' sums.
    traces = engine.generate(enumerate(asked), options)
    return sorted(traces, key=lambda t: t.index)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_counts_add_up_and_greedy_output_is_the_targets(
    engine: ServerEngine, concurrency: int
) -> None:
    asked = requests(6 if concurrency == 1 else 24)
    drafted = run(engine, asked, with_draft=True, concurrency=concurrency)
    plain = run(engine, asked, with_draft=False, concurrency=concurrency)
    batch = TraceBatch.from_rows(
        drafted,
        arm=Arm.SPEC,
        phase=Phase.SPEED,
        concurrency=concurrency,
        block=0,
        wall_s=1.0,
        definition="vllm.per_request.v1",
    )
    assert batch.ok.all(), batch.error
    assert consistent(batch).all()
    assert (batch.round_state == RoundState.DRAFTED).mean() > 0.9
    assert 0.2 < batch.accepted.sum() / batch.proposed.sum() < 0.95
    assert np.isfinite(batch.round_ms).all()
    for one, other in zip(drafted, plain, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist(), one.request_id


def test_the_edges_of_the_length(engine: ServerEngine) -> None:
    lengths = (447, 446, 444, 443, 448)
    asked = [
        replace(requests(1)[0], id=f"edge-{n}", token_ids=(5,) * n, text=None, max_tokens=8)
        for n in lengths
    ]
    traces = run(engine, asked, with_draft=True, concurrency=2)
    assert [t.completion_tokens for t in traces] == [1, 2, 4, 5, 0]
    assert traces[-1].finish is Finish.ERROR and "HTTP 400" in traces[-1].error


def test_a_stop_string_leaves_the_request_uncounted(engine: ServerEngine) -> None:
    asked = [replace(r, stop=("e",)) for r in requests(6)]
    traces = run(engine, asked, with_draft=True, concurrency=2)
    stopped = [t for t in traces if t.finish is Finish.STOP]
    assert stopped and all(t.ok for t in traces)
    for trace in stopped:
        assert (trace.round_state == RoundState.UNCOUNTED).all()


def test_what_it_says_of_itself_and_what_it_holds(engine: ServerEngine) -> None:
    info = engine.describe()
    assert info.name == "vllm" and info.version.startswith("0.32")
    resolved = json.loads(info.resolved)
    assert "num_spec_tokens=4" in resolved["config.with_draft"]
    use = engine.stress(2, with_draft=True)
    assert use.peak_bytes > 2**28 and use.worst_case_reached  # type: ignore[union-attr]


def test_try_on_the_running_servers(engine: ServerEngine, tmp_path: Path) -> None:
    urls = [engine._places.endpoint(with_draft=with_draft).url for with_draft in (True, False)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"id": "{r.id}", "body": {r.body}}}\n' for r in requests(16)))
    words = f"try --endpoint {urls[0]} --baseline {urls[1]} --concurrency 1,4 --json".split()
    shown = CliRunner().invoke(cli, [*words, "--requests", str(log)])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["rate"] == "token_acceptance"
    assert 0.3 < found["acceptance"]["value"] < 1.0
    assert [row["load"] for row in found["rows"]] == [1, 4]


def test_the_gate_through_the_command_line(tmp_path: Path) -> None:
    """On the pair itself: attached servers would need a second start, so pairgate starts them."""
    home = tmp_path / "home"
    (tmp_path / "slice.jsonl").write_text(
        "".join(
            json.dumps({"id": r.id, "domain": "all", "session": None, "body": json.loads(r.body)})
            + "\n"
            for r in requests(110)
        )
    )
    (tmp_path / "policy.toml").write_text(
        'name = "small"\n[rules.acceptance]\nmode = "gate"\nrate = "token_acceptance"\n'
        'threshold = 0.3\n[rules.fidelity]\nmode = "gate"\nmin_tokens = 100\n'
        '[rules.memory]\nmode = "gate"\n[rules.cache]\nmode = "advise"\n'
        "[replay]\nmin_blocks = 3\nmax_blocks = 3\nrequests_per_block = 4\n"
    )

    def pairgate(*words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PAIRGATE_HOME": str(home), "PAIRGATE_MLFLOW": "off"}
        environ |= {"PAIRGATE_DELIVERY": "off", "PAIRGATE_ENGINE_PYTHON": str(PYTHON)}
        return subprocess.run(
            [sys.executable, "-m", "pairgate", *words],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    made = pairgate(
        "init", "line", "--policy", str(tmp_path / "policy.toml"), "--concurrency", "4",
        "--slice", str(tmp_path / "slice.jsonl"),
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    models = [str(DEMO / "models" / name) for name in ("target-base", "draft-base")]
    done = pairgate(
        "register", "line", "--target", models[0], "--draft", models[1], "-k", "4",
        "--draft-sampling", "greedy",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    gated = pairgate("gate", "line@1", "--engine", "vllm", "--json")
    document = json.loads(gated.stdout)
    outcomes = {c["rule"]: c["outcome"] for c in document["checks"]}
    assert outcomes["fidelity"] == "PASS", gated.stdout
    assert outcomes["memory"] == "PASS"
    assert outcomes["replay"] == "PASS"
    assert gated.returncode in (0, 11), gated.stderr
    assert "vllm-cpu@1" in gated.stderr
