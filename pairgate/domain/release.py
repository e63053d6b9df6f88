"""The release log: append-only decisions, and the head of a line as a fold over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from pairgate.domain.canonical import canonical_json, sha256_digest
from pairgate.domain.text import check_name
from pairgate.errors import IntegrityError


class Kind(StrEnum):
    SET = "set"  # policy, slice and profile of a line
    PROMOTE = "promote"
    ROLLBACK = "rollback"
    DISABLE = "disable"
    ENABLE = "enable"
    PIN = "pin"
    UNPIN = "unpin"
    PURGE = "purge"  # the texts of a slice that the line uses or used were deleted
    DROP = "drop"  # a message of the outbox is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who decides; `source` says how we know (os-user, ci-oidc, database-role)."""

    name: str
    source: str

    def __post_init__(self) -> None:
        check_name("the acting identity", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One row of the log, written once. `production` and `previous` are the versions after it.

    `identity_source` says how the actor is known (os-user, ci-oidc, database-role).
    `profile_digest` is the line's own profile, `profiles` the digests of the others that the line
    is served on. `warnings` keeps what could not be checked at the time. `hash` chains over the
    previous decision's hash.
    """

    line: str
    sequence: int
    kind: Kind
    production: int | None
    previous: int | None
    version: int | None
    at: str
    actor: str
    identity_source: str
    reason: str = ""
    evaluation_digest: str | None = None
    incumbent_digest: str | None = None
    policy_digest: str | None = None
    slice_digest: str | None = None
    profile_digest: str | None = None
    profiles: tuple[str, ...] = ()
    override: bool = False
    reinstate: bool = False
    request_id: str | None = None
    warnings: tuple[str, ...] = ()
    previous_hash: str = ""
    hash: str = ""

    def sealed(self, previous_hash: str) -> Decision:
        """The same decision with its link of the hash chain filled in."""
        linked = replace(self, previous_hash=previous_hash, hash="")
        return replace(linked, hash=linked.computed_hash())

    def computed_hash(self) -> str:
        document = asdict(self)
        document.pop("hash")
        if not self.profiles:  # younger than the first decisions, whose hashes must not change
            document.pop("profiles")
        return sha256_digest(self.previous_hash.encode() + b"\n" + canonical_json(document))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a line stands. `disabled` is the version that `enable` would bring back."""

    line: str
    revision: int = 0
    production: int | None = None
    previous: int | None = None
    disabled: int | None = None
    policy_digest: str | None = None
    slice_digest: str | None = None
    profile_digest: str | None = None
    profiles: tuple[str, ...] = ()
    withdrawn: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    been_production: frozenset[int] = frozenset()
    hash: str = ""

    @property
    def protected(self) -> frozenset[int]:
        """Versions that no command may delete."""
        named = (self.production, self.previous, self.disabled)
        return frozenset(v for v in named if v is not None) | self.withdrawn | self.pinned


def advance(head: Head, decision: Decision) -> Head:
    """The head after one more decision.

    A version that production leaves by a rollback is withdrawn, with the one it had disabled; it
    is withdrawn no longer once it is production again. Every move but `disable` ends a disabling.
    """
    after = replace(
        head,
        revision=decision.sequence,
        production=decision.production,
        previous=decision.previous,
        policy_digest=decision.policy_digest,
        slice_digest=decision.slice_digest,
        profile_digest=decision.profile_digest,
        profiles=decision.profiles,
        hash=decision.hash,
    )
    version = decision.version
    if decision.kind in (Kind.PROMOTE, Kind.ENABLE):
        after = replace(after, disabled=None)
    elif decision.kind is Kind.ROLLBACK:
        gone = {v for v in (head.production, head.disabled) if v is not None}
        after = replace(after, disabled=None, withdrawn=head.withdrawn | gone)
    elif decision.kind is Kind.DISABLE:
        after = replace(after, disabled=head.production)
    elif decision.kind is Kind.PIN and version is not None:
        after = replace(after, pinned=head.pinned | {version})
    elif decision.kind is Kind.UNPIN and version is not None:
        after = replace(after, pinned=head.pinned - {version})
    if decision.production is not None:
        after = replace(
            after,
            been_production=after.been_production | {decision.production},
            withdrawn=after.withdrawn - {decision.production},
        )
    return after


def fold(line: str, decisions: Iterable[Decision]) -> Head:
    """The head from the whole log, verifying sequence and hash chain on the way.

    Raises `IntegrityError` at the first edited, missing or reordered decision.
    """
    head = Head(line=line)
    for decision in decisions:
        if decision.sequence != head.revision + 1:
            raise IntegrityError(
                f"line {line}: decision {head.revision + 1} is missing; found {decision.sequence}"
            )
        if decision.previous_hash != head.hash or decision.hash != decision.computed_hash():
            raise IntegrityError(f"line {line}: decision {decision.sequence} was altered")
        head = advance(head, decision)
    return head
