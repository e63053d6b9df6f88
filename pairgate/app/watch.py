"""`watch`: live acceptance of a line's servers against the evidence of what was promoted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pairgate.app.looking import LookRules, look
from pairgate.app.workspace import now
from pairgate.domain.pair import Method, VersionRef
from pairgate.errors import EvidenceMissing, InvalidInput, Refused, require

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.observation import Observation, Promised, Reading
    from pairgate.domain.pair import PairVersion
    from pairgate.domain.records import EvidenceRow

MARGIN = 0.05
DEGRADATION = "degradation"
"""Kind of the outbox message."""
_N_READERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """`margin` is how far under the evidence's lower bound live acceptance may lie before it
    counts as lost; `floor` replaces both."""

    margin: float = MARGIN
    floor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """Where the servers are: `urls`, or instances of a Prometheus; and what is expected."""

    urls: tuple[str, ...] = ()
    prometheus: str | None = None
    selector: str = ""
    expected: Expectation = field(default_factory=Expectation)
    rules: LookRules = field(default_factory=LookRules)

    def __post_init__(self) -> None:
        require(
            bool(self.urls) != (self.prometheus is not None),
            "servers are named by --metrics URL…, or by --prometheus URL --selector '{…}'",
        )
        require(0.0 < self.rules.alpha < 1.0, f"alpha is {self.rules.alpha}")
        require(self.rules.window_drafts >= 1, "a window holds at least one draft step")


def observe(ws: Workspace, line: str, options: WatchOptions) -> Observation:
    """Take one look, and append it to the line's observations.

    Raises `NotFound`, `EvidenceMissing` where nothing says what to expect, `Refused` where
    production has no draft, `Unavailable` when Prometheus does not answer. A server that does not
    answer is in the observation.
    """
    promised = promise_of(ws, line, options.expected)
    readings = read_all(options)
    store = ws.observations
    made = look(store.newest(line), readings, promised, options.rules, at=now(), line=line)
    store.append(made)
    return made


def promise_of(ws: Workspace, line: str, expected: Expectation) -> Promised:
    """What production promised: its acceptance rate (accepted of proposed tokens) in the evidence
    that it was promoted on, or in newer evidence of it on a serving engine."""
    from pairgate.domain.observation import Promised

    version = production_of(ws, line)
    pair = ws.registry.pair(version.pair_digest)
    if pair.decoding.method is Method.NONE:
        raise Refused(
            f"{version}, which is in production, has no draft: there is nothing to watch",
            hint=f"see pairgate status {line}",
        )
    row = serving_evidence(ws, version)
    value, low = (None, None) if row is None else acceptance_of(ws, row)
    if expected.floor is None and low is None:
        raise EvidenceMissing(
            f"no evidence says what {version} accepts on a serving engine",
            hint=f"evaluate it there (pairgate evaluate {version} --engine vllm), or give --floor",
        )
    floor = expected.floor if expected.floor is not None else (low or 0.0) - expected.margin
    if not 0.0 < floor < 1.0:
        raise InvalidInput(f"the floor {floor:.3f} does not lie between 0 and 1")
    return Promised(
        version=version.number,
        pair_digest=version.pair_digest,
        evaluation_digest=None if row is None else row.digest,
        value=value,
        low=low,
        floor=floor,
        num_speculative_tokens=pair.decoding.num_speculative_tokens,
        engine_version="" if row is None else row.engine_version,
    )


def production_of(ws: Workspace, line: str) -> PairVersion:
    """Raises `NotFound` while nothing is in production."""
    return ws.registry.version(VersionRef(line=line, selector="production"))


def serving_evidence(ws: Workspace, version: PairVersion) -> EvidenceRow | None:
    """The newest evidence of the version on a serving engine: the native engine's counts have
    another definition and are never compared with a server's."""
    rows = [
        r for r in ws.registry.evaluations(version.line, version.number) if r.engine != "native"
    ]
    return max(rows, key=lambda r: r.created_at, default=None)


def read_all(options: WatchOptions) -> tuple[Reading, ...]:
    """All servers, side by side."""
    from pairgate.engines.server.live import read_prometheus, read_replica

    if options.prometheus is not None:
        return read_prometheus(options.prometheus, options.selector)
    with ThreadPoolExecutor(max_workers=min(_N_READERS, len(options.urls))) as pool:
        return tuple(pool.map(read_replica, options.urls))


def send_degradation(ws: Workspace, made: Observation) -> None:
    """Leave a message for the command, the webhook and whoever else is set up, and deliver it."""
    from pairgate.app.outbox import start_delivery

    payload = {
        "kind": DEGRADATION,
        "at": made.at,
        "line": made.line,
        "version": made.promised.version,
        "pair_digest": made.promised.pair_digest,
        "acceptance_rate": made.acceptance_rate,
        "floor": made.promised.floor,
        "problems": list(made.problems),
    }
    ws.registry.decide(made.line, lambda transaction: transaction.enqueue(DEGRADATION, payload))
    start_delivery(ws)


def acceptance_of(ws: Workspace, row: EvidenceRow) -> tuple[float | None, float | None]:
    """(value, lower bound) of accepted of proposed tokens in stored evidence; None where it has
    none."""
    from pairgate.domain.evidence import Estimate

    measured = ws.registry.evaluation(row.digest).evaluation.measurements
    found = measured.find("acceptance_rate.pooled")
    return (found.value, found.low) if isinstance(found, Estimate) else (None, None)


def watched_urls(ws: Workspace, line: str) -> tuple[str, ...]:
    """The servers of the newest look that can be asked by URL."""
    seen = ws.observations.newest(line)
    names = () if seen is None else tuple(r.reading.replica for r in seen.replicas)
    return tuple(n for n in names if n.startswith(("http://", "https://")))
