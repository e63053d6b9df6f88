"""The stage of an evaluation: real tiny models, from the slice to a verdict that names F3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from pairgate import __version__
from pairgate.app import lines
from pairgate.app.evaluate import evaluate, price
from pairgate.app.evidence import Evaluated
from pairgate.app.register import register
from pairgate.app.rejudge import judge_again
from pairgate.app.slices import import_slice
from pairgate.app.teacher_forcing import enough_tokens, first_tokens
from pairgate.app.workspace import Workspace
from pairgate.domain.evidence import LawTests
from pairgate.domain.pair import Method, VersionRef
from pairgate.domain.policy import FidelityRule, MemoryRule, Policy, ReplaySettings
from pairgate.domain.profile import ServingProfile
from pairgate.domain.release import Actor
from pairgate.domain.verdict import Outcome
from pairgate.engines.hardware import cpu_hardware_class
from tests.e2e.bench import make_bench
from tests.fidelity.test_law_tests import row_of_tokens

ALICE = Actor(name="alice", source="os-user")
RULE = FidelityRule(min_level="F3", min_tokens=500)
POLICY = Policy(
    name="f3",
    rules=(RULE,),
    replay=ReplaySettings(min_blocks=1, max_blocks=1, requests_per_block=16, warmup_requests=0),
)
PROFILE = ServingProfile(
    name="here",
    engine="native",
    engine_version=__version__,
    hardware_class=cpu_hardware_class(),
    concurrencies=(8,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A line whose policy asks for F3, and tiny models."""

    ws: Workspace
    models: Path

    def evaluated(self, draft: str | None) -> Evaluated:
        made = register(
            self.ws,
            "code",
            target=str(self.models / "target"),
            draft=None if draft is None else str(self.models / draft),
            method=Method.NONE if draft is None else None,
            k=None if draft is None else 3,
            actor=ALICE,
        )
        return evaluate(self.ws, VersionRef(line="code", selector=str(made.version.number)))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("stage")
    make_bench(root)
    ws = Workspace.open(home=str(root / "home"), create=True)
    lines.create(ws, "code")
    import_slice(ws, "held-out", [root / "slice.jsonl"])
    profile = lines.save_profile(ws, "code", PROFILE)
    lines.set_line(ws, "code", policy=POLICY, slice_name="held-out", profile=profile, actor=ALICE)
    yield Stage(ws=ws, models=root)
    ws.close()
    torch.set_num_threads(threads)


def _reason(done: Evaluated) -> str:
    return next(c.reason for c in done.verdict.checks if c.rule == "fidelity")


def _law(done: Evaluated) -> LawTests:
    fidelity = done.evaluation.measurements.fidelity
    assert fidelity is not None and fidelity.law is not None
    return fidelity.law


@pytest.mark.slow
def test_an_evaluation_reaches_f3_and_its_stored_traces_keep_it(stage: Stage) -> None:
    done = stage.evaluated("other")
    law = _law(done)
    assert law.level == "F3"
    assert law.n_requests == 120
    assert law.n_tokens > 500 and law.n_certain > 500
    assert law.n_violations == 0
    assert {s.name for s in law.scores} >= {"surprisal", "draft score", "white-box acceptance"}
    fidelity = done.evaluation.measurements.fidelity
    assert fidelity is not None and fidelity.control_law is not None
    assert fidelity.control_law.n_violations == 0
    assert done.verdict.outcome is Outcome.PASS, _reason(done)
    assert "fidelity F3" in _reason(done)

    ref = VersionRef(line="code", selector=str(done.evaluation.version))
    stages = {s.name: s.minutes for s in price(stage.ws, ref).stages}
    assert stages["fidelity F3, teacher-forced"] == pytest.approx(
        (law.wall_s + fidelity.control_law.wall_s) / 60.0
    )
    again = judge_again(stage.ws, ref, policy=replace(POLICY, rules=(*POLICY.rules, MemoryRule())))
    assert _law(again).scores == law.scores
    assert again.evaluation.attempt == 1  # of another policy
    assert "fidelity F3" in _reason(again)


def test_a_target_alone_is_tested_at_f2(stage: Stage) -> None:
    done = stage.evaluated(None)
    assert _law(done).level == "F2"
    assert _law(done).draft_score is None
    assert done.verdict.outcome is Outcome.PASS, _reason(done)


def test_an_early_pass_waits_for_the_tokens_that_f3_needs() -> None:
    short, long = (row_of_tokens(n) for n in (1_000, 20_000))
    assert not enough_tokens(POLICY, short)
    assert enough_tokens(POLICY, long)
    assert enough_tokens(replace(POLICY, rules=(FidelityRule(),)), short)


def test_as_many_rows_as_it_takes() -> None:
    batch = row_of_tokens(50, n_rows=10)
    assert len(first_tokens(batch, 120)) == 3
    assert len(first_tokens(batch, 10_000)) == 10
