"""A server that answers as vLLM 0.32 does (recorded answers beside it), without a model.

Tokens are a function of the prompt and the position, so both arms write the same. Draft steps are
drawn per prompt. In process (`FakeVllm`) it can be told to misbehave; run as a script it takes
vLLM's arguments:

    python fake_vllm.py --port 8000 --model DIR --served-model-name NAME [--speculative-config JSON]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

VERSION = "0.32.0"
_EOS = 0


@dataclass(kw_only=True)
class FakeVllm:
    """One server. `fault(n)` names what is wrong with the n-th completion request, or ""."""

    k: int = 0
    acceptance: float = 0.8
    step_s: float = 0.001
    prefill_s: float = 0.001
    max_model_len: int = 512
    model: str = "m"
    version: str = VERSION
    fault: Callable[[int], str] = lambda n: ""
    joins_chunks: bool = False
    slots: int = 256
    n_requests: int = 0
    sessions_in_flight: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("finished", "generated", "drafts", "draft_tokens", "accepted"), 0
        )
    )

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._complete)
        self._free = asyncio.Semaphore(self.slots)
        self._n_running = 0
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self.model, "root": "/models/m", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, request: web.Request) -> web.Response:
        c, at = self.counters, '{engine="0",model_name="m"}'
        lines = [
            f'vllm:request_success_total{{engine="0",finished_reason="length"}} {c["finished"]}',
            f"vllm:generation_tokens_total{at} {c['generated']}",
            f"vllm:num_requests_running{at} {self._n_running}",
            f"vllm:num_requests_waiting{at} 0.0",
            f"vllm:num_preemptions_total{at} 0.0",
            'vllm:cache_config_info{block_size="128",enable_prefix_caching="True"} 1.0',
        ]
        if self.k:
            lines += [
                f"vllm:spec_decode_num_drafts_total{at} {c['drafts']}",
                f"vllm:spec_decode_num_draft_tokens_total{at} {c['draft_tokens']}",
                f"vllm:spec_decode_num_accepted_tokens_total{at} {c['accepted']}",
            ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.n_requests += 1
        fault = self.fault(self.n_requests)
        if fault in ("429", "500"):
            return web.json_response({"error": {"message": "busy"}}, status=int(fault))
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else _tokens(prompt)
        if not ids or len(ids) >= self.max_model_len:
            return web.json_response({"error": {"message": "prompt length"}}, status=400)
        async with self._free:
            self._n_running += 1
            try:
                return await self._stream(request, body, ids, fault)
            finally:
                self._n_running -= 1

    async def _stream(
        self, request: web.Request, body: dict[str, Any], ids: list[int], fault: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        answer = self._answer(body, ids)
        await asyncio.sleep(self.prefill_s)
        for i, chunk in enumerate(answer.chunks):
            if i:
                await asyncio.sleep(self.step_s)
            if fault and i == max(1, len(answer.chunks) // 2):
                if fault == "hang":
                    await asyncio.sleep(3600)
                if fault == "garbage":
                    await response.write(b"data: {not json\n\n")
                    return response
                if fault == "truncated":
                    assert request.transport is not None
                    request.transport.close()
                    return response
                if fault == "die":
                    # As a killed process looks from outside.
                    sys.stdout.flush()
                    import os

                    os._exit(9)
            last = i == len(answer.chunks) - 1
            choice = {
                "index": 0,
                "text": "x",
                "token_ids": chunk,
                "finish_reason": answer.reason if last else None,
                "stop_reason": None,
            }
            await _event(response, {"id": "cmpl-1", "choices": [choice]})
        await _event(response, self._final(answer, ids, fault))
        await response.write(b"data: [DONE]\n\n")
        self._count(answer)
        await response.write_eof()
        return response

    def _answer(self, body: dict[str, Any], ids: list[int]) -> Answer:
        rng = random.Random(json.dumps(ids))
        limit = min(int(body["max_tokens"]), self.max_model_len - len(ids))
        seed = body.get("seed") if body.get("temperature") else None
        words = random.Random(f"{ids} {seed}")
        tokens = [words.randint(1, 250) for _ in range(limit)]
        sizes, drafted, accepted, n = [1], [], [], 1
        while n < limit:
            room = self.max_model_len - len(ids) - n
            k = min(self.k, max(0, room - 1))
            a = 0
            while a < k and rng.random() < self.acceptance:
                a += 1
            if k:
                drafted.append(k)
                accepted.append(a)
            sizes.append(min(a + 1, limit - n))
            n += sizes[-1]
        chunks, at = [], 0
        for size in sizes:
            chunks.append(tokens[at : at + size])
            at += size
        if self.joins_chunks and len(chunks) > 3:
            chunks = [chunks[0], [*chunks[1], *chunks[2]], *chunks[3:]]
        return Answer(chunks=chunks, drafted=drafted, accepted=accepted, reason="length")

    def _final(self, answer: Answer, ids: list[int], fault: str) -> dict[str, Any]:
        n = sum(map(len, answer.chunks))
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": n,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        final: dict[str, Any] = {"choices": [], "usage": usage}
        if not self.k:
            return final
        counts: dict[str, Any] = {
            "num_spec_steps": len(answer.drafted),
            "num_draft_tokens": sum(answer.drafted),
            "num_accepted_draft_tokens": sum(answer.accepted),
            "num_spec_tokens": self.k,
        }
        if answer.drafted:
            counts |= {
                "per_step_drafted": list(answer.drafted),
                "per_step_accepted": list(answer.accepted),
            }
        if fault == "too many" and answer.drafted:
            counts["per_step_accepted"][0] += self.k + 1
            counts["num_accepted_draft_tokens"] += self.k + 1
        if fault == "renamed":
            counts["per_step_proposed"] = counts.pop("per_step_drafted", [])
        if fault == "lost steps":
            counts["per_step_drafted"] += [self.k] * 3
            counts["per_step_accepted"] += [self.k] * 3
            counts["num_spec_steps"] += 3
            counts["num_draft_tokens"] += 3 * self.k
            counts["num_accepted_draft_tokens"] += 3 * self.k
        if fault != "no counts":
            final["metrics"] = {"speculative_decoding": counts}
        return final

    def _count(self, answer: Answer) -> None:
        self.counters["finished"] += 1
        self.counters["generated"] += sum(map(len, answer.chunks))
        self.counters["drafts"] += len(answer.drafted)
        self.counters["draft_tokens"] += sum(answer.drafted)
        self.counters["accepted"] += sum(answer.accepted)


@dataclass(kw_only=True)
class Answer:
    chunks: list[list[int]]
    drafted: list[int]
    accepted: list[int]
    reason: str


def _tokens(text: str) -> list[int]:
    """One for every four characters."""
    return [sum(map(ord, text[i : i + 4])) % 250 + 1 for i in range(0, len(text), 4)]


async def _event(response: web.StreamResponse, value: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")


class Running:
    """A fake in a thread of this process; use as a context manager."""

    def __init__(self, server: FakeVllm) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(
            self.server.app(), access_log=None, shutdown_timeout=0, handler_cancellation=True
        )
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--speculative-config", default="{}")
    parser.add_argument("--fault", default="")
    parser.add_argument("--from-request", type=int, default=0)
    known, _ = parser.parse_known_args()
    if known.fault == "no start":
        sys.exit("ValueError: the model type foo is not supported")
    k = json.loads(known.speculative_config).get("num_speculative_tokens", 0)
    server = FakeVllm(
        k=k,
        model=known.served_model_name,
        max_model_len=known.max_model_len,
        fault=lambda n: known.fault if k and n >= known.from_request else "",
    )
    web.run_app(server.app(), host="127.0.0.1", port=known.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
