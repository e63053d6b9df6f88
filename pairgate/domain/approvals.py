"""Whether enough people agreed to an evaluation."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from pairgate.domain.freshness import ReleaseRules
from pairgate.domain.records import UNVERIFIED_TAG, Approval
from pairgate.domain.release import Actor
from pairgate.errors import Refused


def approved(
    approvals: Iterable[Approval], rules: ReleaseRules, promoter: Actor, *, label: str
) -> None:
    """Raises `Refused` unless enough people agreed to this evaluation, and to each name that the
    policy lists.

    With `distinct` they differ from the promoter and from each other, and a tag without an
    author counts for nobody.
    """
    required = max(rules.approvals_required, len(rules.approvals_names))
    if required == 0:
        return
    counted = [a for a in approvals if _counts(a, rules, promoter)]
    people = {person(a.actor) if rules.approvals_distinct else (a.actor, a.name) for a in counted}
    others = " by others than the promoter" if rules.approvals_distinct else ""
    if len(people) < required:
        raise Refused(
            f"{label} has {len(people)} of {required} approvals{others}", hint=_hint(rules, label)
        )
    said = {n: {person(a.actor) for a in counted if a.name == n} for n in rules.approvals_names}
    missing = [name for name, actors in said.items() if not actors]
    if missing:
        raise Refused(
            f"{label} has no approval for {', '.join(missing)}{others}", hint=_hint(rules, label)
        )
    if rules.approvals_distinct and not _each_by_another(said):
        raise Refused(
            f"{label} needs different people for {', '.join(said)}", hint=_hint(rules, label)
        )


def person(name: str) -> str:
    """Who a name means: the same whatever its case or its source, since one person may act as OS
    user here and as database role there."""
    return unicodedata.normalize("NFKC", name).casefold().strip()


def _counts(approval: Approval, rules: ReleaseRules, promoter: Actor) -> bool:
    if approval.identity_source == UNVERIFIED_TAG:
        return rules.approvals_count_tags and not rules.approvals_distinct
    return not (rules.approvals_distinct and person(approval.actor) == person(promoter.name))


def _each_by_another(said: Mapping[str, set[str]]) -> bool:
    """Whether every name can have a person of its own (names are few: all ways are tried)."""
    if not said:
        return True
    name, *rest = said
    return any(_each_by_another({n: said[n] - {actor} for n in rest}) for actor in said[name])


def _hint(rules: ReleaseRules, label: str) -> str:
    what = rules.approvals_names[0] if len(rules.approvals_names) == 1 else "WHAT"
    return f"somebody who agrees runs: pairgate approve {label} --name {what}"
