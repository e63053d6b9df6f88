"""The native engine: torch and transformers models, our batched speculative decoder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

import torch

from pairgate import __version__
from pairgate.domain.canonical import canonical_json
from pairgate.domain.evidence import EngineInfo, MemoryUse, Missing
from pairgate.domain.pair import Method
from pairgate.domain.trace import Arm, RequestTrace
from pairgate.domain.traffic import Request, Sampling
from pairgate.engines.hardware import cpu_hardware_class
from pairgate.engines.native.batched import BatchedDecoder, DecoderSettings
from pairgate.engines.native.loading import LoadedModel, eos_ids, load_model
from pairgate.engines.native.memory import PeakMemory, bound
from pairgate.engines.native.prompts import Prompts
from pairgate.engines.native.row import Ends
from pairgate.errors import InvalidInput, Refused, Unavailable
from pairgate.ports import EngineLimits, GenerateOptions, MaterialisedPair

NAME = "native"
DEFINITION = "pairgate.rounds.v1"
_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "numpy")


class NativeEngine:
    """Implements `ports.Engine`. `device` None takes the first GPU, else the CPU."""

    def __init__(self, device: str | None = None) -> None:
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(device)
        self._target: LoadedModel | None = None
        self._draft: LoadedModel | None = None
        self._pair: MaterialisedPair | None = None
        self._baseline_bytes = 0
        self._memory = PeakMemory(self._device)

    def start(self, pair: MaterialisedPair, limits: EngineLimits) -> None:
        """Load the pair; starting the same pair again only sets the limits."""
        decoding = pair.pair.decoding
        if decoding.method not in (Method.DRAFT_MODEL, Method.NONE):
            raise Refused(
                f"the native engine does not run method {decoding.method}",
                hint="evaluate this pair with a serving engine (profile engine: vllm or server)",
            )
        if self._pair != pair:
            self._load(pair)
        assert self._target is not None
        if limits.max_model_len > self._target.max_positions:
            raise InvalidInput(
                f"max_model_len {limits.max_model_len} exceeds the target's "
                f"{self._target.max_positions} positions"
            )
        self._limits, self._decoding = limits, decoding

    def _load(self, pair: MaterialisedPair) -> None:
        self.close()
        self._baseline_bytes = self._memory.current()
        dtype = pair.pair.decoding.compute_dtype
        self._target = load_model(
            pair.target_dir, "target", device=self._device, compute_dtype=dtype
        )
        if pair.draft_dir is not None:
            self._draft = load_model(
                pair.draft_dir, "draft", device=self._device, compute_dtype=dtype
            )
        self._prompts = Prompts(pair.target_dir)
        self._eos = eos_ids(self._target.model)
        self._pair = pair

    def generate(
        self, requests: Iterable[tuple[int, Request]], options: GenerateOptions
    ) -> Iterator[RequestTrace]:
        if options.with_draft and self._started[1] is None:
            raise InvalidInput("the pair has no draft, so it cannot run with one")
        return self._decoder(options).run(requests)

    def describe(self) -> EngineInfo:
        target, draft = self._started
        resolved = {
            "attention": target.model.config._attn_implementation,
            "max_model_len": self._limits.max_model_len,
            "num_speculative_tokens": self._decoding.num_speculative_tokens,
            "draft_sampling": self._decoding.draft_sampling,
            "draft_dtype": str(draft.dtype).removeprefix("torch.") if draft else None,
            "threads": torch.get_num_threads(),
            "eos_token_ids": sorted(self._eos),
        }
        return EngineInfo(
            name=NAME,
            version=__version__,
            hardware_class=hardware_class(self._device),
            device=_device_name(self._device),
            dtype=str(target.dtype).removeprefix("torch."),
            definition=DEFINITION,
            resolved=canonical_json(resolved).decode(),
            packages=tuple((name, _version_of(name)) for name in _PACKAGES),
        )

    def prompt_tokens(self, request: Request) -> int:
        _ = self._started
        return len(self._prompts.encode(request))

    def stress(self, concurrency: int, *, with_draft: bool) -> MemoryUse | Missing:
        """`concurrency` requests that fill max_model_len: prompts as long as leaves room for two
        full rounds. Peak is that of the whole process on a CPU."""
        target, draft = self._started
        arm = Arm.SPEC if with_draft else Arm.TARGET
        n_output = min(
            2 * self._decoding.num_speculative_tokens + 3, self._limits.max_model_len - 1
        )
        n_prompt = self._limits.max_model_len - n_output
        requests = [
            Request(
                id=f"stress-{i}",
                domain="stress",
                body="{}",
                max_tokens=n_output,
                sampling=Sampling(temperature=1.0, top_p=0.9, seed=i),
                token_ids=tuple((i + j) % min(target.vocab_size, 1000) for j in range(n_prompt)),
            )
            for i in range(concurrency)
        ]
        self._memory.reset()
        options = GenerateOptions(with_draft=with_draft, concurrency=concurrency, seed=0)
        decoder = self._decoder(options, eos=frozenset())
        traces = list(decoder.run(enumerate(requests)))
        failures = [t.error for t in traces if not t.ok]
        if failures:
            return Missing(reason=f"the stress run failed: {failures[0]}", n=len(failures))
        kv_target, kv_draft = decoder.kv_bytes
        needed = bound(
            target,
            draft if with_draft else None,
            k=self._decoding.num_speculative_tokens,
            n_rows=concurrency,
            n_positions=self._limits.max_model_len,
        )
        peak = self._memory.read()
        known = self._baseline_bytes + needed.weights_target + kv_target + kv_draft
        # The draft stays loaded in both arms; a target served alone would not hold it.
        resident_draft = draft.weight_bytes if draft else 0
        return MemoryUse(
            arm=arm,
            concurrency=concurrency,
            kind=self._memory.kind,
            weights_target_bytes=needed.weights_target,
            weights_draft_bytes=needed.weights_draft,
            kv_target_bytes=kv_target,
            kv_draft_bytes=kv_draft,
            workspace_bytes=max(0, peak - known - resident_draft),
            peak_bytes=peak if with_draft else peak - resident_draft,
            predicted_bytes=self._baseline_bytes + needed.total,
            budget_bytes=self._limits.memory_budget_bytes or self._memory.budget(),
            worst_case_reached=all(t.completion_tokens == n_output for t in traces),
        )

    def close(self) -> None:
        self._target = self._draft = self._pair = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def _started(self) -> tuple[LoadedModel, LoadedModel | None]:
        if self._target is None:
            raise Unavailable("the native engine was not started")
        return self._target, self._draft

    def _decoder(
        self, options: GenerateOptions, *, eos: frozenset[int] | None = None
    ) -> BatchedDecoder:
        target, draft = self._started
        settings = DecoderSettings(
            k=self._decoding.num_speculative_tokens,
            n_rows=options.concurrency,
            max_model_len=self._limits.max_model_len,
            run_seed=options.seed,
            with_draft=options.with_draft,
            greedy_draft=self._decoding.draft_sampling == "greedy",
            fallback=options.fallback,
            watchdog_s=self._limits.watchdog_s,
        )
        return BatchedDecoder(
            target,
            draft,
            settings,
            ends=Ends(eos=self._eos if eos is None else eos, decode=self._prompts.decode),
            encode=self._prompts.encode,
            common_vocab=self._prompts.n_ids,
        )


def hardware_class(device: torch.device) -> str:
    """Accelerator name × count, or CPU architecture + instruction level (`x86_64-avx512`)."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device).replace(' ', '-').lower()}x1"
    return cpu_hardware_class()


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
