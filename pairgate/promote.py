"""The rules of release: a line as it stands, and what is asked for -> a Decision, or a refusal.

Pure: the caller reads a `Situation` under the line's lock and appends what comes back. None
means that it is so already and nothing is to be written. Evidence is asked for when production
moves forward, never when it moves back.
"""

from __future__ import annotations

from dataclasses import replace

from pairgate.domain.approvals import approved
from pairgate.domain.pair import Method, PairVersion
from pairgate.domain.records import EvidenceRow
from pairgate.domain.release import Decision, Kind
from pairgate.domain.situation import Ask, Situation
from pairgate.domain.text import check_text
from pairgate.domain.usable import usable as usable
from pairgate.errors import Conflict, InvalidInput, Refused


def promotion(
    now: Situation,
    version: PairVersion,
    ask: Ask,
    *,
    override: str | None = None,
    reinstate: str | None = None,
    expect_current: str | None = None,
) -> Decision | None:
    """Move production to `version`, which needs a PASS that holds, or a reason to do without.

    Raises `EvidenceMissing`/`EvidenceStale`, `Conflict` when production is not what was
    expected, `Refused` for a withdrawn or unapproved version.
    """
    head = now.head
    _need_reason("--override", override)
    _need_reason("--reinstate", reinstate)
    if head.production == version.number and now.serves_as_set:
        return None
    _check_expected(now, expect_current)
    version.require_files()
    warnings, evidence = ask.warnings, now.newest_evidence(version)
    if override is None:
        evidence, found = _evidence(now, version, ask)
        warnings += found
    withdrawn = version.number in head.withdrawn
    if withdrawn and reinstate is None and not _passed_since(now, version, evidence, override):
        raise Refused(
            f"{version} was withdrawn: {now.withdrawal(version.number).reason or 'no reason'}",
            hint=f"bring it back with: pairgate promote {version} --reinstate REASON, or evaluate "
            "it again",
        )
    reasons = (
        ask.reason,
        f"override: {override}" if override else "",
        f"reinstate: {reinstate}" if withdrawn and reinstate else "",
    )
    incumbent = now.production
    return _decision(
        now,
        Kind.PROMOTE,
        ask,
        version=version.number,
        production=version.number,
        previous=head.production,
        reason="; ".join(r for r in reasons if r),
        evaluation_digest=evidence.digest if evidence else None,
        incumbent_digest=incumbent.pair_digest if incumbent else None,
        profiles=now.other_profiles,
        override=override is not None,
        reinstate=withdrawn and reinstate is not None,
        warnings=warnings,
    )


def rollback(
    now: Situation,
    ask: Ask,
    *,
    to: int | None = None,
    keep_target: bool = False,
    expect_current: str | None = None,
) -> Decision | None:
    """Move production back, without evidence; what it leaves is withdrawn and stays protected.

    The profiles go back with the version. Raises `Refused` where there is nothing to go back
    to, for a version that was never production or was withdrawn itself, and with `keep_target`
    where the target would change.
    """
    head = now.head
    if to is not None and to == head.production:
        return None
    _check_expected(now, expect_current)
    back = now.version(destination(now, to))
    leaving = now.production
    assert leaving is not None
    if keep_target and back.target_digest != leaving.target_digest:
        raise Refused(
            f"going back from {leaving} to {back} would change the target too",
            hint=f"to stop only the draft: pairgate disable {head.line} --reason TEXT",
        )
    placed = now.last_placement(back.number)
    return _decision(
        now,
        Kind.ROLLBACK,
        ask,
        version=back.number,
        production=back.number,
        previous=None,
        evaluation_digest=placed.evaluation_digest,
        incumbent_digest=leaving.pair_digest,
        profile_digest=placed.profile_digest,
        profiles=placed.profiles,
    )


def destination(now: Situation, to: int | None = None) -> int:
    """The version that a rollback would go to; raises `Refused` when there is none."""
    head = now.head
    line = head.line
    if head.production is None:
        raise Refused(f"line {line} has no production version to roll back")
    if to is None:
        if head.previous is not None:
            return head.previous
        before = sorted(head.been_production - head.withdrawn - {head.production, head.disabled})
        choices = ", ".join(f"{line}@{n}" for n in before)
        stop = f"to stop the draft: pairgate disable {line} --reason TEXT"
        if head.disabled is not None:
            stop = f"the draft is off already; bring it back with: pairgate enable {line}"
        raise Refused(
            f"line {line} has nothing to roll back to: production is {line}@{head.production}, "
            "and there is no previous version",
            hint=f"name one with --to: {choices}" if choices else stop,
        )
    if to == head.disabled:
        raise Refused(
            f"{line}@{to} is the version that is disabled", hint=f"run: pairgate enable {line}"
        )
    if to not in head.been_production:
        now.version(to)
        raise Refused(
            f"{line}@{to} was never in production, so it is not a way back",
            hint=f"promote it: pairgate promote {line}@{to}",
        )
    if to in head.withdrawn:
        raise Refused(
            f"{line}@{to} was withdrawn: {now.withdrawal(to).reason or 'no reason given'}",
            hint=f"bring it back with: pairgate promote {line}@{to} --reinstate REASON",
        )
    now.version(to).require_files()
    return to


