"""What an evaluation would run, and how long it took the last time: for `evaluate --dry-run`.

Times are those of the newest stored evaluation of the line on the same profile: seconds per request
by arm, pass and concurrency. Where there is none, minutes are unknown and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairgate.app.teacher_forcing import wanted_level
from pairgate.domain.evidence import Counts, Fidelity
from pairgate.domain.pair import Method
from pairgate.domain.trace import Arm, Phase

if TYPE_CHECKING:
    from pairgate.app.evidence import Candidate
    from pairgate.app.workspace import Workspace
    from pairgate.domain.recorded import ReplayPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the replay. `n_most` requests at most run in `minutes` (None: unknown)."""

    name: str
    n_least: int
    n_most: int
    minutes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """All stages, with `n_boots` starts of the engine on `n_devices` accelerators.

    `minutes` is the sum over the stages at their longest, None where one is unknown; `source` says
    what the times come from.
    """

    stages: tuple[Stage, ...]
    n_boots: int
    n_devices: int
    source: str

    @property
    def minutes(self) -> float | None:
        known = [s.minutes for s in self.stages if s.minutes is not None]
        return sum(known) if len(known) == len(self.stages) else None

    @property
    def device_hours(self) -> float | None:
        return None if self.minutes is None else self.minutes / 60.0 * self.n_devices


class _Seconds:
    """Seconds per request by arm, pass and concurrency, from stored counters."""

    def __init__(self, counts: Iterable[Counts], fidelity_s: float | None = None) -> None:
        self.fidelity_s = fidelity_s
        self._known = {
            (c.arm, c.phase, c.concurrency): c.wall_s / c.n_requests for c in counts if c.n_requests
        }

    def minutes(self, arm: Arm, phase: Phase, concurrency: int, n: int) -> float | None:
        one = self._known.get((arm, str(phase), concurrency))
        return None if one is None else one * n / 60.0


def price_of(ws: Workspace, candidate: Candidate, plan: ReplayPlan, n_requests: int) -> Price:
    """The price of evaluating a version, before anything runs."""
    rows = [
        row
        for row in ws.registry.evaluations(candidate.version.line)
        if row.profile_digest == candidate.setting.head.profile_digest and row.outcome != "ERROR"
    ]
    counts: list[Counts] = []
    fidelity_s: float | None = None
    for row in rows:  # the newest of each kind wins
        measured = ws.registry.evaluation(row.digest).evaluation.measurements
        counts += measured.counts
        fidelity_s = _teacher_forcing_s(measured.fidelity) or fidelity_s
    stages = tuple(_stages(candidate, plan, n_requests, _Seconds(counts, fidelity_s)))
    others = sum(s.name.startswith(("production", "carried over")) for s in stages)
    return Price(
        stages=stages,
        n_boots=1 + others,
        n_devices=_n_devices(candidate.setting.profile.hardware_class),
        source=f"from {len(rows)} stored evaluation{'s' * (len(rows) > 1)} of "
        f"{candidate.version.line} on this profile"
        if rows
        else "no stored evaluation of this line on this profile, so times are unknown",
    )


def _stages(candidate: Candidate, plan: ReplayPlan, n: int, seconds: _Seconds) -> Iterator[Stage]:
    has_draft = candidate.pair.decoding.method is not Method.NONE
    early = candidate.setting.policy.replay.early_stopping
    c, block = plan.acceptance_concurrency, min(n, plan.acceptance_block)
    arm = Arm.SPEC if has_draft else Arm.TARGET
    yield Stage(
        name=f"acceptance at {c}",
        n_least=block if early else n,
        n_most=n,
        minutes=seconds.minutes(arm, Phase.ACCEPTANCE, c, n),
    )
    arms = (Arm.SPEC, Arm.TARGET) if has_draft else (Arm.TARGET,)
    for concurrency in plan.speed_concurrencies:
        size = min(plan.block_size(concurrency), n)
        most = plan.max_blocks * size
        parts = [seconds.minutes(a, Phase.SPEED, concurrency, most) for a in arms]
        known = [p for p in parts if p is not None]
        yield Stage(
            name=f"speed at {concurrency}",
            n_least=plan.min_blocks * size * len(arms),
            n_most=most * len(arms),
            minutes=sum(known) if len(known) == len(parts) else None,
        )
    size = min(plan.block_size(max(plan.speed_concurrencies)), n) * plan.control_blocks
    alone = seconds.minutes(Arm.TARGET, Phase.CONTROL, plan.max_concurrency, 2 * size)
    yield Stage(name="control", n_least=2 * size, n_most=2 * size, minutes=alone)
    level = wanted_level(candidate.setting.policy)
    if level != "F1" and candidate.setting.profile.engine == "native":
        minutes = None if seconds.fidelity_s is None else seconds.fidelity_s / 60.0
        yield Stage(name=f"fidelity {level}, teacher-forced", n_least=0, n_most=n, minutes=minutes)
    yield from _other_pairs(candidate, plan, n, seconds)


def _other_pairs(
    candidate: Candidate, plan: ReplayPlan, n: int, seconds: _Seconds
) -> Iterator[Stage]:
    """Production, and its draft on a new target; nothing of what stored traces can answer runs."""
    from pairgate.app.carry_over import N_REQUESTS

    c = plan.acceptance_concurrency
    if candidate.incumbent is None or not candidate.incumbent_has_draft:
        return
    most = n if candidate.same_target else min(n, N_REQUESTS)
    yield Stage(
        name="production on the same requests",
        n_least=0,
        n_most=most,
        minutes=seconds.minutes(Arm.INCUMBENT, Phase.ACCEPTANCE, c, most)
        or seconds.minutes(Arm.SPEC, Phase.ACCEPTANCE, c, most),
    )
    if not candidate.same_target and candidate.pair.draft is not None:
        yield Stage(
            name="carried over: production's draft on the new target",
            n_least=0,
            n_most=min(n, N_REQUESTS),
            minutes=seconds.minutes(Arm.SPEC, Phase.ACCEPTANCE, c, min(n, N_REQUESTS)),
        )


def _teacher_forcing_s(fidelity: Fidelity | None) -> float | None:
    """Seconds that the models read the outputs of both arms, of an evaluation that did."""
    if fidelity is None or fidelity.law is None:
        return None
    return fidelity.law.wall_s + (fidelity.control_law.wall_s if fidelity.control_law else 0.0)


def _n_devices(hardware_class: str) -> int:
    """The count in `nvidia-h200x4`; one machine where no accelerator is named (`…-avx512`)."""
    found = re.search(r"(?<!av)x(\d+)$", hardware_class)
    return int(found[1]) if found else 1
