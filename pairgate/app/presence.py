"""Are the files of a version there? Asked before the line is locked; reads no contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pairgate.app.situation import release_rules
from pairgate.app.workspace import now
from pairgate.domain.canonical import is_digest
from pairgate.domain.freshness import check_verified
from pairgate.errors import IntegrityError, PairgateError, Unavailable

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.pair import Pair, PairVersion

Presence = Callable[["Workspace", "Pair"], tuple[str, ...]]
"""presence(ws, pair): what is missing or has another size: digests, or lines on references."""


def check_files(
    ws: Workspace,
    version: PairVersion,
    override: str | None,
    presence: Presence | None,
    at: str,
) -> tuple[str, ...]:
    """Before a promotion: everything is there and was hashed lately. An override may be late,
    never incomplete."""
    version.require_files()
    verification = ws.registry.verification(version.pair_digest)
    if verification.problem:
        raise IntegrityError(
            f"the files of {version} are damaged: {verification.problem}",
            hint=f"register the same files again, or run: pairgate verify {version}",
        )
    with ws.registry.snapshot(version.line) as view:
        found = release_rules(view)
    warnings: tuple[str, ...] = ()
    try:
        check_verified(verification, found, label=str(version), at=at)
    except PairgateError as error:
        if override is None:
            raise
        warnings = (error.message,)
    check_present(ws, version, presence, reachable=True)
    return warnings


def check_present(
    ws: Workspace, version: PairVersion, presence: Presence | None, *, reachable: bool = False
) -> tuple[str, ...]:
    """`check_pair_present` for the pair of a version, named by its version. Damage that was found
    earlier is a warning: at three in the morning it may still be the better one."""
    pair = ws.registry.pair(version.pair_digest)
    unchecked = check_pair_present(ws, pair, presence, label=str(version), reachable=reachable)
    found = ws.registry.verification(version.pair_digest)
    if not found.problem:
        return unchecked
    damage = f"the files of {version} were damaged when hashed at {found.at[:19]}: {found.problem}"
    return (*unchecked, damage)


def check_pair_present(
    ws: Workspace,
    pair: Pair,
    presence: Presence | None,
    *,
    label: str = "the target",
    reachable: bool = False,
) -> tuple[str, ...]:
    """Raises `IntegrityError` for a blob that is known to be missing. A store that does not
    answer is a warning, unless it must be `reachable`."""
    try:
        ws.blobs.require_reachable()
        missing = (presence or _stored_presence)(ws, pair)
    except (Unavailable, OSError) as error:
        if reachable:
            raise Unavailable(f"the files of {label} could not be checked: {error}") from error
        return (f"the files of {label} could not be checked: {error}",)
    if missing:
        lost = "; ".join(line for line in missing if not is_digest(line))
        if lost:  # what others changed is shown by status from now on
            ws.registry.record_verification(pair.digest, now(), lost)
        raise IntegrityError(
            f"{len(missing)} files of {label} are missing or changed, first {missing[0]}",
            hint="restore them, or register the same files again",
        )
    return ()


def _stored_presence(ws: Workspace, pair: Pair) -> tuple[str, ...]:
    from pairgate.app.register import presence

    return presence(ws, pair)


def index_pair(ws: Workspace, pair: Pair) -> tuple[str, ...]:
    """List the target-alone pair in the store: two small blobs, no file of a model."""
    try:
        ws.blobs.require_reachable()
        ws.blobs.add_bytes(pair.config_blob())
        ws.blobs.add_manifest(pair.manifest())
    except (Unavailable, OSError) as error:
        return (f"the store could not list {pair.digest}: {error}",)
    return ()
