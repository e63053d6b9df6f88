"""The production pair's acceptance on the same requests: from its own evidence, or replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.register import materialise
from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.replay import replay_acceptance
from pairgate.store.traces import ParquetTraces

if TYPE_CHECKING:
    from pairgate.app.setting import LineSetting
    from pairgate.app.workspace import Workspace
    from pairgate.domain.evidence import EngineInfo
    from pairgate.domain.pair import PairVersion
    from pairgate.domain.profile import ServingProfile
    from pairgate.domain.recorded import ReplayPlan
    from pairgate.domain.traffic import TrafficSlice
    from pairgate.ports import Engine, Progress

INCUMBENT_FOLDER = "incumbent"


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

    Its stored evidence counts only where slice, profile, engine, hardware and seed are equal.
    """
    sink = ParquetTraces(folder / INCUMBENT_FOLDER)
    stored = _from_evidence(ws, incumbent, setting, engine)
    if stored is not None:
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


def stored_incumbent(folder: Path) -> TraceBatch | None:
    """What `incumbent_traces` kept in a run's folder, for judging again."""
    return _acceptance(ParquetTraces(folder / INCUMBENT_FOLDER).load_all())


def _from_evidence(
    ws: Workspace, incumbent: PairVersion, setting: LineSetting, engine: EngineInfo
) -> TraceBatch | None:
    head = setting.head
    for row in reversed(ws.registry.evaluations(incumbent.line, incumbent.number)):
        equal = (
            row.pair_digest == incumbent.pair_digest
            and row.slice_digest == head.slice_digest
            and row.profile_digest == head.profile_digest
            and (row.engine, row.engine_version, row.hardware_class)
            == (engine.name, engine.version, engine.hardware_class)
            and row.outcome != "ERROR"
        )
        if not equal:
            continue
        seed = ws.registry.evaluation(row.digest).evaluation.provenance.seed
        traces = Path(row.folder) / "traces"
        if seed == setting.policy.seed and traces.is_dir():
            return _acceptance(ParquetTraces(traces).load_all())
    return None


def _acceptance(batches: Iterable[TraceBatch]) -> TraceBatch | None:
    found = [b for b in batches if b.phase is Phase.ACCEPTANCE]
    return replace(TraceBatch.concat(found), arm=Arm.INCUMBENT) if found else None
