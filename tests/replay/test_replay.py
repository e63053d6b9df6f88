"""The order, the blocks, the resuming and the passes of a replay, on the scripted engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pairgate.domain.pair import Architecture, DecodingConfig, FileEntry, Method, ModelRef, Pair
from pairgate.domain.policy import FallbackSettings
from pairgate.domain.recorded import Recorded, ReplayPlan
from pairgate.domain.trace import Arm, Finish, Phase, RequestTrace, RoundState, TraceBatch
from pairgate.domain.traffic import Request, Sampling, TrafficSlice
from pairgate.engines.scripted import Script, ScriptedEngine
from pairgate.ports import GenerateOptions, MaterialisedPair
from pairgate.replay import replay, replay_acceptance, replay_carry_over, submission_order
from pairgate.replay.order import submission_blocks

K = 4


def make_pair(method: Method = Method.DRAFT_MODEL) -> MaterialisedPair:
    architecture = Architecture(
        model_type="llama", class_name="LlamaForCausalLM", n_parameters=1, vocab_size=96,
        max_position_embeddings=4096, hidden_size=8, n_layers=1, n_heads=1, n_kv_heads=1,
        head_dim=8, dtype="float32",
    )  # fmt: skip
    files = (FileEntry(path="config.json", size=1, sha256="sha256:" + "0" * 64),)
    has_draft = method is Method.DRAFT_MODEL
    target = ModelRef(role="target", files=files, architecture=architecture)
    pair = Pair(
        target=target,
        draft=replace(target, role="draft") if has_draft else None,
        decoding=DecodingConfig(method=method, num_speculative_tokens=K if has_draft else 0),
    )
    return MaterialisedPair(
        pair=pair, target_dir=Path("target"), draft_dir=Path("draft") if has_draft else None
    )


def make_slice(n: int = 40, *, greedy_share: int = 2) -> TrafficSlice:
    return TrafficSlice(
        name="tests",
        requests=tuple(
            Request(
                id=f"r{i}",
                domain="sql" if i % 4 == 0 else "code",
                session=f"s{i // 3}" if i % 2 else None,
                body="{}",
                max_tokens=20 + i % 7,
                sampling=Sampling(temperature=0.0 if i % greedy_share else 0.9, seed=i),
                text="x" * (20 + i),
            )
            for i in range(n)
        ),
    )


class DictSink:
    """Keeps blocks in memory; `broken_at` makes one save fail, as a killed job would."""

    def __init__(self) -> None:
        self.blocks: dict[str, TraceBatch] = {}
        self.broken_at: str | None = None

    def load(self, key: str) -> TraceBatch | None:
        return self.blocks.get(key)

    def save(self, key: str, batch: TraceBatch) -> None:
        if key == self.broken_at:
            raise KeyboardInterrupt
        assert key not in self.blocks
        self.blocks[key] = batch


def make_plan(**changes: Any) -> ReplayPlan:
    return ReplayPlan(
        **(
            {
                "seed": 5,
                "acceptance_concurrency": 8,
                "speed_concurrencies": (1, 8),
                "acceptance_block": 16,
                "min_blocks": 2,
                "max_blocks": 5,
            }
            | changes
        )
    )


def run(sink: DictSink | None = None, script: Script | None = None, **options: Any) -> Recorded:
    plan = options.pop("plan", None) or make_plan()
    pair = options.pop("pair", None) or make_pair()
    traffic = options.pop("traffic", None) or make_slice()
    engine = options.pop("engine", None) or ScriptedEngine(script)
    return replay(engine, pair, traffic, plan, sink or DictSink(), **options)


def test_every_request_is_accepted_once_with_fallback_off() -> None:
    recorded = run(script=Script(acceptance=0.1))
    batch = recorded.acceptance
    assert batch.arm is Arm.SPEC and batch.phase is Phase.ACCEPTANCE
    assert sorted(batch.index) == list(range(40))
    assert set(batch.round_state) <= {RoundState.DRAFTED, RoundState.SKIPPED}
    assert (batch.fell_back_at == -1).all()


def test_sessions_keep_their_order_and_the_seed_decides() -> None:
    requests = make_slice(200).requests
    order = submission_order(requests, 1)
    assert sorted(order) == list(range(200))
    assert order == submission_order(requests, 1) != submission_order(requests, 2)
    assert order != tuple(range(200))
    for session in {r.session for r in requests if r.session}:
        found = [i for i in order if requests[i].session == session]
        assert found == sorted(found)


def test_speed_blocks_are_abba_on_the_same_requests_with_fallback_acting() -> None:
    sink = DictSink()
    recorded = run(
        sink, Script(acceptance=0.1), plan=make_plan(fallback=FallbackSettings(minimum=8))
    )
    for concurrency, size in ((1, 4), (8, 16)):
        here = [b for b in recorded.speed if b.concurrency == concurrency]
        assert [(b.block, b.arm) for b in here] == [
            (0, Arm.TARGET), (0, Arm.SPEC), (1, Arm.SPEC), (1, Arm.TARGET)
        ]  # fmt: skip
        for a, b in ((here[0], here[1]), (here[2], here[3])):
            np.testing.assert_array_equal(a.index, b.index)
            assert len(a) == size == len(set(a.index))
        assert not set(here[0].index) & set(here[2].index)  # without replacement
        spec = [b for b in here if b.arm is Arm.SPEC]
        assert any((b.round_state == RoundState.FALLEN_BACK).any() for b in spec)
        assert all(b.wall_s > 0 for b in here)


def test_scripted_speedup_comes_out_of_the_walls() -> None:
    recorded = run(script=Script(acceptance=0.8, row_cost=0.0))
    for concurrency in (1, 8):
        walls = {
            arm: sum(
                b.wall_s for b in recorded.speed if b.arm is arm and b.concurrency == concurrency
            )
            for arm in (Arm.SPEC, Arm.TARGET)
        }
        assert 1.3 < walls[Arm.TARGET] / walls[Arm.SPEC] < 3.0


def test_small_slices_are_shuffled_again_and_no_block_repeats_a_request() -> None:
    recorded = run(traffic=make_slice(10), plan=make_plan(min_blocks=4, requests_per_block=7))
    for batch in recorded.speed:
        assert len(set(batch.index)) == 7


def test_more_blocks_is_asked_at_every_look_up_to_the_maximum() -> None:
    asked: list[tuple[int, int]] = []

    def more(concurrency: int, batches: tuple[TraceBatch, ...]) -> bool:
        asked.append((concurrency, len(batches)))
        return concurrency == 8

    recorded = run(more_blocks=more)
    assert sorted(asked) == [(1, 4), (8, 4), (8, 8)]
    assert sum(b.concurrency == 8 for b in recorded.speed) == 10  # five blocks of two arms
    assert sum(b.concurrency == 1 for b in recorded.speed) == 4


def test_stop_sees_the_contiguous_prefix_of_the_submission_order() -> None:
    traffic = make_slice(40)
    seen: list[set[int]] = []

    def stop(batch: TraceBatch) -> bool:
        seen.append(set(batch.index.tolist()))
        return len(seen) == 2

    recorded = run(traffic=traffic, stop=stop)
    order = submission_order(traffic.requests, 5, block=16)
    n = len(recorded.acceptance)
    assert seen == [set(order[: len(seen[0])]), set(order[:n])]
    assert recorded.acceptance.index.tolist() == list(order[:n])  # rows in that order
    stop = recorded.early_stop
    assert stop is not None and (stop.n_requests, stop.n_saved) == (n, 40 - n)
    assert stop.request_s == pytest.approx(recorded.acceptance.wall_s / n)


def test_a_prefix_of_blocks_holds_whole_sessions() -> None:
    """Otherwise a look would see more first turns than the traffic has."""
    requests = make_slice(60).requests
    blocks = submission_blocks(requests, 5, block=10)
    seen: set[str] = set()
    for block in blocks:
        sessions = {requests[i].session for i in block} - {None}
        assert not sessions & seen
        seen |= sessions
        for session in sessions:
            turns = [i for i in block if requests[i].session == session]
            assert turns == sorted(turns)
    assert sorted(i for block in blocks for i in block) == list(range(60))


def test_goes_on_can_end_after_the_acceptance_pass() -> None:
    recorded = run(goes_on=lambda batch, speed: False)
    assert recorded.speed == () == recorded.control == recorded.memory
    stop = recorded.early_stop
    assert stop is not None
    assert stop.left_out == ("speed at 1", "speed at 8", "control", "memory")


def test_a_fail_at_one_concurrency_ends_the_others() -> None:
    recorded = run(goes_on=lambda batch, speed: not speed)
    assert len({b.concurrency for b in recorded.speed}) == 1
    assert recorded.control == ()


def test_the_screen_runs_before_and_is_not_run_again() -> None:
    seen: list[int] = []
    sink = DictSink()
    recorded = run(
        sink,
        plan=make_plan(screen=(8,)),
        screened=lambda boundary, speed: seen.append(len(speed)),
        more_blocks=lambda c, blocks: False,
    )
    assert seen == [4]  # two blocks in both arms
    assert list(sink.blocks).index("speed-c8-000-target") < list(sink.blocks).index(
        "acceptance-spec-c8-00000"
    )
    assert {b.concurrency for b in recorded.speed} == {1, 8}


def test_a_budget_ends_at_a_block_and_says_what_is_missing() -> None:
    whole = run()
    budget = whole.acceptance.wall_s * 0.5
    recorded = run(plan=make_plan(budget_s=budget))
    stop = recorded.early_stop
    assert stop is not None and stop.undecided
    assert 0 < stop.n_requests < 40
    assert "control" in stop.left_out and "memory at 8" in stop.left_out
    assert stop.why.startswith("the budget of")


def test_the_carried_over_pair_runs_its_own_blocks_beside_the_target() -> None:
    acceptance, speed = replay_carry_over(
        ScriptedEngine(), make_pair(), make_slice(), make_plan(), DictSink(),
        n_requests=16, concurrencies=(8,),
    )  # fmt: skip
    assert acceptance.arm is Arm.CARRY_OVER and 16 <= len(acceptance) < 40
    assert [b.arm for b in speed] == [Arm.TARGET, Arm.CARRY_OVER, Arm.CARRY_OVER, Arm.TARGET]


def test_control_is_the_target_twice_on_the_same_requests_with_other_keys() -> None:
    recorded = run(traffic=make_slice(greedy_share=3))
    first, second = recorded.control
    assert {b.arm for b in recorded.control} == {Arm.TARGET}
    assert (first.block, second.block) == (0, 1)
    np.testing.assert_array_equal(first.index, second.index)
    greedy = first.temperature == 0
    same = [
        a.tokens.tolist() == b.tokens.tolist()
        for a, b in zip(first.rows(), second.rows(), strict=True)
    ]
    assert 0 < greedy.sum() < len(greedy)
    assert same == greedy.tolist()


def test_a_killed_replay_resumes_at_the_last_whole_block() -> None:
    whole = run()
    sink = DictSink()
    sink.broken_at = "speed-c8-001-spec"
    with pytest.raises(KeyboardInterrupt):
        run(sink)
    before = dict(sink.blocks)
    assert "acceptance-spec-c8-00002" in before
    sink.broken_at = None
    engine = ScriptedEngine()
    resumed = run(sink, engine=engine)
    assert all(sink.blocks[key] is block for key, block in before.items())
    np.testing.assert_array_equal(resumed.acceptance.tokens, whole.acceptance.tokens)
    np.testing.assert_array_equal(resumed.acceptance.accepted, whole.acceptance.accepted)
    assert [b.index.tolist() for b in resumed.speed] == [b.index.tolist() for b in whole.speed]
    n_stored = sum(len(b) for b in before.values())
    assert engine.n_generated < sum(len(b) for b in sink.blocks.values()) - n_stored + 20
    engine = ScriptedEngine()
    run(sink, engine=engine)
    assert engine.n_generated == 0


def test_failed_requests_are_data() -> None:
    recorded = run(script=Script(failures=frozenset({"r3", "r7"})))
    failed = recorded.acceptance.finish == Finish.ERROR
    assert sorted(recorded.acceptance.request_id[failed]) == ["r3", "r7"]
    assert "NaN" in str(recorded.acceptance.error[failed][0])


def test_boundary_requests_and_memory() -> None:
    recorded = run()
    names = {b.name for b in recorded.boundary}
    assert names >= {f"prompt of max - {d}" for d in (0, 1, K, K + 1)}
    assert {"empty prompt", "prompt of one token", "one token of output"} <= names
    assert {b.arm for b in recorded.boundary} == {Arm.SPEC, Arm.TARGET}
    assert all(b.ok for b in recorded.boundary)
    assert {(m.concurrency, m.arm) for m in recorded.memory} == {
        (c, a) for c in (1, 8) for a in (Arm.SPEC, Arm.TARGET)
    }
    assert recorded.max_model_len == 15 + 26 + K + 1


def test_a_boundary_request_that_breaks_is_not_ok() -> None:
    recorded = run(script=Script(failures=frozenset({f"prompt of max - {K}"})))
    broken = [b for b in recorded.boundary if not b.ok]
    assert {b.name for b in broken} == {f"prompt of max - {K}"}


def test_a_pair_without_a_draft_runs_the_target_arm_only() -> None:
    recorded = run(pair=make_pair(Method.NONE))
    assert recorded.acceptance.arm is Arm.TARGET
    assert {b.arm for b in recorded.speed} == {Arm.TARGET}
    assert not recorded.acceptance.proposed.any()


def test_break_even_floor_does_not_act_and_says_so() -> None:
    plan = make_plan(fallback=FallbackSettings(floor="break-even"))
    recorded = run(script=Script(acceptance=0.05), plan=plan)
    assert "break-even" in recorded.notes[0]
    assert not any((b.round_state == RoundState.FALLEN_BACK).any() for b in recorded.speed)


def test_another_pair_runs_on_the_same_requests() -> None:
    batch = replay_acceptance(
        ScriptedEngine(), make_pair(), make_slice(), make_plan(), DictSink(), arm=Arm.INCUMBENT,
        n_requests=20,
    )  # fmt: skip
    assert batch.arm is Arm.INCUMBENT
    assert set(batch.index) == set(
        submission_order(make_slice().requests, 5, block=16)[: len(batch)]
    )


def test_progress_tells_the_acceptance_so_far() -> None:
    lines: list[tuple[str, int, int, str]] = []
    run(script=Script(acceptance=1.0), progress=lambda *line: lines.append(line))
    acceptance = [line for line in lines if line[0].startswith("acceptance")]
    assert acceptance[-1] == ("acceptance, with draft", 40, 40, "accepted 1.000 [1.000, 1.000]")
    for stage in {line[0] for line in lines}:
        done = [line[1] for line in lines if line[0] == stage]
        assert done == sorted(done), f"{stage} went back"
    speed = [line for line in lines if line[0].startswith("speed at ")]
    assert all(line[1] == line[2] for line in [speed[-1]]), "the last block ends the stage"


def test_an_engine_that_loses_a_request_is_an_invalid_evaluation() -> None:
    from pairgate.errors import InvalidEvaluation

    class Lossy(ScriptedEngine):
        def generate(
            self, requests: Iterable[tuple[int, Request]], options: GenerateOptions
        ) -> Iterator[RequestTrace]:
            return (t for t in super().generate(requests, options) if t.request_id != "r1")

    with pytest.raises(InvalidEvaluation, match="the engine answered"):
        run(engine=Lossy())
