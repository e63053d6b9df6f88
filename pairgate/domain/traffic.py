"""Traffic: requests as they were sent, and a slice as a frozen, digested set of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pairgate.domain.canonical import canonical_json, sha256_digest
from pairgate.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of one request; temperature 0 is greedy, top_k 0 and top_p 1 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        require(0 <= self.temperature <= 100, f"temperature {self.temperature} is not in 0 to 100")
        require(0.0 < self.top_p <= 1.0, f"top_p {self.top_p} is not in (0, 1]")
        require(self.top_k >= 0, f"top_k {self.top_k} is negative")
        require(0.0 <= self.min_p <= 1.0, f"min_p {self.min_p} is not in [0, 1]")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. `body` is the JSON text as it was sent; the other fields are read from it.

    Exactly one of `text`, `token_ids`, `messages` (JSON text of the chat messages) is set.
    `unsupported` names parameters of the body that change the output and that an engine has to
    honour or to report (penalties, guided decoding, tools, …).
    """

    id: str
    domain: str
    body: str
    max_tokens: int
    sampling: Sampling
    session: str | None = None
    arrival_s: float | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: str | None = None
    stop: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = [x for x in (self.text, self.token_ids, self.messages) if x is not None]
        require(len(given) == 1, f"request {self.id}: give one of text, token ids, messages")
        require(self.max_tokens >= 1, f"request {self.id}: max_tokens is {self.max_tokens}")
        require(self.domain, f"request {self.id}: the domain is empty")

    @property
    def digest(self) -> str:
        # max_tokens is here too, because a body may leave it to a default.
        return sha256_digest(
            canonical_json(
                [self.id, self.domain, self.session, self.arrival_s, self.max_tokens, self.body]
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSlice:
    """Requests in the order of the log; the digest covers every body, name and arrival."""

    name: str
    requests: tuple[Request, ...]

    def __post_init__(self) -> None:
        require(self.requests, f"slice {self.name} holds no requests")
        twice = [i for i, n in Counter(r.id for r in self.requests).items() if n > 1]
        require(not twice, f"slice {self.name}: request ids occur twice: {twice[:5]}")

    @property
    def digest(self) -> str:
        return sha256_digest(canonical_json([r.digest for r in self.requests]))

    @property
    def n_by_domain(self) -> dict[str, int]:
        return dict(sorted(Counter(r.domain for r in self.requests).items()))
