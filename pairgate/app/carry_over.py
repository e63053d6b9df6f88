"""After a change of the target: production's draft on the new target, without registering it.

The candidate's new draft has to beat what is there already, which is two things: no draft, and the
old one. That the old pair accepted more on the old target answers another question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.app.incumbent import CARRY_OVER_FOLDER
from pairgate.app.register import materialise
from pairgate.domain.evidence import CarryOver
from pairgate.domain.pair import Pair
from pairgate.domain.policy import SpeedupRule
from pairgate.domain.trace import Arm, Phase, TraceBatch
from pairgate.errors import IntegrityError, InvalidInput, Refused
from pairgate.replay import replay_carry_over
from pairgate.store.traces import ParquetTraces

if TYPE_CHECKING:
    from pairgate.app.evidence import Candidate
    from pairgate.app.workspace import Workspace
    from pairgate.compat.check import Model
    from pairgate.domain.evidence import EngineInfo
    from pairgate.domain.pair import ModelRef
    from pairgate.domain.profile import ServingProfile
    from pairgate.domain.recorded import ReplayPlan
    from pairgate.domain.traffic import TrafficSlice
    from pairgate.ports import Engine, MaterialisedPair, Progress

N_REQUESTS = 128
"""Of the acceptance pass, from its beginning: for a comparison that advises and never decides."""
_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOver:
    """What was replayed of it, and where that comes from."""

    note: CarryOver | None = None
    acceptance: TraceBatch | None = None
    speed: tuple[TraceBatch, ...] = ()


def carried_over(
    ws: Workspace,
    candidate: Candidate,
    traffic: TrafficSlice,
    plan: ReplayPlan,
    folder: Path,
    engine: EngineInfo,
    n_requests: int,
    engine_factory: Callable[[ServingProfile], Engine],
    progress: Progress | None,
    *,
    with_speed: bool,
) -> CarriedOver:
    """Replay it on the first requests of the candidate's own pass, and its first speed blocks where
    speed decides.

    Stored traces of a registered version with the same content are used instead, under the same
    slice, profile, engine, hardware and seed. Nothing is replayed where the target is production's
    own, where a draft is missing, or where the candidate is the carried-over pair itself.
    """
    note, pair = described(ws, candidate)
    if note is None or pair is None:
        return CarriedOver(note=note)
    sink = ParquetTraces(folder / CARRY_OVER_FOLDER)
    n = min(n_requests, N_REQUESTS)
    concurrencies = _speed_decides_at(candidate) if with_speed else ()
    for name, batches in _stored(ws, candidate, pair, engine):
        if note.kind != "stored":
            note, n = replace(note, kind="stored", name=name), sum(map(_n_accepted, batches))
        for batch in batches:
            sink.save(_key(batch), batch)
    with materialise(ws, pair, registered=False) as ready:
        if (reason := _incompatible(ready)) is not None:
            return CarriedOver(note=replace(note, kind="none", reason=reason))
        # Blocks that the sink holds already are not run again.
        acceptance, speed = replay_carry_over(
            engine_factory(candidate.setting.profile),
            ready,
            traffic,
            plan,
            sink,
            progress,
            n_requests=n,
            concurrencies=concurrencies,
        )
    return CarriedOver(note=note, acceptance=acceptance, speed=speed)


def described(ws: Workspace, candidate: Candidate) -> tuple[CarryOver | None, Pair | None]:
    """What there is to say of it, and the pair to replay; (None, None) where the target is not
    new."""
    incumbent = candidate.incumbent
    if incumbent is None or candidate.same_target:
        return None, None
    old = ws.registry.pair(incumbent.pair_digest)
    if old.draft is None:
        return CarryOver(kind="none", reason=f"{incumbent} serves its target without one"), None
    if candidate.pair.draft is None:
        return CarryOver(kind="none", reason="this version has no draft"), None
    pair = Pair(target=candidate.pair.target, draft=old.draft, decoding=old.decoding)
    kind = "self" if pair.digest == candidate.pair.digest else "measured"
    note = CarryOver(kind=kind, draft_of=str(incumbent))
    return note, None if kind == "self" else pair


def stored_carry_over(
    folder: Path,
) -> tuple[TraceBatch | None, tuple[TraceBatch, ...]]:
    """Its acceptance pass and speed blocks as a run's folder keeps them, for judging again."""
    batches = ParquetTraces(folder / CARRY_OVER_FOLDER).load_all()
    found = [b for b in batches if b.phase is Phase.ACCEPTANCE]
    return (
        TraceBatch.concat(sorted(found, key=lambda b: b.block)) if found else None,
        tuple(b for b in batches if b.phase is Phase.SPEED),
    )


