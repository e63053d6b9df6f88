"""An observation as Prometheus text: to a file of the textfile collector, or over HTTP."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

    from pairgate.domain.observation import Observation

# name -> (help, labels beside the line)
GAUGES = {
    "pairgate_promised_acceptance_rate": ("accepted of proposed tokens in the evidence", ()),
    "pairgate_acceptance_floor": ("what live acceptance is tested against", ()),
    "pairgate_live_acceptance_rate": ("accepted of proposed tokens, all replicas", ()),
    "pairgate_degraded": ("1 when the sequential test says that acceptance was lost", ()),
    "pairgate_production_version": ("the version that is in production", ()),
    "pairgate_replica_up": ("1 when the server answers", ("replica",)),
    "pairgate_replica_acceptance_rate": ("of the newest whole window", ("replica",)),
    "pairgate_replica_serves_production": (
        "1 when the served name carries production's digest, 0 for another, -1 when none does",
        ("replica",),
    ),
    "pairgate_replica_problem": ("1 when something is wrong with it", ("replica",)),
}


class Exporter:
    """Keeps the newest observation where Prometheus finds it."""

    def __init__(self, where: str) -> None:
        """`where` is a port, or a file. Raises `InvalidInput` for a port that is taken."""
        try:
            from prometheus_client import CollectorRegistry, Gauge, start_http_server
        except ImportError:
            raise MissingExtra("prometheus_client", "server") from None
        self._registry: CollectorRegistry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {
            name: Gauge(name, text, ("line", *labels), registry=self._registry)
            for name, (text, labels) in GAUGES.items()
        }
        self._file = None if where.isdigit() else Path(where)
        self.port = None
        self._server = None
        if self._file is None:
            try:
                self._server, self._thread = start_http_server(int(where), registry=self._registry)
            except (OSError, OverflowError) as error:
                raise InvalidInput(f"port {where} cannot be used: {error}") from error
            self.port = self._server.server_port

    def show(self, made: Observation) -> None:
        """Replace what was shown before."""
        for gauge in self._gauges.values():
            gauge.clear()
        for name, labels, value in _values(made):
            self._gauges[name].labels(made.line, *labels).set(value)
        if self._file is not None:
            _write(self._file, self.text())

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def _values(made: Observation) -> Iterator[tuple[str, tuple[str, ...], float]]:
    promised = made.promised
    for name, value in (
        ("pairgate_promised_acceptance_rate", promised.value),
        ("pairgate_acceptance_floor", promised.floor),
        ("pairgate_live_acceptance_rate", made.acceptance_rate),
        ("pairgate_degraded", made.degraded),
        ("pairgate_production_version", promised.version),
    ):
        if value is not None:
            yield name, (), float(value)
    for replica in made.replicas:
        at = (replica.reading.replica,)
        yield "pairgate_replica_up", at, float(not replica.reading.error)
        yield "pairgate_replica_problem", at, float(bool(replica.problem))
        named = replica.pair_digest
        serves = -1.0 if named is None else float(named == promised.pair_digest)
        yield "pairgate_replica_serves_production", at, serves
        rate = None if replica.window is None else replica.window.acceptance_rate
        if rate is not None:
            yield "pairgate_replica_acceptance_rate", at, rate


def _write(path: Path, data: bytes) -> None:
    """In one step: a collector never reads half a file."""
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            os.fchmod(handle, 0o644)
            file.write(data)
        os.replace(staged, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(staged)
        raise
