"""The production pair's acceptance on the same requests: from its own evidence, or replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.register import materialise
from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.errors import IntegrityError
from pairgate.replay import replay_acceptance
from pairgate.store.traces import ParquetTraces

if TYPE_CHECKING:
    from pairgate.app.evidence import Candidate
    from pairgate.app.setting import LineSetting
    from pairgate.app.workspace import Workspace
    from pairgate.domain.evidence import EngineInfo
    from pairgate.domain.pair import PairVersion
    from pairgate.domain.profile import ServingProfile
    from pairgate.domain.recorded import ReplayPlan
    from pairgate.domain.traffic import TrafficSlice
    from pairgate.ports import Engine, Progress

INCUMBENT_FOLDER, CARRY_OVER_FOLDER = "incumbent", "carry-over"


def incumbent_traces(
    ws: Workspace,
    incumbent: PairVersion,
    setting: LineSetting,
    traffic: TrafficSlice,
    plan: ReplayPlan,
    folder: Path,
    engine: EngineInfo,
    n_requests: int,
    engine_factory: Callable[[ServingProfile], Engine],
    progress: Progress | None,
) -> TraceBatch:
    """One acceptance pass of the incumbent over the first `n_requests` in submission order, kept
    under `folder` (a run's own folder).

    Traces of it that are stored already count only where slice, profile, engine, hardware and
    seed are equal. Where the targets differ it is shown beside the candidate and judges nothing.
    """
    sink = ParquetTraces(folder / INCUMBENT_FOLDER)
    for stored in known_traces(ws, incumbent, setting, engine):
        if len(stored) >= n_requests:
            sink.save("acceptance", stored)
            return stored
    with materialise(ws, ws.registry.pair(incumbent.pair_digest)) as pair:
        return replay_acceptance(
            engine_factory(setting.profile),
            pair,
            traffic,
            plan,
            sink,
            progress,
            arm=Arm.INCUMBENT,
            n_requests=n_requests,
        )


def longest_known(ws: Workspace, candidate: Candidate, engine: EngineInfo) -> TraceBatch | None:
    """The longest stored pass of production under equal conditions, for looks on the way."""
    if candidate.incumbent is None:
        return None
    found = known_traces(ws, candidate.incumbent, candidate.setting, engine)
    return max(found, key=len, default=None)


def stored_incumbent(folder: Path) -> TraceBatch | None:
    """What `incumbent_traces` kept in a run's folder, for judging again."""
    return _acceptance(ParquetTraces(folder / INCUMBENT_FOLDER).load_all())


def known_traces(
    ws: Workspace, incumbent: PairVersion, setting: LineSetting, engine: EngineInfo
) -> Iterator[TraceBatch]:
    """Its traces from its own evaluations, and from those of other candidates, newest first."""
    head = setting.head
    for row in reversed(ws.registry.evaluations(incumbent.line)):
        its_own = row.pair_digest == incumbent.pair_digest
        equal = (
            (its_own or row.incumbent_digest == incumbent.pair_digest)
            and row.slice_digest == head.slice_digest
            and row.profile_digest == head.profile_digest
            and (row.engine, row.engine_version, row.hardware_class)
            == (engine.name, engine.version, engine.hardware_class)
            and row.outcome != "ERROR"
        )
        if not equal:
            continue
        seed = ws.registry.evaluation(row.digest).evaluation.provenance.seed
        folder = ws.evaluation_folder(row.folder) / ("traces" if its_own else INCUMBENT_FOLDER)
        with suppress(IntegrityError):  # damaged traces of another run: replay it instead
            found = _acceptance(ParquetTraces(folder).load_all())
            if seed == setting.policy.seed and found is not None:
                yield found


def _acceptance(batches: Iterable[TraceBatch]) -> TraceBatch | None:
    found = [b for b in batches if b.phase is Phase.ACCEPTANCE]
    in_order = sorted(found, key=lambda b: b.block)
    return replace(TraceBatch.concat(in_order), arm=Arm.INCUMBENT) if found else None
