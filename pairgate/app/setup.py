"""`init`: a home, a line, the default policy and the native CPU profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate import __version__
from pairgate.app.lines import create, read_policy, save_profile, set_line
from pairgate.domain.pair import check_line_name
from pairgate.domain.profile import ServingProfile
from pairgate.domain.release import Head
from pairgate.errors import InvalidInput

if TYPE_CHECKING:
    from pairgate.app.slices import CreatedSlice
    from pairgate.app.workspace import Workspace

NATIVE_PROFILE = "native-cpu"
DEFAULT_CONCURRENCIES = (1, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised:
    """What `init` found or made; `imported` is the slice when a log was given."""

    head: Head | None
    created: bool
    imported: CreatedSlice | None = None


def init(
    ws: Workspace,
    line: str | None,
    *,
    policy: Path | str | None = None,
    slice_source: Path | None = None,
    concurrencies: tuple[int, ...] | None = None,
) -> Initialised:
    """Make what is missing, or complete a line that lacks a part; it never changes what is set.

    `policy` is a preset's name or a file (`default` where the line has none), `slice_source` a log
    that becomes the slice `LINE-held-out`, `concurrencies` those of the profile (1 and 8 where the
    line has none). Every option is read before anything is written. Raises `InvalidInput` when
    an option asks for another policy, profile or slice than the line has.
    """
    known = {h.line: h for h in ws.registry.lines()}  # makes the schema
    if line is None:
        return Initialised(head=None, created=False)
    check_line_name(line)
    head = known.get(line, Head(line=line))
    wanted = None if policy is None and head.policy_digest else read_policy(policy or "default")
    profile = (
        None
        if concurrencies is None and head.profile_digest
        else native_profile(concurrencies or DEFAULT_CONCURRENCIES)
    )
    _unchanged(line, "policy", head.policy_digest, wanted.digest if wanted else None)
    _unchanged(line, "profile", head.profile_digest, profile.digest if profile else None)
    imported = None if slice_source is None else _imported(ws, line, slice_source)
    _unchanged(line, "slice", head.slice_digest, imported.row.digest if imported else None)
    if line not in known:
        create(ws, line)
    set_line(
        ws,
        line,
        policy=wanted,
        profile=save_profile(ws, line, profile) if profile else None,
        slice_name=imported.row.digest if imported else None,
    )
    return Initialised(head=ws.registry.head(line), created=line not in known, imported=imported)


def _unchanged(line: str, part: str, is_set: str | None, wanted: str | None) -> None:
    if is_set is not None and wanted is not None and is_set != wanted:
        raise InvalidInput(
            f"line {line} has another {part} already; init does not change it",
            hint=f"change it, as a decision in its history, with: pairgate line set {line} "
            f"--{part} …",
        )


def _imported(ws: Workspace, line: str, source: Path) -> CreatedSlice:
    from pairgate.app.slices import import_slice

    return import_slice(ws, f"{line}-held-out", [source])


def native_profile(concurrencies: tuple[int, ...]) -> ServingProfile:
    """The embedded default: our engine on this machine's CPU."""
    from pairgate.engines.hardware import cpu_hardware_class

    return ServingProfile(
        name=NATIVE_PROFILE,
        engine="native",
        engine_version=__version__,
        hardware_class=cpu_hardware_class(),
        concurrencies=concurrencies,
    )
