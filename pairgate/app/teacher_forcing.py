"""The stage after the replay in which the models read what was written (fidelity F2 and F3).

It runs where a policy wants more than F1 and the engine is pairgate's own: the outputs of the
acceptance pass, and as a control those of the target alone, are scored once more in float32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pairgate.domain.pair import Method
from pairgate.domain.policy import FidelityRule, Policy
from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.fidelity import law_tests

if TYPE_CHECKING:
    from pairgate.domain.evidence import LawTests
    from pairgate.domain.recorded import Recorded
    from pairgate.domain.traffic import TrafficSlice
    from pairgate.ports import MaterialisedPair, Progress, Scorer

N_TOKENS = 20_000
"""Sampled tokens that are scored in each arm: where both means are certain to their tolerance."""
_METHODS = (Method.DRAFT_MODEL, Method.NONE)


def wanted_level(policy: Policy) -> str:
    """The fidelity level that a policy tries to reach, or F1 without such a rule."""
    rule = next((r for r in policy.rules if isinstance(r, FidelityRule)), FidelityRule())
    return rule.wanted


def enough_tokens(policy: Policy, acceptance: TraceBatch) -> bool:
    """Whether an acceptance pass may end here as far as fidelity is concerned: a policy that gates
    F2 or F3 needs the sampled tokens as well as the requests."""
    gates = any(isinstance(rule, FidelityRule) for rule in policy.gates)
    if not gates or wanted_level(policy) == "F1":
        return True
    sampled = acceptance.temperature > 0.0
    return int(acceptance.completion_tokens[sampled & acceptance.ok].sum()) >= N_TOKENS


def teacher_forced(
    recorded: Recorded,
    pair: MaterialisedPair,
    traffic: TrafficSlice,
    *,
    policy: Policy,
    alpha: float,
    progress: Progress | None = None,
) -> Recorded:
    """`recorded` with the law tests that the policy wants, or as it is where none is possible.

    `alpha` is the error of each bound of the means. The models are loaded in float32.
    """
    level, method = wanted_level(policy), pair.pair.decoding.method
    if level == "F1" or recorded.engine.name != "native" or method not in _METHODS:
        return recorded
    try:
        found = _both_arms(recorded, pair, traffic, policy=policy, alpha=alpha, progress=progress)
    except RuntimeError as error:  # out of memory above all: float32 may take twice the room
        why = (str(error).splitlines() or [type(error).__name__])[0]
        note = f"fidelity was not tested at {level}: {why}"
        return replace(recorded, notes=(*recorded.notes, note))
    return replace(recorded, law=found[0], control_law=found[1] if len(found) > 1 else None)


def _both_arms(
    recorded: Recorded,
    pair: MaterialisedPair,
    traffic: TrafficSlice,
    *,
    policy: Policy,
    alpha: float,
    progress: Progress | None,
) -> list[LawTests]:
    """The acceptance pass, and where it ran with a draft the target alone."""
    from pairgate.engines.native.scoring import TeacherForcing

    level = wanted_level(policy)
    arms = [first_tokens(recorded.acceptance, N_TOKENS)]
    if recorded.acceptance.arm is not Arm.TARGET and (alone := _target_alone(recorded)):
        arms.append(first_tokens(alone, N_TOKENS))
    scorer = TeacherForcing.of_pair(
        pair,
        engine_dtype=recorded.engine.dtype,
        with_draft=level == "F3",
        device="cpu" if recorded.engine.device.startswith("cpu") else None,
    )
    found: list[LawTests] = []
    for batch, arm in zip(arms, ("as evaluated", "without draft"), strict=False):
        if progress is not None:
            progress(f"fidelity {level}", len(found), len(arms), arm)
        found.append(_tested(scorer, traffic, batch, alpha=alpha, seed=policy.seed))
    return found


def _tested(
    scorer: Scorer, traffic: TrafficSlice, batch: TraceBatch, *, alpha: float, seed: int
) -> LawTests:
    began = time.monotonic()
    requests = [traffic.requests[i] for i in batch.index.tolist()]
    scores = scorer.score(requests, batch)
    found = law_tests(scores, batch, level=scorer.level, alpha=alpha, seed=seed)
    return replace(found, wall_s=time.monotonic() - began)


def first_tokens(batch: TraceBatch, n_tokens: int) -> TraceBatch:
    """The first rows with `n_tokens` sampled tokens together, or all of them."""
    sampled = np.where(batch.ok & (batch.temperature > 0.0), batch.completion_tokens, 0)
    before = np.cumsum(sampled) - sampled
    return batch.where(before < n_tokens)


def _target_alone(recorded: Recorded) -> TraceBatch | None:
    """Every run of the target alone with numbers of its own: the speed blocks repeat a request with
    equal numbers at another concurrency, so the first of them counts."""
    speed = [b for b in recorded.speed if b.arm is Arm.TARGET]
    batches = [*_first_of_each(speed), *recorded.control]
    if not batches:
        return None
    return TraceBatch.concat([replace(b, phase=Phase.CONTROL) for b in batches])


def _first_of_each(batches: Sequence[TraceBatch]) -> list[TraceBatch]:
    if not batches:
        return []
    together = TraceBatch.concat(batches)
    first = np.zeros(len(together), np.bool_)
    first[np.unique(together.request_id, return_index=True)[1]] = True
    return [together.where(first)]
