"""What a line is judged by: its policy, slice and serving profile, resolved from digests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pairgate.errors import InvalidInput

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.policy import Policy
    from pairgate.domain.profile import ServingProfile
    from pairgate.domain.release import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSetting:
    """The values behind a line's policy and profile digests; its slice is loaded for a replay
    only, because its texts may be gone while its verdicts stand."""

    head: Head
    policy: Policy
    profile: ServingProfile


def line_setting(ws: Workspace, line: str, profile: str | None = None) -> LineSetting:
    """With `profile` (NAME or NAME@N) as if that were the line's own; of a profile that the line
    is served on, NAME is the version that it is set to.

    Raises `InvalidInput` naming what `pairgate line set` still has to set, `NotFound`.
    """
    from pairgate.policyfile import policy_from_document

    head = ws.registry.head(line)
    if profile is not None:
        head = replace(head, profile_digest=_profile_digest(ws, head, profile))
    parts = {
        "--policy": head.policy_digest,
        "--slice": head.slice_digest,
        "--profile": head.profile_digest,
    }
    missing = [option for option, digest in parts.items() if digest is None]
    if missing:
        raise InvalidInput(
            f"line {line} has no {', '.join(m.removeprefix('--') for m in missing)} yet",
            hint=f"set it with: pairgate line set {line} {' '.join(m + ' …' for m in missing)}",
        )
    assert head.policy_digest and head.slice_digest and head.profile_digest
    return LineSetting(
        head=head,
        policy=policy_from_document(ws.registry.policy_document(head.policy_digest)),
        profile=ws.registry.profile(head.profile_digest),
    )


def _profile_digest(ws: Workspace, head: Head, text: str) -> str:
    from pairgate.app.lines import find_profile

    used = (head.profile_digest, *head.profiles)
    for row in ws.registry.profiles(head.line):
        if row.digest in used and row.name == text:
            return row.digest
    return find_profile(ws, head.line, text).digest
