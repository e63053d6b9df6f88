"""What differs between serving engines: their words, their counts and how they are started.

An adapter is one module with a class of this Protocol. Its counting definition stands beside its
id; numbers under different definitions are never compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.profile import ServingProfile
from pairgate.engines.server.wire import Reply
from pairgate.errors import InvalidEvaluation
from pairgate.ports import EngineLimits, MaterialisedPair


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCounts:
    """One request's draft rounds [r] as the server reports them, in order, before any cut."""

    drafted: NDArray[np.int16]
    accepted: NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """The server says nothing about this request's drafting, and why that is so."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """What the server says about this request's drafting cannot be true."""

    reason: str


RequestCounts = StepCounts | Uncounted | Contradiction


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A server's own totals since it started; None where it does not have one."""

    n_finished: int | None = None
    n_running: int | None = None
    n_waiting: int | None = None
    n_generated: int | None = None
    n_drafts: int | None = None
    n_draft_tokens: int | None = None
    n_accepted: int | None = None
    n_preemptions: int | None = None

    @property
    def n_in_flight(self) -> int:
        return (self.n_running or 0) + (self.n_waiting or 0)

    def since(self, before: Counters) -> Counters:
        """What was added since `before`; running and waiting stay as they are."""
        values: dict[str, int | None] = {}
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(before, field.name)
            gauge = field.name in ("n_running", "n_waiting")
            values[field.name] = now if gauge or now is None or then is None else now - then
        if any(v is not None and v < 0 for v in values.values()):
            raise InvalidEvaluation(
                "the server's counters went back during the block: it was restarted",
                hint="run the same command again: stored blocks are kept",
            )
        return Counters(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a server says about itself; "" and None where it says nothing. `resolved` is text that
    goes into the evidence as it is."""

    version: str
    model: str
    model_root: str = ""
    max_model_len: int | None = None
    resolved: tuple[tuple[str, str], ...] = ()


class Dialect(Protocol):
    """One kind of server."""

    @property
    def name(self) -> str: ...

    @property
    def definition(self) -> str: ...

    @property
    def health_path(self) -> str: ...

    def identity(self, base_url: str) -> Identity:
        """Ask a running server. Raises `Unavailable`."""
        ...

    def counters(self, base_url: str) -> Counters: ...

    def step_counts(self, reply: Reply, *, version: str) -> RequestCounts:
        """The rounds of a whole answer. Raises `InvalidEvaluation` naming the version and the
        field where the server's words are not those that this adapter knows."""
        ...

    def command(
        self,
        launch: Sequence[str],
        pair: MaterialisedPair,
        profile: ServingProfile,
        limits: EngineLimits,
        *,
        port: int,
        with_draft: bool,
    ) -> tuple[str, ...]:
        """The command that starts a server of the pair, or of its target alone."""
        ...

    def default_launch(self, python: Path) -> tuple[str, ...]:
        """How the server is started with the Python of its own environment."""
        ...

    def environment(self, pair: MaterialisedPair, limits: EngineLimits) -> dict[str, str]:
        """Variables for the server, where the user's own environment does not set them."""
        ...
