"""Lines and what they are judged by: policy, slice and serving profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate import promote as rules
from pairgate.app.actor import current_actor
from pairgate.app.workspace import now
from pairgate.domain.profile import check_profile_name
from pairgate.domain.situation import Ask, Situation
from pairgate.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.policy import Policy
    from pairgate.domain.profile import ServingProfile
    from pairgate.domain.records import ProfileRow
    from pairgate.domain.release import Actor, Decision, Head
    from pairgate.store.sql import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSet:
    """The line after `set_line`; `decision` is None when it was so already."""

    head: Head
    decision: Decision | None


def create(ws: Workspace, name: str) -> Head:
    """A line without decisions; raises `Conflict` when it exists."""
    return ws.registry.create_line(name, now())


def set_line(
    ws: Workspace,
    line: str,
    *,
    policy: Policy | Path | str | None = None,
    slice_name: str | None = None,
    profile: str | Sequence[str] | None = None,
    reason: str = "",
    actor: Actor | None = None,
) -> LineSet:
    """What the line is judged by from now on, as a decision; None keeps what is set.

    `policy` is one that is loaded, a file or a preset, `slice_name` a name or a digest, `profile`
    NAME or NAME@N, or several of them: the line is served on exactly these, and the first is its
    own. Raises `NotFound`, `PolicyError`.
    """
    ws.registry.head(line)
    policy_digest = None if policy is None else save_policy(ws, read_policy(policy))
    slice_digest = None if slice_name is None else ws.registry.slice_(slice_name).digest
    named = (profile,) if isinstance(profile, str) else tuple(profile or ())
    profiles = _profile_digests(ws, line, named)
    ask = Ask(by=actor or current_actor(ws), at=now(), reason=reason)

    def body(transaction: Transaction) -> LineSet:
        situation = Situation(head=transaction.head, decisions=(), versions=())
        decision = rules.setting(
            situation,
            ask,
            policy_digest=policy_digest,
            slice_digest=slice_digest,
            profile_digest=profiles[0] if profiles else None,
            profiles=profiles[1:],
        )
        if decision is not None:
            decision = transaction.append(decision)
        return LineSet(head=transaction.head, decision=decision)

    return ws.registry.decide(line, body)


def _profile_digests(ws: Workspace, line: str, named: tuple[str, ...]) -> tuple[str, ...]:
    rows = [find_profile(ws, line, text) for text in named]
    names = [row.name for row in rows]
    if len(set(names)) < len(names):
        raise InvalidInput(
            f"a line is served on one version of a profile at a time: {', '.join(named)}",
            hint="name each profile once",
        )
    return tuple(row.digest for row in rows)


def read_policy(source: Policy | Path | str) -> Policy:
    """A policy as it is, a preset's name, else a file."""
    from pairgate.domain.policy import Policy
    from pairgate.policyfile import PRESETS, load_policy, preset

    if isinstance(source, Policy):
        return source
    if isinstance(source, str) and source in PRESETS:
        return preset(source)
    return load_policy(Path(source))


def save_policy(ws: Workspace, policy: Policy) -> str:
    """Store the whole policy; returns its digest."""
    from pairgate.policyfile import policy_document

    ws.registry.save_policy(policy.digest, policy.name, policy_document(policy), now())
    return policy.digest


def save_profile(ws: Workspace, line: str, profile: ServingProfile) -> str:
    """Store a profile on the line; returns `NAME@N`, with the same N for the same content."""
    check_profile_name(profile.name)
    number = ws.registry.save_profile(line, profile, now())
    return f"{profile.name}@{number}"


def profile_labels(ws: Workspace, line: str, digests: Sequence[str | None]) -> tuple[str, ...]:
    """`NAME@N` of each digest that the line has a profile for."""
    rows = {r.digest: str(r) for r in ws.registry.profiles(line)}
    return tuple(rows.get(d, d) for d in digests if d is not None)


def find_profile(ws: Workspace, line: str, text: str) -> ProfileRow:
    """NAME is the newest of that name, NAME@N one of them. Raises `NotFound`."""
    name, _, number = text.partition("@")
    rows = ws.registry.profiles(line)
    found = [r for r in rows if r.name == name and number in ("", str(r.number))]
    if not found:
        known = ", ".join(str(r) for r in rows) or "none yet"
        raise NotFound(f"line {line} has no profile {text!r}", hint=f"profiles: {known}")
    return found[-1]
