"""Which engine a serving profile names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairgate.errors import Refused

if TYPE_CHECKING:
    from pairgate.domain.profile import ServingProfile
    from pairgate.ports import Engine


def engine_for(profile: ServingProfile) -> Engine:
    """The engine of `profile`; raises `Refused` for one that this release cannot run.

    A profile of this machine's CPU class runs on the CPU, also where there is a GPU: evidence
    must come from the hardware that it is for.
    """
    if profile.engine == "native":
        from pairgate.engines.hardware import cpu_hardware_class
        from pairgate.engines.native import NativeEngine

        on_cpu = profile.hardware_class == cpu_hardware_class()
        return NativeEngine(device="cpu" if on_cpu else None)
    raise Refused(
        f"profile {profile.name} names the engine {profile.engine!r}, which this release of "
        "pairgate cannot run",
        hint="it runs profiles whose engine is `native`; a pair for a serving engine can be "
        "registered and promoted with --override REASON",
    )
