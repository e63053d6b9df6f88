"""How much of a core the streaming client takes: it must not be what a load test measures.

A server in another process sends every stream one chunk of four tokens every 50 ms, so 256 streams
make 5,120 chunks a second. First the check that every token arrived, then the figures.

    python benchmarks/server_client.py [--streams 256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import Connection

from pairgate.engines.server.client import StreamingClient
from pairgate.engines.server.load import Job, closed_loop
from pairgate.engines.server.wire import COMPLETIONS, Call

N_CHUNKS, GAP_S, TOKENS = 60, 0.05, (1097, 607, 14, 22)


def _event(value: object) -> bytes:
    text = b"data: " + json.dumps(value).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(text), text)


def _choice(finish: str | None) -> dict[str, object]:
    choice = {"index": 0, "text": " Linux 2.6", "token_ids": TOKENS, "finish_reason": finish}
    return {"id": "cmpl-8bc85b698a8ef75a", "object": "text_completion", "choices": [choice]}


CHUNK, LAST = _event(_choice(None)), _event(_choice("length"))
USAGE = _event(
    {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": N_CHUNKS * len(TOKENS)}}
)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Server(asyncio.Protocol):
    """Answers every POST with the same stream; no framework, so that it is not the bottleneck."""

    def __init__(self) -> None:
        self.waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        head, found, body = self.waiting.partition(b"\r\n\r\n")
        if not found:
            return
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        if len(body) >= length:
            self.waiting = b""
            self.task = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        write = self.transport.write  # type: ignore[attr-defined]
        write(HEAD)
        for i in range(N_CHUNKS):
            await asyncio.sleep(GAP_S)
            write(CHUNK if i < N_CHUNKS - 1 else LAST)
        write(USAGE + DONE)


def serve(port_to: Connection) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Server, "127.0.0.1", 0, backlog=1024)
        port_to.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    body = json.dumps({"prompt": "x" * 400}).encode()
    jobs = [
        Job(number=i, call=Call(path=COMPLETIONS, body=body))
        for i in range(asked.streams * asked.rounds)
    ]
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    answers = list(closed_loop(StreamingClient(url, watchdog_s=60.0), jobs, asked.streams))
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    server.terminate()

    wrong = [r.error or len(r.token_ids) for _, r in answers if len(r.token_ids) != N_CHUNKS * 4]
    if len(answers) != len(jobs) or wrong:
        print(f"{len(jobs)} streams asked, {len(answers)} answered, wrong: {wrong[:3]}")
        return 1
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    n_chunks = len(jobs) * N_CHUNKS
    ideal_s = asked.rounds * N_CHUNKS * GAP_S
    print(f"{asked.streams} streams, {n_chunks} chunks, {wall_s:.1f} s of at least {ideal_s:.1f} s")
    print(f"client: {cpu_s / wall_s:.0%} of one core, {cpu_s / n_chunks * 1e6:.0f} us per chunk")
    return 0


if __name__ == "__main__":
    sys.exit(main())