def _stored(
    ws: Workspace, candidate: Candidate, pair: Pair, engine: EngineInfo
) -> Iterator[tuple[str, tuple[TraceBatch, ...]]]:
    """(version, blocks) of the newest evaluation of a registered version with the same content."""
    setting = candidate.setting
    wanted = (engine.name, engine.version, engine.hardware_class)
    for row in reversed(ws.registry.evaluations(candidate.version.line)):
        if (
            row.pair_digest != pair.digest
            or row.outcome == "ERROR"
            or row.slice_digest != setting.head.slice_digest
            or row.profile_digest != setting.head.profile_digest
            or (row.engine, row.engine_version, row.hardware_class) != wanted
        ):
            continue
        seed = ws.registry.evaluation(row.digest).evaluation.provenance.seed
        if seed != setting.policy.seed:
            continue
        with suppress(IntegrityError):  # damaged traces of another run: replay it instead
            batches = ParquetTraces(ws.evaluation_folder(row.folder) / "traces").load_all()
            found = tuple(
                replace(b, arm=Arm.CARRY_OVER) if b.arm is Arm.SPEC else b
                for b in batches
                if b.phase in (Phase.ACCEPTANCE, Phase.SPEED)
            )
            if any(map(_n_accepted, found)):
                yield f"{row.line}@{row.version}", found
                return


def _n_accepted(batch: TraceBatch) -> int:
    return len(batch) if batch.phase is Phase.ACCEPTANCE else 0


def _key(batch: TraceBatch) -> str:
    """The key under which a replay of the carried-over pair stores, and looks for, this block."""
    if batch.phase is Phase.ACCEPTANCE:
        return f"acceptance-{batch.arm}-c{batch.concurrency}-{batch.block:05d}"
    return f"speed-c{batch.concurrency}-{batch.block:03d}-{batch.arm}"


def _speed_decides_at(candidate: Candidate) -> tuple[int, ...]:
    setting = candidate.setting
    rules = [r for r in setting.policy.gates if isinstance(r, SpeedupRule)]
    measured = setting.policy.replay.speed_concurrencies or setting.profile.concurrencies
    return tuple(
        c for rule in rules for c in rule.gated(setting.profile.concurrencies) if c in measured
    )


def _incompatible(ready: MaterialisedPair) -> str | None:
    """Why the old draft does not fit the new target, as registering would say it."""
    from pairgate.compat.check import check_pair

    assert ready.draft_dir is not None
    try:
        check_pair(
            _model(ready.pair.target, ready.target_dir),
            _model(ready.pair.draft, ready.draft_dir),
            ready.pair.decoding.method,
        )
    except (Refused, InvalidInput) as error:
        return error.message
    return None


def _model(ref: ModelRef | None, folder: Path) -> Model:
    from pairgate.compat.check import read_model

    assert ref is not None
    weights = {f.path: folder / f.path for f in ref.files if f.path.endswith(_WEIGHTS)}
    documents = {f.path: (folder / f.path).read_bytes() for f in ref.files if f.path not in weights}
    return read_model(ref.role, documents, weights, ref.flags)
