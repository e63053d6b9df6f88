"""The evidence that a promotion would stand on: one PASS per profile that needs one."""

from __future__ import annotations

from dataclasses import replace

from pairgate.domain.freshness import Fresh, Wanted, fresh_pass
from pairgate.domain.pair import PairVersion
from pairgate.domain.situation import Situation
from pairgate.errors import InvalidInput, NotFound


def usable(
    now: Situation, version: PairVersion, *, at: str, profile_digest: str | None = None
) -> tuple[Fresh, ...]:
    """A PASS that holds for each profile that needs one, the line's own first; with
    `profile_digest` for that one alone."""
    head, incumbent = now.head, now.production
    if not (head.policy_digest and head.slice_digest and now.wanted_profiles):
        raise InvalidInput(
            f"line {head.line} does not say yet what it is judged by",
            hint=f"run: pairgate line set {head.line} --policy FILE --slice NAME --profile NAME",
        )
    known = {p.name for p in now.profiles}
    missing = [name for name in now.rules.profiles if name not in known]
    if missing and profile_digest is None:
        raise NotFound(
            f"the policy wants a PASS on the profile {missing[0]!r}, which line {head.line} does "
            "not have",
            hint=f"make it with: pairgate profile set {head.line} {missing[0]} FILE",
        )
    wanted = Wanted(
        label=str(version),
        pair_digest=version.pair_digest,
        policy_digest=head.policy_digest,
        slice_digest=head.slice_digest,
        profile=now.wanted_profiles[0],
        incumbent_digest=incumbent.pair_digest if incumbent else None,
    )
    profiles = now.wanted_profiles if profile_digest is None else (now.profile(profile_digest),)
    return tuple(
        fresh_pass(
            now.evidence,
            replace(wanted, profile=profile, is_own_profile=profile.digest == head.profile_digest),
            now.rules,
            at=at,
            profile_of=now.profile,
            name_of=now.name,
        )
        for profile in profiles
    )
