"""Which evidence a promotion may stand on: a PASS for what is wanted now, and young enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pairgate.domain.profile import ServingProfile
from pairgate.domain.records import EvidenceRow, Verification
from pairgate.errors import EvidenceMissing, EvidenceStale

# How far the clocks of two machines may be apart before what one dated is not believed.
_CLOCKS_APART = timedelta(hours=1)
_MAJOR_MINOR = re.compile(r"\D*(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRules:
    """What a policy says about releases; the rest of it is for `judge`."""

    max_age_days: float = 14.0
    verify_max_age_days: float = 30.0
    strict_engine_patch: bool = False
    profiles: tuple[str, ...] = ()
    approvals_required: int = 0
    approvals_distinct: bool = True
    approvals_count_tags: bool = False
    approvals_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a PASS must be bound to: this pair, on the line as it stands. Evidence for a profile
    beside the line's own is only what was made on a profile of that name."""

    label: str
    pair_digest: str
    policy_digest: str
    slice_digest: str
    profile: ServingProfile
    incumbent_digest: str | None
    is_own_profile: bool = True

    @property
    def what(self) -> str:
        return self.label if self.is_own_profile else f"{self.label} on {self.profile.name}"

    @property
    def command(self) -> str:
        option = "" if self.is_own_profile else f" --profile {self.profile.name}"
        return f"pairgate evaluate {self.label}{option}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Evidence that holds, with what a reader should know of it."""

    row: EvidenceRow
    warnings: tuple[str, ...]


def fresh_pass(
    rows: Iterable[EvidenceRow],
    wanted: Wanted,
    rules: ReleaseRules,
    *,
    at: str,
    profile_of: Callable[[str], ServingProfile],
    name_of: Callable[[str | None], str],
) -> Fresh:
    """The newest PASS that is bound to all of `wanted` and young enough at `at`.

    `profile_of` looks a profile up by digest; `name_of` names a pair digest for people. Raises
    `EvidenceMissing` when there is no PASS or a later FAIL contradicts it, `EvidenceStale` naming
    each part that no longer holds.
    """
    again = f"run: {wanted.command}"
    mine = sorted(
        (r for r in rows if _speaks_of(r, wanted, profile_of)), key=lambda r: r.created_at
    )
    if not mine:
        raise EvidenceMissing(f"{wanted.what} has not been evaluated", hint=again)
    passes = [r for r in mine if r.outcome == "PASS"]
    if not passes:
        newest = mine[-1]
        raise EvidenceMissing(
            f"{wanted.what} has no PASS; its newest evaluation (attempt {newest.attempt}, "
            f"{newest.created_at[:19]}) says {newest.outcome}",
            hint=f"see why with: pairgate show {wanted.label} --report",
        )

    def stale(row: EvidenceRow) -> list[str]:
        return stale_parts(row, wanted, rules, at=at, profile_of=profile_of, name_of=name_of)

    # The best candidate, so that the message names as few reasons as there are.
    best = min(reversed(passes), key=lambda r: len(stale(r)))
    reasons = stale(best)
    if reasons:
        raise EvidenceStale(
            f"the PASS of {wanted.what} of {best.created_at[:19]} no longer holds: "
            + "; ".join(reasons),
            hint=again,
        )
    for later in mine:
        if later.outcome == "FAIL" and later.created_at > best.created_at and not stale(later):
            raise EvidenceMissing(
                f"{wanted.what} passed in attempt {best.attempt}, but failed later in attempt "
                f"{later.attempt} ({later.created_at[:19]})",
                hint=f"see why with: pairgate show {wanted.label} --report",
            )
    return Fresh(row=best, warnings=_warnings(best, wanted))


def _speaks_of(
    row: EvidenceRow, wanted: Wanted, profile_of: Callable[[str], ServingProfile]
) -> bool:
    if row.pair_digest != wanted.pair_digest:
        return False
    return wanted.is_own_profile or profile_of(row.profile_digest).name == wanted.profile.name


def stale_parts(
    row: EvidenceRow,
    wanted: Wanted,
    rules: ReleaseRules,
    *,
    at: str,
    profile_of: Callable[[str], ServingProfile],
    name_of: Callable[[str | None], str],
) -> list[str]:
    """One sentence per part of the binding that is not what is wanted, e.g. `another policy …`."""
    parts = []
    for part in ("policy", "slice"):
        had, has = getattr(row, f"{part}_digest"), getattr(wanted, f"{part}_digest")
        if had != has:
            parts.append(f"it was made under another {part} ({_short(had)}, now {_short(has)})")
    parts += _stale_profile(row, wanted, rules, profile_of)
    if row.incumbent_digest != wanted.incumbent_digest:
        parts.append(
            f"it was compared with {name_of(row.incumbent_digest)}, but production is "
            f"{name_of(wanted.incumbent_digest)}"
        )
    age = _moment(at) - _moment(row.measured_at)
    if age > timedelta(days=rules.max_age_days):
        parts.append(
            f"it is {age.total_seconds() / 86400:.1f} days old, over {rules.max_age_days:g} days"
        )
    if age < -_CLOCKS_APART:
        parts.append(f"it is dated {row.measured_at[:19]}, which is yet to come: a clock is wrong")
    return parts


def check_verified(found: Verification, rules: ReleaseRules, *, label: str, at: str) -> None:
    """Raises `EvidenceStale` when the files were not hashed within the policy's maximum age."""
    age = _moment(at) - _moment(found.at)
    if age > timedelta(days=rules.verify_max_age_days):
        raise EvidenceStale(
            f"the files of {label} were last hashed {age.total_seconds() / 86400:.1f} days ago, "
            f"over {rules.verify_max_age_days:g} days",
            hint=f"run: pairgate verify {label}",
        )
    if age < -_CLOCKS_APART:
        raise EvidenceStale(
            f"the hashing of the files of {label} is dated {found.at[:19]}, which is yet to come: "
            "a clock is wrong, or the record was changed by hand",
            hint=f"set the clock, then run: pairgate verify {label}",
        )


def major_minor(version: str) -> str:
    """`2.13` of `v2.13.1+cpu`; the whole text where there are no two numbers."""
    found = _MAJOR_MINOR.match(version)
    return f"{found[1]}.{found[2]}" if found else version


def _stale_profile(
    row: EvidenceRow,
    wanted: Wanted,
    rules: ReleaseRules,
    profile_of: Callable[[str], ServingProfile],
) -> list[str]:
    now = wanted.profile
    parts = []
    if row.engine != now.engine:
        parts.append(f"it ran on the engine {row.engine}, the profile names {now.engine}")
    elif major_minor(row.engine_version) != major_minor(now.engine_version) or (
        rules.strict_engine_patch and row.engine_version != now.engine_version
    ):
        parts.append(
            f"it ran on {row.engine} {row.engine_version}, the profile names {now.engine_version}"
        )
    if row.hardware_class != now.hardware_class:
        parts.append(f"it ran on {row.hardware_class}, the profile names {now.hardware_class}")
    if not parts and row.profile_digest != now.digest:
        then = profile_of(row.profile_digest)
        if replace(then, engine_version=now.engine_version) != now:
            parts.append(
                f"it was made under another profile ({then.name} {_short(row.profile_digest)}, "
                f"now {now.name} {_short(now.digest)})"
            )
    return parts


def _warnings(row: EvidenceRow, wanted: Wanted) -> tuple[str, ...]:
    if row.engine_version == wanted.profile.engine_version:
        return ()
    return (
        f"the evidence ran on {row.engine} {row.engine_version}, the profile names "
        f"{wanted.profile.engine_version}",
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
