"""Promote, rollback, disable, enable, pin: rules applied under the line's lock.

Each use case checks files before it takes the lock, reads a `Situation` inside it, asks
`pairgate.promote` for the decision, appends it together with its outbox message, commits, and
then starts the delivery without waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pairgate import promote as rules
from pairgate.app.actor import current_actor
from pairgate.app.approvals import record_tags
from pairgate.app.flights import REGISTERING, in_flight
from pairgate.app.outbox import start_delivery
from pairgate.app.presence import (
    Presence,
    check_files,
    check_pair_present,
    check_present,
    index_pair,
)
from pairgate.app.situation import read_situation
from pairgate.app.workspace import now
from pairgate.compat.decoding import require_agreement
from pairgate.domain.pair import DecodingConfig, Method, Pair, VersionRef
from pairgate.domain.release import Decision, Head, Kind
from pairgate.domain.situation import MOVES, Ask, Situation
from pairgate.errors import EvidenceMissing, IntegrityError, NotFound, Refused

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import PairVersion
    from pairgate.domain.records import Approval, EvidenceRow
    from pairgate.domain.release import Actor
    from pairgate.store.sql import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What came of it. `already` says that nothing had to be written; `decision` is then the one
    that an earlier run of the same request made, if any. `approvals` are those of the evidence
    of a promotion. `head.hash` is the audit head."""

    head: Head
    decision: Decision | None
    already: bool
    approvals: tuple[Approval, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """Where a rollback would go, said before it happens: the version and its profiles."""

    leaving: PairVersion
    back: PairVersion
    profiles: tuple[str, ...]
    profiles_change: bool

    @property
    def changes_target(self) -> bool:
        return self.leaving.target_digest != self.back.target_digest


def promote(
    ws: Workspace,
    ref: VersionRef,
    *,
    expect_current: str | None = None,
    override: str | None = None,
    reinstate: str | None = None,
    request_id: str | None = None,
    actor: Actor | None = None,
    presence: Presence | None = None,
    wait_delivery_s: float = 0.0,
) -> Moved:
    """Move production to a version on a PASS that holds now, or with a reason to do without.

    Raises `EvidenceMissing`, `EvidenceStale`, `Conflict`, `IntegrityError` for missing or damaged
    files, `Refused` for what is withdrawn, not approved or served with other settings.
    """
    version = ws.registry.version(ref)
    ask = Ask(by=actor or current_actor(ws), at=now(), request_id=request_id)
    earlier = _repeated(ws, version.line, Kind.PROMOTE, version.number, request_id)
    if earlier is not None:
        return earlier
    if ws.registry.head(version.line).production != version.number:
        unchecked = check_files(ws, version, override, presence, ask.at)
        ask = replace(ask, warnings=(*unchecked, *record_tags(ws, version)))

    decoding = ws.registry.pair(version.pair_digest).decoding

    def decide(situation: Situation) -> Decision | None:
        decision = rules.promotion(
            situation,
            situation.version(version.number),
            ask,
            override=override,
            reinstate=reinstate,
            expect_current=expect_current,
        )
        try:
            for profile in situation.wanted_profiles if decision else ():
                require_agreement(decoding, profile, label=str(version))
        except Refused as error:
            if override is None or decision is None:
                raise
            decision = replace(decision, warnings=(*decision.warnings, error.message))
        return decision

    moved = _move(ws, version.line, Kind.PROMOTE, version.number, ask, decide, wait_delivery_s)
    if moved.decision is None or moved.decision.evaluation_digest is None:
        return moved
    return replace(moved, approvals=tuple(ws.registry.approvals(moved.decision.evaluation_digest)))


def usable_evidence(
    ws: Workspace, ref: VersionRef, profile_digest: str | None = None
) -> EvidenceRow | None:
    """The PASS that promote would stand on now for a profile (the line's own unless another is
    named), or None. Changes nothing."""
    version = ws.registry.version(ref)
    with ws.registry.snapshot(version.line) as view:
        situation = read_situation(view)
    try:
        digest = profile_digest or situation.head.profile_digest
        return rules.usable(situation, version, at=now(), profile_digest=digest)[0].row
    except EvidenceMissing:
        return None


def plan_rollback(ws: Workspace, line: str, to: VersionRef | None = None) -> RollbackPlan | None:
    """What `rollback` would do, or None when it would have nothing to do. Raises `Refused`."""
    number = None if to is None else ws.registry.version(to).number
    with ws.registry.snapshot(line) as view:
        situation = read_situation(view)
    if number is not None and number == situation.head.production:
        return None
    back = situation.version(rules.destination(situation, number))
    assert situation.production is not None
    placed = situation.last_placement(back.number)
    return RollbackPlan(
        leaving=situation.production,
        back=back,
        profiles=situation.profile_labels((placed.profile_digest, *placed.profiles)),
        profiles_change=(placed.profile_digest, placed.profiles)
        != (situation.head.profile_digest, situation.head.profiles),
    )


def rollback(
    ws: Workspace,
    line: str,
    *,
    to: VersionRef | None = None,
    keep_target: bool = False,
    expect_current: str | None = None,
    request_id: str | None = None,
    reason: str = "",
    actor: Actor | None = None,
    presence: Presence | None = None,
    wait_delivery_s: float = 0.0,
    announce: Callable[[RollbackPlan], None] | None = None,
) -> Moved:
    """Move production back: no model, engine, evaluation or MLflow needed.

    Raises `Refused` when there is nothing to go back to (a second rollback names its destination
    with `to`, or repeats its `request_id`), `IntegrityError` when files are known to be missing.
    """
    if to is not None and to.line != line:
        raise NotFound(f"{to} is not a version of line {line}")
    ask = Ask(by=actor or current_actor(ws), at=now(), reason=reason, request_id=request_id)
    number = None if to is None else ws.registry.version(to).number
    earlier = _repeated(ws, line, Kind.ROLLBACK, number, request_id)
    if earlier is not None:
        return earlier
    plan = plan_rollback(ws, line, to)
    if plan is not None:
        if announce is not None:
            announce(plan)
        ask = replace(ask, warnings=check_present(ws, plan.back, presence))

    def decide(situation: Situation) -> Decision | None:
        decision = rules.rollback(
            situation, ask, to=number, keep_target=keep_target, expect_current=expect_current
        )
        if decision is not None and (plan is None or decision.version != plan.back.number):
            raise rules.moved_meanwhile(situation)
        return decision

    return _move(ws, line, Kind.ROLLBACK, number, ask, decide, wait_delivery_s)


def disable(
    ws: Workspace,
    line: str,
    reason: str,
    *,
    request_id: str | None = None,
    actor: Actor | None = None,
    presence: Presence | None = None,
    wait_delivery_s: float = 0.0,
) -> Moved:
    """Serve production's own target without its draft; makes that version, copies nothing."""
    ask = Ask(by=actor or current_actor(ws), at=now(), reason=reason, request_id=request_id)
    with ws.registry.snapshot(line) as view:
        serving = rules.draft_in_production(read_situation(view))
    alone = None if serving is None else target_alone(ws.registry.pair(serving.pair_digest))

    def decide(transaction: Transaction) -> Decision | None:
        situation = read_situation(transaction)
        found = rules.draft_in_production(situation)
        if found is None:
            return None
        if alone is None or serving is None or found.pair_digest != serving.pair_digest:
            raise rules.moved_meanwhile(situation)
        version = transaction.ensure_version(alone, at=ask.at, by=ask.by.name)
        # Read again: the version may be new, and the rules look versions up by number.
        return rules.disabling(read_situation(transaction), version, ask)

    with _claimed(ws, line, alone):
        if alone is not None:
            ask = replace(
                ask, warnings=(*index_pair(ws, alone), *check_pair_present(ws, alone, presence))
            )
        return _move_in(ws, line, Kind.DISABLE, None, ask, decide, wait_delivery_s)


def _claimed(ws: Workspace, line: str, pair: Pair | None) -> AbstractContextManager[object]:
    """gc leaves the pair's files alone until its version exists."""
    if pair is None:
        return nullcontext()
    from pairgate.store.blobs import pair_blobs

    return in_flight(ws, REGISTERING, line, pair_blobs(pair))


def enable(
    ws: Workspace,
    line: str,
    *,
    reason: str = "",
    request_id: str | None = None,
    actor: Actor | None = None,
    presence: Presence | None = None,
    wait_delivery_s: float = 0.0,
) -> Moved:
    """Undo `disable`, while pair, profiles and evidence are what they were."""
    ask = Ask(by=actor or current_actor(ws), at=now(), reason=reason, request_id=request_id)
    disabled = ws.registry.head(line).disabled
    if disabled is not None:
        back = ws.registry.version(VersionRef(line=line, selector=str(disabled)))
        if ws.registry.verification(back.pair_digest).problem:
            raise IntegrityError(
                f"the files of {back} are damaged, so it is not what was disabled",
                hint=f"register the same files again, or run: pairgate verify {back}",
            )
        ask = replace(ask, warnings=check_present(ws, back, presence))

    def decide(situation: Situation) -> Decision | None:
        if situation.head.disabled != disabled:
            raise rules.moved_meanwhile(situation)
        return rules.enabling(situation, ask)

    return _move(ws, line, Kind.ENABLE, None, ask, decide, wait_delivery_s)


def pin(
    ws: Workspace,
    ref: VersionRef,
    *,
    pinned: bool = True,
    reason: str = "",
    actor: Actor | None = None,
) -> Moved:
    """Protect a version from deletion, or take that back (`pinned=False`)."""
    version = ws.registry.version(ref)
    ask = Ask(by=actor or current_actor(ws), at=now(), reason=reason)

    def decide(situation: Situation) -> Decision | None:
        return rules.pinning(situation, version, ask, pinned=pinned)

    kind = Kind.PIN if pinned else Kind.UNPIN
    return _move(ws, version.line, kind, version.number, ask, decide, 0.0)


def target_alone(pair: Pair) -> Pair:
    """The pair's target without a draft: what `disable` serves."""
    decoding = DecodingConfig(
        method=Method.NONE,
        compute_dtype=pair.decoding.compute_dtype,
        kv_dtype_target=pair.decoding.kv_dtype_target,
    )
    return Pair(target=pair.target, draft=None, decoding=decoding, adapters=pair.adapters)


def _move(
    ws: Workspace,
    line: str,
    kind: Kind,
    number: int | None,
    ask: Ask,
    decide: Callable[[Situation], Decision | None],
    wait_delivery_s: float,
) -> Moved:
    def in_transaction(transaction: Transaction) -> Decision | None:
        return decide(read_situation(transaction))

    return _move_in(ws, line, kind, number, ask, in_transaction, wait_delivery_s)


def _move_in(
    ws: Workspace,
    line: str,
    kind: Kind,
    number: int | None,
    ask: Ask,
    decide: Callable[[Transaction], Decision | None],
    wait_delivery_s: float,
) -> Moved:
    """Lock, decide, append with the message for the outside, commit, deliver."""

    def body(transaction: Transaction) -> Moved:
        made = rules.repeated(tuple(transaction.decisions()), ask.request_id, kind, number)
        decision = None if made else decide(transaction)
        if decision is None:
            return Moved(head=transaction.head, decision=made, already=True)
        sealed = transaction.append(decision)
        if kind in MOVES:
            transaction.enqueue("head", asdict(sealed))
        return Moved(head=transaction.head, decision=sealed, already=False)

    moved = ws.registry.decide(line, body)
    if kind in MOVES and not moved.already:
        start_delivery(ws, wait_s=wait_delivery_s)
    return moved


def _repeated(
    ws: Workspace, line: str, kind: Kind, number: int | None, request_id: str | None
) -> Moved | None:
    """An earlier run of the same request, before anything else is looked at."""
    if request_id is None:
        return None
    with ws.registry.snapshot(line) as view:
        made = rules.repeated(tuple(view.decisions()), request_id, kind, number)
        return None if made is None else Moved(head=view.head, decision=made, already=True)
