"""Which engine a serving profile names, and how it is reached on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairgate.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

    from pairgate.domain.profile import ServingProfile
    from pairgate.engines.server.dialect import Dialect
    from pairgate.engines.server.places import Attachment
    from pairgate.ports import Engine

SERVERS = ("vllm",)
"""Serving engines that pairgate starts or attaches to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccess:
    """How this machine reaches a serving engine; no part of the profile, so of no digest.

    `python` is the interpreter of the environment that holds the server, `command` what starts it
    instead, `attachment` are servers that run already. `say` tells people what takes its time.
    """

    python: Path | None = None
    command: str | None = None
    attachment: Attachment | None = None
    say: Callable[[str], None] | None = None


def engine_for(profile: ServingProfile, access: EngineAccess | None = None) -> Engine:
    """The engine of `profile`; raises `Refused` for one that this release cannot run.

    A profile of this machine's CPU class runs on the CPU, also where there is a GPU: evidence
    must come from the hardware that it is for.
    """
    if profile.engine == "native":
        from pairgate.engines.hardware import cpu_hardware_class
        from pairgate.engines.native import NativeEngine

        on_cpu = profile.hardware_class == cpu_hardware_class()
        return NativeEngine(device="cpu" if on_cpu else None)
    if profile.engine in SERVERS:
        return _server_engine(profile, access or EngineAccess())
    raise Refused(
        f"profile {profile.name} names the engine {profile.engine!r}, which this release of "
        "pairgate cannot run",
        hint=f"it runs profiles whose engine is native or one of: {', '.join(SERVERS)}; a pair "
        "for another serving engine can be registered and promoted with --override REASON",
    )


def _server_engine(profile: ServingProfile, access: EngineAccess) -> Engine:
    from pairgate.engines.server import Attached, ServerEngine, Started
    from pairgate.engines.server.places import Places, launch_with

    dialect = dialect_of(profile.engine)
    places: Places
    if access.attachment is not None:
        places = Attached(dialect, access.attachment)
    else:
        launch = launch_with(dialect, python=access.python, command=access.command)
        places = Started(dialect, profile, launch, say=access.say)
    return ServerEngine(dialect, places, profile)


def dialect_of(engine: str) -> Dialect:
    """The adapter of a serving engine."""
    from pairgate.engines.server.vllm import VllmDialect

    return {"vllm": VllmDialect}[engine]()
