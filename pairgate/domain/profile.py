"""The serving profile: how a pair is served. Versioned and digested like the pair."""

from __future__ import annotations

from dataclasses import dataclass

from pairgate.domain.canonical import digest_of
from pairgate.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProfile:
    """Engine, arguments, parallelism, cache and hardware that an evaluation speaks for.

    `hardware_class` is accelerator name × count, or CPU architecture + instruction level
    (`x86_64-avx512`). `concurrencies` are those that matter to the user, ascending.
    `max_model_len` (tokens, prompt + output) None means: longest prompt + longest output + K + 1.
    """

    name: str
    engine: str
    engine_version: str
    hardware_class: str
    concurrencies: tuple[int, ...]
    arguments: tuple[str, ...] = ()
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = False
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        require(self.concurrencies, f"profile {self.name}: no concurrency is named")
        require(
            all(1 <= c <= 65536 for c in self.concurrencies),
            f"profile {self.name}: concurrencies {self.concurrencies} must be positive",
        )
        object.__setattr__(self, "concurrencies", tuple(sorted(set(self.concurrencies))))

    @property
    def digest(self) -> str:
        return digest_of(self)
