"""Whole evaluations on the scripted engine: early ends, the carried-over draft, the price."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.commands import write_tiny_model
from pairgate.app import lines, release
from pairgate.app.compare import paired
from pairgate.app.evaluate import EvaluateOptions, evaluate, price
from pairgate.app.evidence import Evaluated
from pairgate.app.register import register
from pairgate.app.rejudge import judge_again
from pairgate.app.slice_plan import slice_plan
from pairgate.app.slices import import_slice
from pairgate.app.workspace import Workspace
from pairgate.domain.evidence import Estimate, Missing
from pairgate.domain.pair import VersionRef
from pairgate.domain.policy import (
    AcceptanceRule,
    MemoryRule,
    NonInferiorityRule,
    Policy,
    ReplaySettings,
    SpeedupRule,
)
from pairgate.domain.profile import ServingProfile
from pairgate.domain.release import Actor
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Outcome
from pairgate.engines.scripted import Script, ScriptedEngine
from pairgate.ports import EngineLimits, MaterialisedPair

LINE, ALICE = "code", Actor(name="alice", source="os-user")
PROFILE = ServingProfile(
    name="scripted",
    engine="scripted",
    engine_version="1.0.0",
    hardware_class="scripted",
    concurrencies=(1, 8),
)
POLICY = Policy(
    name="test",
    rules=(
        AcceptanceRule(threshold=0.6, advise_threshold=None),
        NonInferiorityRule(margin=0.1),
        SpeedupRule(),
        MemoryRule(),
    ),
    replay=ReplaySettings(min_blocks=3, max_blocks=3, requests_per_block=8),
)
N = 384


class PairEngine(ScriptedEngine):
    """Accepts by the pair that it runs: drafts fit the target that they were made for."""

    def __init__(self, rates: dict[tuple[str, str], float]) -> None:
        super().__init__()
        self.rates = rates
        self.n_starts = 0

    def start(self, pair: MaterialisedPair, limits: EngineLimits) -> None:
        self.n_starts += 1
        assert pair.pair.draft is not None
        of = (_weights(pair.pair.target.files), _weights(pair.pair.draft.files))
        self.script = replace(Script(), acceptance=self.rates[of])
        super().start(pair, limits)


def _weights(files) -> str:
    return next(f.sha256 for f in files if f.path == "model.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A line with a slice of 384 requests in two domains, and models named by their weights."""

    ws: Workspace
    models: Path
    engines: list[PairEngine]

    def add(self, target: str, draft: str) -> VersionRef:
        made = register(
            self.ws,
            LINE,
            target=str(self.models / target),
            draft=str(self.models / draft),
            k=4,
            actor=ALICE,
        )
        return VersionRef(line=LINE, selector=str(made.version.number))

    def digest(self, name: str) -> str:
        from pairgate.domain.canonical import sha256_digest

        return sha256_digest((self.models / name / "model.safetensors").read_bytes())

    def run(self, ref: VersionRef, **options) -> Evaluated:
        rates = {
            ("base", "draft-1"): 0.85,
            ("tuned", "draft-1"): 0.35,
            ("tuned", "draft-2"): 0.85,
            ("tuned", "draft-3"): 0.20,
        }
        engine = PairEngine(
            {(self.digest(t), self.digest(d)): rate for (t, d), rate in rates.items()}
        )
        self.engines.append(engine)
        return evaluate(
            self.ws, ref, engine_factory=lambda _: engine, options=EvaluateOptions(**options)
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # Half the time of an evaluation here; the report has tests of its own (tests/review).
    monkeypatch.setattr("pairgate.review.report.report_html", lambda *_, **__: "")
    ws = Workspace.open(home=str(tmp_path / "home"), create=True)
    models = tmp_path / "models"
    for i, name in enumerate(("base", "tuned", "draft-1", "draft-2", "draft-3")):
        write_tiny_model(models / name, fill=float(i))
    rows = [
        {
            "id": f"r{n}",
            "domain": "ab"[n % 2],
            "body": {"prompt": f"request {n}", "max_tokens": 24 + n % 8, "temperature": 0.9},
        }
        for n in range(N)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines.create(ws, LINE)
    import_slice(ws, "held-out", [log])
    profile = lines.save_profile(ws, LINE, PROFILE)
    lines.set_line(ws, LINE, policy=POLICY, slice_name="held-out", profile=profile, actor=ALICE)
    return Bench(ws=ws, models=models, engines=[])


def _document(done: Evaluated) -> dict:
    return json.loads((done.folder / "verdict.json").read_text())


def test_early_pass_new_target_and_carried_over_draft(bench: Bench) -> None:
    first = bench.add("base", "draft-1")
    passed = bench.run(first)
    assert passed.verdict.outcome is Outcome.PASS, passed.verdict.blocking
    stop = passed.evaluation.measurements.early_stop
    assert stop is not None and 100 <= stop.n_requests < N
    saved = _document(passed)["saved"]
    assert saved["requests"] == N - stop.n_requests
    assert saved["hours"] == pytest.approx(saved["requests"] * stop.request_s / 3600)
    assert "the acceptance rules had certainly passed" in passed.verdict.early_stop
    assert passed.verdict.comparison == ""
    release.promote(bench.ws, first, actor=ALICE)

    # The new target with the old draft: it is the carried-over pair, and it fails at once.
    second = bench.run(bench.add("tuned", "draft-1"))
    assert second.verdict.outcome is Outcome.FAIL
    assert "this version is the carried-over draft" in second.verdict.comparison
    left_out = second.evaluation.measurements.early_stop
    assert left_out is not None
    assert left_out.left_out == ("speed at 1", "speed at 8", "control", "memory")
    assert second.verdict.recommendation.startswith("ship without a draft")
    assert bench.engines[-1].n_starts == 2  # two for the length; nothing else was booted

    # The repaired draft: the acceptance of the old one is known, only its speed is measured.
    third = bench.run(bench.add("tuned", "draft-2"))
    assert third.verdict.outcome is Outcome.PASS, third.verdict.blocking
    found = third.evaluation.measurements
    assert found.carry_over is not None
    assert (found.carry_over.kind, found.carry_over.name) == ("stored", "code@2")
    carried = found.find("acceptance_length.pooled", arm=Arm.CARRY_OVER)
    new = found.find("acceptance_length.pooled")
    assert isinstance(carried, Estimate) and isinstance(new, Estimate)
    assert third.verdict.comparison.startswith(
        f"tokens per round: none 1.00, carried over {carried.value:.2f}, new {new.value:.2f}; "
        "speedup at 1: 1.00, "
    )
    gain = found.find("carry_over_gain")
    assert isinstance(gain, Estimate) and gain.low > 0.3
    assert _document(third)["comparison"] == third.verdict.comparison
    assert third.verdict.recommendation.startswith("ship it")

    # Judging the stored traces again says the same, at the level of a second attempt.
    again = judge_again(bench.ws, VersionRef(line=LINE, selector="3"))
    assert again.evaluation.alpha == third.evaluation.alpha / 2
    named = again.verdict.comparison.partition("; token acceptance")[0]
    assert third.verdict.comparison.startswith(named)
    assert again.verdict.early_stop == third.verdict.early_stop

    both = paired(
        bench.ws, VersionRef(line=LINE, selector="2"), VersionRef(line=LINE, selector="3")
    )
    overall = both.differences[0].value
    assert isinstance(overall, Estimate) and overall.low > 0.3
    assert [str(m.scope) for m in both.differences] == ["overall", "domain a", "domain b"]


def test_a_failing_new_draft_is_compared_with_the_old_one(bench: Bench) -> None:
    bench.run(first := bench.add("base", "draft-1"))
    release.promote(bench.ws, first, actor=ALICE)
    failed = bench.run(bench.add("tuned", "draft-3"))
    assert failed.verdict.outcome is Outcome.FAIL
    assert failed.evaluation.measurements.carry_over.kind == "measured"  # type: ignore[union-attr]
    assert "carried over 1.5" in failed.verdict.comparison
    everything = bench.run(VersionRef(line=LINE, selector="2"), goes_on_anyway=True)
    assert everything.verdict.outcome is Outcome.FAIL
    assert everything.evaluation.measurements.early_stop is None
    assert isinstance(everything.evaluation.measurements.find("token_acceptance.pooled"), Estimate)


def test_production_is_part_of_the_looks_once_its_traces_are_stored(bench: Bench) -> None:
    first = bench.add("base", "draft-1")
    bench.run(first)
    release.promote(bench.ws, first, actor=ALICE)
    # The same pair under other settings is another version with the same target.
    made = register(
        bench.ws,
        LINE,
        target=str(bench.models / "base"),
        draft=str(bench.models / "draft-1"),
        k=3,
        actor=ALICE,
    )
    done = bench.run(VersionRef(line=LINE, selector=str(made.version.number)))
    assert done.verdict.outcome is Outcome.PASS, done.verdict.blocking
    assert done.evaluation.measurements.early_stop is not None
    difference = done.evaluation.measurements.find("non_inferiority")
    assert isinstance(difference, Estimate) and difference.method == "betting"


def test_a_budget_gives_an_undecided_verdict(bench: Bench) -> None:
    ref = bench.add("base", "draft-1")
    done = bench.run(ref, budget_s=1e-6)
    assert done.verdict.outcome is Outcome.INCONCLUSIVE
    assert "the budget of" in done.verdict.early_stop
    replay = next(
        c for c in done.verdict.checks if c.rule == "replay" and c.outcome is not Outcome.PASS
    )
    assert "not run: speed at" in replay.reason


def test_the_price_is_known_after_the_first_evaluation(bench: Bench) -> None:
    ref = bench.add("base", "draft-1")
    before = price(bench.ws, ref)
    assert before.minutes is None
    assert "unknown" in before.source
    assert [s.name for s in before.stages] == [
        "acceptance at 8",
        "speed at 1",
        "speed at 8",
        "control",
    ]
    done = bench.run(ref)
    after = price(bench.ws, ref)
    assert after.minutes is not None and after.device_hours == pytest.approx(after.minutes / 60)
    counts = done.evaluation.measurements.counts
    spec = next(c for c in counts if c.phase == "acceptance")
    assert after.stages[0].minutes == pytest.approx(spec.wall_s / spec.n_requests * N / 60)


def test_sizes_of_a_slice_from_a_pilot(bench: Bench) -> None:
    ref = bench.add("base", "draft-1")
    bench.run(ref)
    plan = slice_plan(bench.ws, str(ref))
    assert [d.domain for d in plan.domains] == ["a", "b"]
    assert all(d.n is not None and d.n >= 30 for d in plan.domains)
    assert plan.hours == pytest.approx(plan.n_requests * plan.request_s / 3600)  # type: ignore[operator]
    close = replace(POLICY, rules=(replace(POLICY.rules[0], threshold=0.8),))  # type: ignore[arg-type]
    nearer = slice_plan(bench.ws, str(ref), close)
    assert nearer.n_requests is None or nearer.n_requests > plan.n_requests  # type: ignore[operator]


def test_break_even_is_known_before_the_acceptance_pass(bench: Bench) -> None:
    rules = (AcceptanceRule(advise_threshold=None), *POLICY.rules[1:])
    lines.set_line(bench.ws, LINE, policy=replace(POLICY, rules=rules), actor=ALICE)
    done = bench.run(bench.add("base", "draft-1"))
    assert done.verdict.outcome is Outcome.PASS, done.verdict.blocking
    stop = done.evaluation.measurements.early_stop
    assert stop is not None and stop.n_requests < N
    assert not isinstance(done.evaluation.measurements.find("break_even"), Estimate)
    scopes = done.evaluation.measurements.scopes("break_even", "concurrency")
    assert len(scopes) == 2
    assert not any(
        isinstance(done.evaluation.measurements.find("break_even", s), Missing) for s in scopes
    )


@pytest.mark.parametrize(
    ("hardware_class", "n"), [("x86_64-avx512", 1), ("aarch64", 1), ("nvidia-h200x4", 4)]
)
def test_devices_are_counted_by_the_hardware_class(hardware_class: str, n: int) -> None:
    from pairgate.app.price import _n_devices

    assert _n_devices(hardware_class) == n
