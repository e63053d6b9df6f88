"""Many calls at once, from a thread of its own: closed loop, or open loop by arrival times.

In both loops the requests of a session run one after the other. In the open loop a request's time
begins when it was due, so that waiting in a queue, here or in the server, is part of its TTFT.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pairgate.engines.server.client import StreamingClient
from pairgate.engines.server.wire import Call, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One call; `number` is the caller's own, `due_s` counts from the begin (open loop only)."""

    number: int
    call: Call
    session: str | None = None
    due_s: float = 0.0


Answer = tuple[Job, Reply]
_Put = Callable[[Answer], None]
_Send = Callable[[Call, float], Awaitable[Reply]]


def closed_loop(client: StreamingClient, jobs: Sequence[Job], concurrency: int) -> Iterator[Answer]:
    """`concurrency` calls in flight, a finished one is replaced at once; answers as they end."""

    async def work(put: _Put) -> None:
        async with client:
            await _closed(jobs, concurrency, client.send, put)

    return _in_thread(work)


def open_loop(client: StreamingClient, jobs: Sequence[Job]) -> Iterator[Answer]:
    """Every call when it is due, however many are in flight then."""

    async def work(put: _Put) -> None:
        async with client:
            await _open(jobs, client.send, put)

    return _in_thread(work)


async def _closed(jobs: Sequence[Job], concurrency: int, send: _Send, put: _Put) -> None:
    waiting, busy = list(jobs), set[str]()
    freed = asyncio.Condition()

    def next_job() -> Job | None:
        for at, job in enumerate(waiting):
            if job.session is None or job.session not in busy:
                return waiting.pop(at)
        return None

    async def worker() -> None:
        while True:
            async with freed:
                await freed.wait_for(
                    lambda: (
                        not waiting
                        or any(j.session is None or j.session not in busy for j in waiting)
                    )
                )
                job = next_job()
                if job is None:
                    return
                if job.session is not None:
                    busy.add(job.session)
            put((job, await send(job.call, time.perf_counter())))
            async with freed:
                busy.discard(job.session or "")
                freed.notify_all()

    await asyncio.gather(*(worker() for _ in range(min(concurrency, len(jobs)))))


async def _open(jobs: Sequence[Job], send: _Send, put: _Put) -> None:
    begin = time.perf_counter()
    before: dict[str, asyncio.Task[None]] = {}

    async def one(job: Job, predecessor: asyncio.Task[None] | None) -> None:
        due = begin + job.due_s
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if predecessor is not None:
            await predecessor
        put((job, await send(job.call, due)))

    tasks = []
    for job in sorted(jobs, key=lambda j: j.due_s):
        task = asyncio.create_task(one(job, before.get(job.session or "")))
        if job.session is not None:
            before[job.session] = task
        tasks.append(task)
    await asyncio.gather(*tasks)


def _in_thread(work: Callable[[_Put], Awaitable[None]]) -> Iterator[Answer]:
    """Run `work` on an event loop in a thread and yield what it puts; leaving the iterator early
    cancels everything that is in flight."""
    results: queue.SimpleQueue[Answer | BaseException | None] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(_as_coroutine(work(results.put)))

    def run() -> None:
        try:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
            results.put(None)
        except BaseException as error:  # handed to the caller's thread
            results.put(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="pairgate-load", daemon=True)
    thread.start()
    try:
        while (item := results.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        with suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        thread.join()


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work
