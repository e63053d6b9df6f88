"""Serving engines over HTTP (needs the extra `server`): a server that pairgate starts, or one that
already runs.

    wire       a `Request` -> the HTTP body; what the server streams back -> a `Reply`
    client     one streaming connection per request (HTTP/1.1 keep-alive), times taken on arrival
    load       many requests: closed loop with a concurrency, or open loop by arrival times
    dialect    what differs between servers; `vllm` is the first of them
    rounds     a `Reply` and the server's counts -> a `RequestTrace`
    process    starts a server so that nothing of it outlives pairgate
    places     the two servers of a pair: started here, or attached
    engine     `ports.Engine` out of all that
"""

from __future__ import annotations

from pairgate.errors import MissingExtra

try:
    import aiohttp  # noqa: F401
except ImportError as _error:
    raise MissingExtra("aiohttp", "server") from _error

from pairgate.engines.server.engine import ServerEngine
from pairgate.engines.server.places import Attached, Attachment, Started

__all__ = ["Attached", "Attachment", "ServerEngine", "Started"]