def disabling(now: Situation, alone: PairVersion, ask: Ask) -> Decision | None:
    """Serve production's target without its draft: `alone` is that version."""
    serving = draft_in_production(now)
    if serving is None:
        return None
    _need_reason("--reason", ask.reason)
    return _decision(
        now,
        Kind.DISABLE,
        ask,
        version=alone.number,
        production=alone.number,
        previous=now.head.previous,
        incumbent_digest=serving.pair_digest,
    )


def draft_in_production(now: Situation) -> PairVersion | None:
    """The production version if it speculates, None if its target serves alone already."""
    serving = now.production
    if serving is None:
        raise Refused(f"line {now.head.line} has no production version")
    return None if serving.method is Method.NONE else serving


def enabling(now: Situation, ask: Ask) -> Decision | None:
    """Undo `disable`, while profiles and evidence are what they were."""
    head = now.head
    if head.disabled is None:
        if now.production is not None and now.production.method is not Method.NONE:
            return None
        raise Refused(f"line {head.line} has no disabled draft")
    back = now.version(head.disabled)
    since = next(d for d in reversed(now.decisions) if d.kind is Kind.DISABLE)
    again = f"evaluate and promote it: pairgate gate {back} && pairgate promote {back}"
    parts = ("profile_digest", "profiles", "policy_digest", "slice_digest")
    changed = [p for p in parts if getattr(head, p) != getattr(since, p)]
    if changed:
        raise Refused(
            f"the {changed[0].removesuffix('_digest')} of line {head.line} changed since the "
            f"disabling, so the evidence of {back} does not speak for it",
            hint=again,
        )
    failed = [
        e
        for e in now.evidence
        if e.version == back.number and e.outcome == "FAIL" and e.created_at > since.at
    ]
    if failed:
        raise Refused(
            f"{back} failed an evaluation since it was disabled ({failed[-1].created_at[:19]})",
            hint=f"see why with: pairgate show {back} --report",
        )
    return _decision(
        now,
        Kind.ENABLE,
        ask,
        version=back.number,
        production=back.number,
        previous=head.previous,
        evaluation_digest=now.last_placement(back.number).evaluation_digest,
    )


def pinning(now: Situation, version: PairVersion, ask: Ask, *, pinned: bool) -> Decision | None:
    """Protect a version from deletion, or take that back."""
    if (version.number in now.head.pinned) == pinned:
        return None
    if pinned:
        now.version(version.number).require_files()
    return _standing(now, Kind.PIN if pinned else Kind.UNPIN, ask, version=version.number)


def dropping(now: Situation, ask: Ask, *, message_id: int, targets: tuple[str, ...]) -> Decision:
    """Give up on sending a message of the outbox to these targets."""
    _need_reason("--reason", ask.reason)
    said = f"message {message_id} is not sent to {', '.join(targets)}: {ask.reason}"
    return replace(_standing(now, Kind.DROP, ask, version=None), reason=said)


def purging(now: Situation, ask: Ask, *, name: str, digest: str, since: str) -> Decision | None:
    """The texts of a slice are deleted. None when that was said already of those stored `since`."""
    said = f"texts of slice {name} ({digest}) purged"
    known = (d for d in now.decisions if d.kind is Kind.PURGE and d.at >= since)
    if any(d.reason == said or d.reason.startswith(f"{said}: ") for d in known):
        return None
    reason = f"{said}: {ask.reason}" if ask.reason else said
    return replace(_standing(now, Kind.PURGE, ask, version=None), reason=reason)


