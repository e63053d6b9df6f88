"""`init`: a home, a line, the default policy and the native CPU profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate import __version__
from pairgate.app.lines import create, save_profile, set_line
from pairgate.domain.profile import ServingProfile

if TYPE_CHECKING:
    from pairgate.app.slices import CreatedSlice
    from pairgate.app.workspace import Workspace
    from pairgate.domain.release import Head

NATIVE_PROFILE = "native-cpu"


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
    policy: Path | str = "default",
    slice_source: Path | None = None,
    concurrencies: tuple[int, ...] = (1, 8),
) -> Initialised:
    """Make what is missing; run again it changes nothing that exists.

    `policy` is a preset's name or a file; `slice_source` a log that becomes the slice `held-out`.
    """
    ws.registry.lines()  # makes the schema
    if line is None:
        return Initialised(head=None, created=False)
    known = line in [h.line for h in ws.registry.lines()]
    if not known:
        create(ws, line)
    imported = None
    if slice_source is not None:
        from pairgate.app.slices import import_slice

        imported = import_slice(ws, f"{line}-held-out", [slice_source])
    slice_name = imported.row.name if imported else None
    if not known or slice_name is not None:
        profile = save_profile(ws, line, native_profile(concurrencies))
        set_line(ws, line, policy=policy, profile=profile, slice_name=slice_name)
    return Initialised(head=ws.registry.head(line), created=not known, imported=imported)


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
