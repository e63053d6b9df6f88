"""Which engine a serving profile names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairgate.errors import Refused

if TYPE_CHECKING:
    from pairgate.domain.profile import ServingProfile
    from pairgate.ports import Engine


def engine_for(profile: ServingProfile) -> Engine:
    """The engine of `profile`; raises `Refused` for one that this release cannot run."""
    if profile.engine == "native":
        from pairgate.engines.native import NativeEngine

        return NativeEngine()
    raise Refused(
        f"profile {profile.name} names the engine {profile.engine!r}, which this release of "
        "pairgate cannot run",
        hint="use a profile of the native engine, or give evidence from it by hand review",
    )
