"""Read what the rules of release look at, in one transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pairgate.domain.freshness import ReleaseRules
from pairgate.domain.situation import Situation

if TYPE_CHECKING:
    from pairgate.domain.profile import ServingProfile
    from pairgate.domain.release import Head
    from pairgate.store.sql import Transaction


def read_situation(view: Transaction) -> Situation:
    """Everything that a rule may look at, read in one transaction."""
    head = view.head
    profiles = tuple(view.profiles())
    found = release_rules(view)
    return Situation(
        head=head,
        decisions=tuple(view.decisions()),
        versions=tuple(view.versions()),
        evidence=tuple(view.evidence()),
        approvals=tuple(view.approvals()),
        rules=found,
        profiles=profiles,
        wanted_profiles=_wanted_profiles(head, profiles, found),
    )


def release_rules(view: Transaction) -> ReleaseRules:
    """From the stored policy document, without the validation that judging needs."""
    if view.head.policy_digest is None:
        return ReleaseRules()
    document = json.loads(view.policy_document(view.head.policy_digest))
    approvals = document["approvals"]
    return ReleaseRules(
        max_age_days=document["max_age_days"],
        verify_max_age_days=document["verify_max_age_days"],
        strict_engine_patch=document["strict_engine_patch"],
        profiles=tuple(document["profiles"]),
        approvals_required=approvals["required"],
        approvals_distinct=approvals["distinct"],
        approvals_count_tags=approvals["count_tags"],
        approvals_names=tuple(approvals.get("names", ())),  # older documents have none
    )


def _wanted_profiles(
    head: Head, profiles: tuple[ServingProfile, ...], found: ReleaseRules
) -> tuple[ServingProfile, ...]:
    """The line's own profile, the others that it is set to, and the newest of each further name
    that the policy lists."""
    own = [p for p in profiles if p.digest == head.profile_digest]
    if not own:
        return ()
    newest = {p.name: p for p in profiles}  # in the order of their numbers
    named = {p.name: p for p in profiles if p.digest in head.profiles}
    named |= {n: newest[n] for n in found.profiles if n in newest and n not in named}
    return (own[0], *(p for name, p in named.items() if name != own[0].name))
