"""What the registry says about things it keeps: plain rows, readable without decoding evidence."""

from __future__ import annotations

from dataclasses import dataclass

UNVERIFIED_TAG = "unverified (MLflow tag)"
"""Identity source of an approval that is a tag in MLflow: it has no author."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRow:
    """One stored evaluation: what its verdict is bound to, and the outcome (`PASS`, `FAIL`, …).

    `folder` holds traces, verdict and report. `measured_at` is when the replay began and starts
    the age of the evidence; judging stored traces again has a new `created_at` only.
    """

    digest: str
    line: str
    version: int
    attempt: int
    alpha: float
    outcome: str
    pair_digest: str
    target_digest: str
    policy_digest: str
    slice_digest: str
    profile_digest: str
    engine: str
    engine_version: str
    hardware_class: str
    incumbent_digest: str | None
    recommendation: str
    folder: str
    measured_at: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRow:
    """A slice of traffic without its texts; `domains` are (domain, number of requests)."""

    digest: str
    name: str
    n_requests: int
    domains: tuple[tuple[str, int], ...]
    texts_digest: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """One stored version of a serving profile: `name@number`."""

    line: str
    name: str
    number: int
    digest: str
    created_at: str

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """When the files of a pair were last hashed, and what was wrong with them ('' is nothing)."""

    pair_digest: str
    at: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where content lies that was not copied, and how its holder names this state of it.

    `version_id` is a S3 VersionId or ETag, a commit, or a local file's times; `hashed_by` says
    how the digest is known, e.g. `read once` or `ChecksumSHA256 of S3`.
    """

    digest: str
    uri: str
    size: int
    version_id: str
    hashed_by: str
    recorded_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One person's yes to one evaluation; `name` says to what (e.g. `safety`)."""

    evaluation_digest: str
    line: str
    version: int
    name: str
    actor: str
    identity_source: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one target has of one message.

    `waiting` is tried again from `next_try_at` on ('' is at once), `held` when a person says so;
    `done` and `dropped` never again.
    """

    target: str
    state: str = "waiting"
    n_tries: int = 0
    last_error: str = ""
    next_try_at: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """What waits for the outside world. `payload` is JSON text; `deliveries` are those that were
    tried, by target."""

    id: int
    line: str
    kind: str
    payload: str
    created_at: str
    deliveries: tuple[Delivery, ...] = ()

    def delivery(self, target: str) -> Delivery:
        """How it stands with this target; one that never tried is waiting."""
        for found in self.deliveries:
            if found.target == target:
                return found
        return Delivery(target=target)
