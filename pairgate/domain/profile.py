"""The serving profile: how a pair is served. Versioned and digested like the pair."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields

from pairgate.domain.canonical import canonical_json, sha256_digest
from pairgate.errors import require

# Younger than the first stored profiles: left out of the document where they are not set, so that
# the digest of those profiles is what it was.
_LATER_FIELDS = ("max_num_seqs", "speculative_config", "environment")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProfile:
    """Engine, arguments, parallelism, cache and hardware that an evaluation speaks for.

    `hardware_class` is accelerator name × count, or CPU architecture + instruction level
    (`x86_64-avx512`). `concurrencies` are those that matter to the user, ascending.
    `max_model_len` (tokens, prompt + output) None means: longest prompt + longest output + K + 1.
    `arguments` are the serving command's own, but for the model and the speculative config: the
    pair decides those. `speculative_config` is what the command said, verbatim; it must agree with
    the pair's. `environment` holds `NAME=VALUE`.
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
    max_num_seqs: int | None = None
    speculative_config: str | None = None
    environment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.concurrencies, f"profile {self.name}: no concurrency is named")
        require(
            all(1 <= c <= 65536 for c in self.concurrencies),
            f"profile {self.name}: concurrencies {self.concurrencies} must be positive",
        )
        object.__setattr__(self, "concurrencies", tuple(sorted(set(self.concurrencies))))

    def document(self) -> bytes:
        """Canonical JSON; what it is stored as and digested by."""
        values = asdict(self)
        for field in fields(self):
            if field.name in _LATER_FIELDS and values[field.name] == field.default:
                del values[field.name]
        return canonical_json(values)

    @property
    def digest(self) -> str:
        return sha256_digest(self.document())


def check_profile_name(name: str) -> str:
    """The name itself; raises `InvalidInput` unless it is fit for commands and `NAME@N`."""
    require(
        _NAME.match(name),
        f"{name!r} is not a profile name",
        hint="use letters, digits, dot, dash and underscore, e.g. h100-tp8",
    )
    return name
