"""A line as it stands: all that the rules of release may look at, read in one transaction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pairgate.domain.freshness import ReleaseRules
from pairgate.domain.pair import PairVersion
from pairgate.domain.profile import ServingProfile
from pairgate.domain.records import Approval, EvidenceRow
from pairgate.domain.release import Actor, Decision, Head, Kind, advance
from pairgate.domain.text import check_name, check_text
from pairgate.errors import NotFound

MOVES = (Kind.PROMOTE, Kind.ROLLBACK, Kind.DISABLE, Kind.ENABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Who asks, when, why. `warnings` are what the caller could not check."""

    by: Actor
    at: str
    reason: str = ""
    request_id: str | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_text("the reason", self.reason)
        if self.request_id is not None:
            check_name("the request id", self.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What served for a while: a version under its profiles, and the evidence it came with."""

    version: int | None
    profile_digest: str | None
    profiles: tuple[str, ...]
    evaluation_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """`wanted_profiles` are those that need a PASS, the line's own first; `profiles` all that the
    line ever had."""

    head: Head
    decisions: tuple[Decision, ...]
    versions: tuple[PairVersion, ...]
    evidence: tuple[EvidenceRow, ...] = ()
    approvals: tuple[Approval, ...] = ()
    rules: ReleaseRules = field(default_factory=ReleaseRules)
    profiles: tuple[ServingProfile, ...] = ()
    wanted_profiles: tuple[ServingProfile, ...] = ()

    def version(self, number: int) -> PairVersion:
        """Raises `NotFound`."""
        for version in self.versions:
            if version.number == number:
                return version
        raise NotFound(f"there is no version {self.head.line}@{number}")

    @property
    def production(self) -> PairVersion | None:
        return None if self.head.production is None else self.version(self.head.production)

    def profile(self, digest: str) -> ServingProfile:
        """Raises `NotFound`."""
        for profile in self.profiles:
            if profile.digest == digest:
                return profile
        raise NotFound(f"line {self.head.line} has no profile {digest}")

    def profile_labels(self, digests: tuple[str | None, ...]) -> tuple[str, ...]:
        """`NAME@N` of each; the profiles of a name are kept in the order of their numbers."""
        labels, counts = {}, Counter[str]()
        for profile in self.profiles:
            counts[profile.name] += 1
            labels[profile.digest] = f"{profile.name}@{counts[profile.name]}"
        return tuple(labels.get(d, d) for d in digests if d is not None)

    def name(self, pair_digest: str | None) -> str:
        """`code@3 (sha256:…)`, or `nothing`."""
        if pair_digest is None:
            return "nothing"
        named = [str(v) for v in self.versions if v.pair_digest == pair_digest]
        return f"{named[0]} ({pair_digest})" if named else pair_digest

    def newest_evidence(self, version: PairVersion) -> EvidenceRow | None:
        mine = [e for e in self.evidence if e.pair_digest == version.pair_digest]
        return max(mine, key=lambda e: e.created_at, default=None)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """What served, oldest first."""
        return tuple(
            Placement(
                version=d.production,
                profile_digest=d.profile_digest,
                profiles=d.profiles,
                evaluation_digest=d.evaluation_digest,
            )
            for d in self.decisions
            if d.kind in MOVES
        )

    @property
    def other_profiles(self) -> tuple[str, ...]:
        """Digests of the profiles beside the line's own that need a PASS, in canonical order."""
        return tuple(sorted(p.digest for p in self.wanted_profiles[1:]))

    @property
    def serves_as_set(self) -> bool:
        """Whether production came with the profiles that the line has now; `line set` or the
        policy may have moved on since."""
        placed = self.placements
        wanted = (self.head.profile_digest, self.other_profiles)
        return bool(placed) and (placed[-1].profile_digest, placed[-1].profiles) == wanted

    def last_placement(self, version: int) -> Placement:
        """How a version served last, other than exactly as now: it may go back to a profile."""
        *earlier, current = self.placements
        found = [p for p in earlier if p.version == version and p != current]
        return found[-1] if found else current

    def withdrawal(self, number: int) -> Decision:
        """The decision that withdrew a version last; raises `NotFound` if none did."""
        head, found = Head(line=self.head.line), None
        for decision in self.decisions:
            after = advance(head, decision)
            if number in after.withdrawn - head.withdrawn:
                found = decision
            head = after
        if found is None:
            raise NotFound(f"{self.head.line}@{number} was never withdrawn")
        return found
