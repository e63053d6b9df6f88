"""`ports.Engine` for a serving engine: the pair's server and the target's, seen through HTTP."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator

from pairgate.domain.canonical import canonical_json
from pairgate.domain.evidence import EngineInfo, MemoryUse, Missing
from pairgate.domain.freshness import major_minor
from pairgate.domain.profile import ServingProfile
from pairgate.domain.trace import Arm, RequestTrace
from pairgate.domain.traffic import Request, Sampling
from pairgate.engines.prompts import Prompts
from pairgate.engines.server.block import Load, Replayed
from pairgate.engines.server.dialect import Dialect
from pairgate.engines.server.places import Endpoint, Places
from pairgate.engines.server.room import (
    PeakOfProcesses,
    available_bytes,
    hardware_class_here,
    is_cpu,
    weight_bytes,
)
from pairgate.errors import InvalidInput, Refused, Unavailable
from pairgate.ports import EngineLimits, GenerateOptions, MaterialisedPair

_GREEDY = Sampling(temperature=0.0)


class ServerEngine:
    """Implements `ports.Engine` by a dialect and its two servers."""

    def __init__(self, dialect: Dialect, places: Places, profile: ServingProfile) -> None:
        self._dialect = dialect
        self._places = places
        self._profile = profile
        self._pair: MaterialisedPair | None = None
        self._limits: EngineLimits | None = None
        self._prompts: Prompts | None = None
        self._n_blocks = 0
        self._aside_s = 0.0
        self._salt = secrets.token_hex(8)

    def start(self, pair: MaterialisedPair, limits: EngineLimits) -> None:
        """Take the pair; a server is started when the first block or `describe` needs it, because
        the limits are often made smaller once the prompts are counted."""
        if self._pair != pair:
            self._prompts = Prompts(pair.target_dir)
        self._pair, self._limits = pair, limits

    def generate(
        self, requests: Iterable[tuple[int, Request]], options: GenerateOptions
    ) -> Iterator[RequestTrace]:
        """Closed loop. Every block has a salt of its own, so that requests share prompts within a
        block and both arms find the same cache. Raises what `block.Replayed` raises."""
        _, limits = self._started
        begin = time.perf_counter()
        endpoint = self._endpoint(options.with_draft)
        self._aside_s += time.perf_counter() - begin
        self._n_blocks += 1
        block = Replayed(
            self._dialect,
            endpoint,
            Load(concurrency=options.concurrency),
            salt=f"pairgate-{self._salt}-{self._n_blocks}",
            watchdog_s=limits.watchdog_s,
            require_alive=self._places.require_alive,
        )
        yield from block.run(requests)
        self._aside_s += block.aside_s

    def clock(self) -> float:
        """Seconds; stands still while a server starts and while its counters are read, so that a
        block's duration is that of its requests."""
        return time.perf_counter() - self._aside_s

    def describe(self) -> EngineInfo:
        pair, limits = self._started
        method = pair.pair.decoding.method
        endpoint = self._endpoint(pair.pair.decoding.num_speculative_tokens > 0)
        identity = endpoint.identity
        resolved = {
            **dict(self._places.facts()),
            **dict(identity.resolved),
            "model": identity.model,
            "model_root": identity.model_root,
            "method": str(method),
            "max_model_len": identity.max_model_len or limits.max_model_len,
        }
        hardware = self._profile.hardware_class
        if self._places.started_here:
            hardware = hardware_class_here(self._profile)
        arguments = self._profile.arguments
        stated = arguments[arguments.index("--dtype") + 1] if "--dtype" in arguments else None
        dtype = stated or pair.pair.decoding.compute_dtype
        on_cpu = self._places.started_here and dtype == "auto" and is_cpu(self._profile)
        return EngineInfo(
            name=self._dialect.name,
            version=identity.version,
            hardware_class=hardware,
            device=f"{hardware}, {'here' if self._places.started_here else 'as stated'}",
            dtype="float32" if on_cpu else dtype,
            definition=self._dialect.definition,
            resolved=canonical_json(resolved).decode(),
            packages=((self._dialect.name, identity.version),),
        )

    @property
    def served_max_model_len(self) -> int | None:
        """The limit of servers that run already; None where it is ours to set."""
        if self._places.started_here:
            return None
        return self._places.endpoint(with_draft=True).identity.max_model_len

    def prompt_tokens(self, request: Request) -> int:
        _ = self._started
        assert self._prompts is not None
        return len(self._prompts.encode(request))

    def stress(self, concurrency: int, *, with_draft: bool) -> MemoryUse | Missing:
        """`concurrency` requests that fill the maximum length, under a sampled peak of the memory
        that the server's processes hold. The worst case is reached when none was preempted."""
        pair, limits = self._started
        endpoint = self._endpoint(with_draft)
        root = self._places.processes(endpoint)
        if root is None or not is_cpu(self._profile):
            return Missing(
                reason="memory of a server is measured where pairgate starts it, on a CPU"
            )
        n_output = min(16, limits.max_model_len - 1)
        length = limits.max_model_len - n_output
        vocabulary = min(pair.pair.target.architecture.vocab_size, 1000) - 1
        requests = [
            Request(
                id=f"stress-{i}",
                domain="stress",
                body='{"ignore_eos": true}',
                max_tokens=n_output,
                sampling=_GREEDY,
                token_ids=tuple(1 + (i + j) % vocabulary for j in range(length)),
            )
            for i in range(concurrency)
        ]
        options = GenerateOptions(with_draft=with_draft, concurrency=concurrency, seed=0)
        before = self._dialect.counters(endpoint.url)
        with PeakOfProcesses(root) as memory:
            traces = list(self.generate(enumerate(requests), options))
        failures = [t.error for t in traces if not t.ok]
        if failures:
            return Missing(reason=f"the stress run failed: {failures[0]}", n=len(failures))
        preempted = self._dialect.counters(endpoint.url).since(before).n_preemptions
        target, draft = pair.pair.target, pair.pair.draft if with_draft else None
        tokens = concurrency * limits.max_model_len
        kv = [m.architecture.kv_bytes_per_token(4) * tokens if m else 0 for m in (target, draft)]
        weights = [weight_bytes(m, 4) if m else 0 for m in (target, draft)]
        known = sum(weights) + sum(kv)
        return MemoryUse(
            arm=Arm.SPEC if with_draft else Arm.TARGET,
            concurrency=concurrency,
            kind="server",
            weights_target_bytes=weights[0],
            weights_draft_bytes=weights[1],
            kv_target_bytes=kv[0],
            kv_draft_bytes=kv[1],
            workspace_bytes=max(0, memory.peak_bytes - known),
            peak_bytes=memory.peak_bytes,
            predicted_bytes=known,
            budget_bytes=limits.memory_budget_bytes or memory.peak_bytes + available_bytes(),
            worst_case_reached=preempted == 0,
        )

    def close(self) -> None:
        self._places.close()
        self._pair = None

    @property
    def _started(self) -> tuple[MaterialisedPair, EngineLimits]:
        if self._pair is None or self._limits is None:
            raise Unavailable("the server engine was not started")
        return self._pair, self._limits

    def _endpoint(self, with_draft: bool) -> Endpoint:
        pair, limits = self._started
        if with_draft and pair.pair.decoding.num_speculative_tokens == 0:
            raise InvalidInput("the pair has no draft, so it cannot run with one")
        self._places.prepare(pair, limits)
        endpoint = self._places.endpoint(with_draft=with_draft)
        runs, named = endpoint.identity.version, self._profile.engine_version
        if major_minor(runs) != major_minor(named):
            raise Refused(
                f"the server at {endpoint.url} is {self._dialect.name} {runs}, the profile "
                f"{self._profile.name} names {named}",
                hint="evidence from it would not count; store a profile of the version that runs, "
                "or run the version that the profile names",
            )
        return endpoint