def setting(
    now: Situation,
    ask: Ask,
    *,
    policy_digest: str | None,
    slice_digest: str | None,
    profile_digest: str | None,
    profiles: tuple[str, ...] = (),
) -> Decision | None:
    """What the line is judged by from now on; None keeps what is set. `profiles` are the others
    beside `profile_digest`, which is the line's own."""
    standing = _standing(now, Kind.SET, ask, version=None)
    wanted = replace(
        standing,
        policy_digest=policy_digest or standing.policy_digest,
        slice_digest=slice_digest or standing.slice_digest,
        profile_digest=profile_digest or standing.profile_digest,
        profiles=tuple(sorted(profiles)) if profile_digest else standing.profiles,
    )
    return None if wanted == standing else wanted


def repeated(
    decisions: tuple[Decision, ...], request_id: str | None, kind: Kind, version: int | None
) -> Decision | None:
    """The decision that this request id made before; raises `Conflict` if it was another one.

    `version` None means that the caller left the choice to the rules.
    """
    for made in decisions:
        if request_id is not None and made.request_id == request_id:
            if made.kind is kind and version in (None, made.version):
                return made
            raise Conflict(
                f"request id {request_id!r} was used for {made.kind} {made.line}@{made.version}",
                hint="use a new request id for a new request",
            )
    return None


def _evidence(
    now: Situation, version: PairVersion, ask: Ask
) -> tuple[EvidenceRow, tuple[str, ...]]:
    """The row for the line's own profile, approved, and what to warn of."""
    found = usable(now, version, at=ask.at)
    for fresh in found:
        mine = [a for a in now.approvals if a.evaluation_digest == fresh.row.digest]
        approved(mine, now.rules, ask.by, label=str(version))
    return found[0].row, tuple(w for fresh in found for w in fresh.warnings)


def _passed_since(
    now: Situation, version: PairVersion, evidence: EvidenceRow | None, override: str | None
) -> bool:
    """Whether the PASS was measured after the withdrawal, so that it answers it."""
    if override is not None or evidence is None:
        return False
    return evidence.measured_at > now.withdrawal(version.number).at


def _check_expected(now: Situation, expected: str | None) -> None:
    """`expected`: none, a number, LINE@number, or the start of a pair digest."""
    if expected is None:
        return
    serving = now.production
    if serving is None:
        holds = expected == "none"
    else:
        named = (str(serving.number), str(serving))
        holds = expected in named or (
            len(expected) >= 13 and serving.pair_digest.startswith(expected)
        )
    if not holds:
        raise Conflict(
            f"production of line {now.head.line} is "
            f"{now.name(serving.pair_digest if serving else None)}, not {expected}",
            hint=f"somebody else moved it: pairgate history {now.head.line}",
        )


def moved_meanwhile(now: Situation) -> Conflict:
    """For a caller whose file checks were made for another state of the line."""
    line = now.head.line
    return Conflict(
        f"somebody else moved line {line} meanwhile; production is {now.production or 'none'}",
        hint=f"look at it and repeat the command: pairgate status {line}",
    )


def _need_reason(option: str, reason: str | None) -> None:
    if reason is not None and not check_text(option, reason).strip():
        raise InvalidInput(f"{option} needs a reason; it stays in the history for ever")


def _decision(
    now: Situation,
    kind: Kind,
    ask: Ask,
    *,
    version: int,
    production: int,
    previous: int | None,
    reason: str | None = None,
    evaluation_digest: str | None = None,
    incumbent_digest: str | None = None,
    profile_digest: str | None = None,
    profiles: tuple[str, ...] | None = None,
    override: bool = False,
    reinstate: bool = False,
    warnings: tuple[str, ...] | None = None,
) -> Decision:
    """A move of production. What is not named stays as it is."""
    return replace(
        _standing(now, kind, ask, version=version),
        production=production,
        previous=previous,
        reason=ask.reason if reason is None else reason,
        evaluation_digest=evaluation_digest,
        incumbent_digest=incumbent_digest,
        profile_digest=profile_digest or now.head.profile_digest,
        profiles=now.head.profiles if profiles is None else profiles,
        override=override,
        reinstate=reinstate,
        warnings=ask.warnings if warnings is None else warnings,
    )


def _standing(
    now: Situation,
    kind: Kind,
    ask: Ask,
    *,
    version: int | None,
) -> Decision:
    """A decision that leaves everything where it is."""
    head = now.head
    return Decision(
        line=head.line,
        sequence=head.revision + 1,
        kind=kind,
        production=head.production,
        previous=head.previous,
        version=version,
        at=ask.at,
        actor=ask.by.name,
        identity_source=ask.by.source,
        reason=ask.reason,
        policy_digest=head.policy_digest,
        slice_digest=head.slice_digest,
        profile_digest=head.profile_digest,
        profiles=head.profiles,
        request_id=ask.request_id,
        warnings=ask.warnings,
    )
