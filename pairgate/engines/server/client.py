"""A streaming client for OpenAI-compatible servers: HTTP/1.1, keep-alive, one call at a time each.

aiohttp, because at 256 streams it took 31 % of a core where httpx took 71 % of one and fell
behind (docs/decisions/0014-servers-as-engines.md). Times are taken when a chunk arrives.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import aiohttp

from pairgate.engines.server.wire import Call, Reply, Usage

_CONNECT_S = 10.0
_EXCERPT = 200
_DONE = b"[DONE]"


@dataclass(slots=True, kw_only=True)
class _Stream:
    """What has arrived so far."""

    begin: float
    first: float | None = None
    last: float = 0.0
    chunk_ms: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    usage: Usage | None = None
    final: str = ""
    done: bool = False
    error: str = ""

    def event(self, data: bytes, at: float) -> None:
        """One server-sent event. Raises `ValueError` for what is no JSON object."""
        if data == _DONE:
            self.done = True
            return
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError(f"a {type(chunk).__name__} instead of an object")
        if "error" in chunk:
            self.error = f"the server broke off: {_message(chunk)}"
            return
        for choice in chunk.get("choices") or ():
            self._choice(choice, at)
        usage = chunk.get("usage")
        if usage is not None and not chunk.get("choices"):
            self.usage = _usage(usage)
            self.final = data.decode()

    def _choice(self, choice: dict[str, Any], at: float) -> None:
        ids = choice.get("token_ids")
        text = choice.get("text") or (choice.get("delta") or {}).get("content")
        if ids or (ids is None and text):
            self.first = at if self.first is None else self.first
            self.last = at
        if ids:
            self.token_ids.extend(ids)
            self.chunk_tokens.append(len(ids))
            self.chunk_ms.append((at - self.begin) * 1e3)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
            self.stop_reason = choice.get("stop_reason")

    def reply(self, status: int, end: float) -> Reply:
        return Reply(
            status=status,
            error=self.error or self._incomplete(),
            ttft_ms=((end if self.first is None else self.first) - self.begin) * 1e3,
            latency_ms=((self.last or end) - self.begin) * 1e3,
            chunk_ms=tuple(self.chunk_ms),
            chunk_tokens=tuple(self.chunk_tokens),
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            usage=self.usage,
            final=self.final,
        )

    def _incomplete(self) -> str:
        missing = [
            name
            for name, there in (
                ("a finish reason", self.finish_reason),
                ("the usage", self.usage is not None),
                ("the end mark", self.done),
            )
            if not there
        ]
        so_far = f"after {len(self.token_ids)} tokens"
        return f"the stream ended {so_far} without {', '.join(missing)}" if missing else ""


class StreamingClient:
    """Calls one server; an async context manager. A call never raises: what went wrong is in the
    reply."""

    def __init__(self, base_url: str, *, watchdog_s: float) -> None:
        self._base_url = base_url.rstrip("/")
        self._watchdog_s = watchdog_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> StreamingClient:
        # One connection for every request in flight: the pool must not queue what load measures.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_S, sock_read=self._watchdog_s
            ),
            headers={"content-type": "application/json"},
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, call: Call, begin: float) -> Reply:
        """`begin` is `time.perf_counter()` of the moment from which times count."""
        assert self._session is not None
        stream, status = _Stream(begin=begin), 0
        try:
            async with self._session.post(self._base_url + call.path, data=call.body) as response:
                status = response.status
                if status != 200:
                    text = await response.text(errors="replace")
                    return Reply(status=status, error=f"HTTP {status}: {_excerpt(text)}")
                await _read(response, stream)
            return stream.reply(status, time.perf_counter())
        except (TimeoutError, aiohttp.ConnectionTimeoutError) as error:
            partial = stream.reply(status, time.perf_counter())
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                return replace(partial, unreachable=True, error="no connection within 10 s")
            error_text = f"no progress for {self._watchdog_s:g} s after {_n(stream)} tokens"
            return replace(partial, hung=True, error=error_text)
        except aiohttp.ClientConnectorError as error:
            return Reply(unreachable=True, error=f"no connection: {error}")
        except (aiohttp.ClientError, OSError) as error:
            text = f"the connection broke after {_n(stream)} tokens: {_said(error)}"
        except (ValueError, TypeError, AttributeError) as error:  # JSON of another shape, or none
            text = f"garbage after {_n(stream)} tokens: {_said(error)}"
        return replace(stream.reply(status, time.perf_counter()), error=text)


async def _read(response: aiohttp.ClientResponse, stream: _Stream) -> None:
    """Split the body into events; several may arrive at once, and then have one time."""
    waiting = b""
    async for data in response.content.iter_any():
        at = time.perf_counter()
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                stream.event(line[5:].strip(), at)
            elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise ValueError(f"{_excerpt(line.decode(errors='replace'))!r} is no event")
    if waiting.strip():
        raise ValueError(f"{_excerpt(waiting.decode(errors='replace'))!r} is cut off")


def _usage(value: Any) -> Usage:
    try:
        cached = (value.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Usage(
            prompt_tokens=int(value["prompt_tokens"]),
            completion_tokens=int(value["completion_tokens"]),
            cached_tokens=None if cached is None else int(cached),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the usage lacks {error}") from error


def _message(chunk: dict[str, Any]) -> str:
    error = chunk["error"]
    return _excerpt(str(error.get("message") if isinstance(error, dict) else error))


def _n(stream: _Stream) -> int:
    return len(stream.token_ids)


def _said(error: BaseException) -> str:
    return _excerpt(str(error)) or type(error).__name__


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _EXCERPT else f"{line[:_EXCERPT]}…"
