"""One block of requests through one server, with its counters read before and after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pairgate.domain.trace import Finish, RequestTrace
from pairgate.domain.traffic import Request
from pairgate.engines.server.checks import Tally
from pairgate.engines.server.client import StreamingClient
from pairgate.engines.server.dialect import Counters, Dialect, RequestCounts, Uncounted
from pairgate.engines.server.load import Job, closed_loop, open_loop
from pairgate.engines.server.places import Endpoint
from pairgate.engines.server.rounds import refused, trace_of
from pairgate.engines.server.wire import Reply, call_for
from pairgate.errors import Unavailable

# Counters are written a moment after the last answer; what is not there by then is not coming.
_SETTLE_S = 3.0
_SETTLE_STEP_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Closed loop with `concurrency` calls in flight; or, where `arrival_scale` is given, open loop
    at the requests' own arrival times multiplied by it. `counted` false does not ask the server
    for counts of each request."""

    concurrency: int
    arrival_scale: float | None = None
    counted: bool = True


class Replayed:
    """An iterator over the traces of one block; afterwards `moved` is what the server counted, and
    `aside_s` the time that reading its counters took, which is no part of the block.

    Raises `Unavailable` when the server is gone or hangs, `InvalidEvaluation` when its counters
    do not agree with its answers.
    """

    def __init__(
        self,
        dialect: Dialect,
        endpoint: Endpoint,
        load: Load,
        *,
        salt: str,
        watchdog_s: float,
        require_alive: Callable[[Endpoint], None],
    ) -> None:
        self._dialect = dialect
        self._endpoint = endpoint
        self._load = load
        self._salt = salt
        self._watchdog_s = watchdog_s
        self._require_alive = require_alive
        self.moved = Counters()
        self.aside_s = 0.0

    def run(self, requests: Iterable[tuple[int, Request]]) -> Iterator[RequestTrace]:
        """Traces as they finish."""
        asked, jobs = dict(requests), []
        for index, request in asked.items():
            if "ignore_eos" in request.unsupported:
                text = "ignore_eos makes text that no user gets, so it is no evidence"
                yield refused(index, request, text, None, Finish.EXCLUDED)
                continue
            jobs.append(self._job(index, request))
        begin = time.perf_counter()
        before = self._dialect.counters(self._endpoint.url)
        self.aside_s += time.perf_counter() - begin
        tally, n_hung = Tally(), 0
        for job, reply in self._answers(jobs):
            n_hung = n_hung + 1 if reply.hung else 0
            self._require_progress(reply, n_hung)
            counts = self._counts(reply)
            trace = trace_of(
                job.number,
                asked[job.number],
                reply,
                counts,
                max_model_len=self._endpoint.identity.max_model_len,
            )
            tally.add(reply, counts, excluded=not trace.ok)
            yield trace
        begin = time.perf_counter()
        self.moved = self._settled(before, tally)
        self.aside_s += time.perf_counter() - begin
        version = self._endpoint.identity.version
        tally.require_agreement(self.moved, version=version, url=self._endpoint.url)

    def _job(self, index: int, request: Request) -> Job:
        model, scale = self._endpoint.identity.model, self._load.arrival_scale
        return Job(
            number=index,
            call=call_for(request, model=model, seed=None, salt=self._salt),
            session=request.session,
            due_s=0.0 if scale is None else (request.arrival_s or 0.0) * scale,
        )

    def _answers(self, jobs: list[Job]) -> Iterator[tuple[Job, Reply]]:
        client = StreamingClient(self._endpoint.url, watchdog_s=self._watchdog_s)
        if self._load.arrival_scale is not None:
            return open_loop(client, jobs)
        return closed_loop(client, jobs, self._load.concurrency)

    def _counts(self, reply: Reply) -> RequestCounts | None:
        if not self._endpoint.with_draft or reply.error:
            return None
        if not self._load.counted:
            return Uncounted(reason="this server does not count per request")
        return self._dialect.step_counts(reply, version=self._endpoint.identity.version)

    def _require_progress(self, reply: Reply, n_hung: int) -> None:
        """A request that fails is data; a server that is gone is not."""
        broken = reply.error and reply.status in (0, 200) and not reply.hung
        if reply.unreachable or broken:
            self._require_alive(self._endpoint)
        if n_hung >= max(2, self._load.concurrency):
            self._require_alive(self._endpoint)
            raise Unavailable(
                f"the server at {self._endpoint.url} hangs: {n_hung} requests one after the other "
                "made no progress, while its health check answers",
                hint="stored blocks are kept, the same command goes on from them",
            )

    def _settled(self, before: Counters, tally: Tally) -> Counters:
        deadline = time.monotonic() + _SETTLE_S
        while True:
            moved = self._dialect.counters(self._endpoint.url).since(before)
            if tally.settled(moved) or time.monotonic() > deadline:
                return moved
            time.sleep(_SETTLE_STEP_S)
