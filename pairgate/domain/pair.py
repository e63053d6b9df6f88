"""The pair: a target, an optional draft and the decoding config, as one immutable artifact.

The artifact is an OCI image manifest (OCI image-spec 1.1, artifact guidance): its config blob is
the canonical pair document, its layers are the models' files themselves. The digest of the
manifest is the digest of the pair, so standard registries and tools name it the same way.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from pairgate.domain.canonical import canonical_json, is_digest, sha256_digest
from pairgate.errors import InvalidInput, Refused, require

ARTIFACT_TYPE = "application/vnd.pairgate.pair.v1"
CONFIG_MEDIA_TYPE = "application/vnd.pairgate.pair.config.v1+json"
MANIFEST_MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
# CNCF ModelPack (model-spec v0.0.7) media types for files stored as they are.
WEIGHTS_MEDIA_TYPE = "application/vnd.cncf.model.weight.v1.raw"
MODEL_CONFIG_MEDIA_TYPE = "application/vnd.cncf.model.weight.config.v1.raw"
TITLE = "org.opencontainers.image.title"

# Unicode categories of characters that are not shown: controls, formats, surrogates, separators.
_UNSEEN = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp"))
_LINE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\Z")
_ROLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}\Z")


class Method(StrEnum):
    """How tokens are proposed. `draft_model` and `none` run on the native engine."""

    DRAFT_MODEL = "draft_model"
    EAGLE3 = "eagle3"
    MTP = "mtp"
    DFLASH = "dflash"
    NGRAM = "ngram"
    NONE = "none"

    @property
    def has_draft_files(self) -> bool:
        """Whether a version with this method stores files beside those of the target."""
        return self in (Method.DRAFT_MODEL, Method.EAGLE3, Method.DFLASH)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a model: POSIX path relative to the model's folder, bytes, sha256 digest."""

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        check_relative_path(self.path)
        require(self.size >= 0, f"{self.path}: size {self.size} is negative")
        require(is_digest(self.sha256), f"{self.path}: {self.sha256!r} is not a sha256 digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What the gate and the memory bound need to know of a model (lengths in tokens)."""

    model_type: str
    class_name: str
    n_parameters: int
    vocab_size: int
    max_position_embeddings: int
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: str

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Keys and values of one token over all layers, in bytes (an upper bound with sliding
        windows, which keep fewer tokens)."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """One model of a pair. `flags` name what was allowed on purpose, e.g. `custom-code`."""

    role: str
    files: tuple[FileEntry, ...]
    architecture: Architecture
    tokenizer_digest: str | None = None
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # It is a folder's name where a pair is written out, beside pair.json.
        require(_ROLE.match(self.role), f"{self.role!r} is not a model's role")
        require(self.files, f"the {self.role} has no files")
        paths = [f.path for f in self.files]
        folded = {p.casefold() for p in paths}
        require(
            len(folded) == len(paths),
            f"the {self.role} has files whose names collide on a case-folding file system",
        )
        # Sorted once here, so that the order in which a folder was listed never reaches a digest.
        object.__setattr__(self, "files", tuple(sorted(self.files, key=lambda f: f.path)))
        object.__setattr__(self, "flags", tuple(sorted(self.flags)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingConfig:
    """The resolved decoding settings; a changed default is a different pair.

    `draft_sampling` is `sampled` (the draft's own law under the request's warps) or `greedy`
    (a one-hot proposal). `compute_dtype` is `auto` (the checkpoint's on a GPU, float32 on a CPU)
    or a dtype name. `speculative_config` keeps a serving engine's JSON verbatim.
    """

    method: Method
    num_speculative_tokens: int = 0
    draft_sampling: str = "sampled"
    rejection: str = "standard"
    compute_dtype: str = "auto"
    kv_dtype_target: str = "auto"
    kv_dtype_draft: str = "auto"
    speculative_config: str | None = None

    def __post_init__(self) -> None:
        k = self.num_speculative_tokens
        if self.method is Method.NONE:
            require(k == 0, f"method none proposes nothing, but num_speculative_tokens is {k}")
        else:
            require(1 <= k <= 64, f"num_speculative_tokens is {k}; it must lie in 1 to 64")
        require(
            self.draft_sampling in ("sampled", "greedy"),
            f"draft_sampling is {self.draft_sampling!r}; it is 'sampled' or 'greedy'",
        )
        require(
            self.rejection == "standard",
            f"rejection method {self.rejection!r} changes the output distribution; only "
            "'standard' is evidence",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Target, draft (or a head, or none) and decoding config; identity is content."""

    target: ModelRef
    draft: ModelRef | None
    decoding: DecodingConfig
    adapters: tuple[ModelRef, ...] = ()

    def __post_init__(self) -> None:
        require(self.target.role == "target", f"the target's role is {self.target.role!r}")
        method = self.decoding.method
        if method.has_draft_files:
            require(self.draft is not None, f"method {method} needs a draft (--draft SRC)")
        else:
            require(self.draft is None, f"method {method} takes no draft")
        if self.draft is not None:
            require(self.draft.role == "draft", f"the draft's role is {self.draft.role!r}")
        roles = [model.role for model in self.models]
        require(len(set(roles)) == len(roles), f"two models have one role: {', '.join(roles)}")

    @property
    def models(self) -> tuple[ModelRef, ...]:
        return (self.target, *((self.draft,) if self.draft else ()), *self.adapters)

    @property
    def flags(self) -> tuple[str, ...]:
        """`role:flag` of everything that was explicitly allowed; shown by reading commands."""
        return tuple(f"{m.role}:{flag}" for m in self.models for flag in m.flags)

    @property
    def target_digest(self) -> str:
        """Digest of the target's files alone: equal for two pairs that differ only in the draft."""
        return sha256_digest(canonical_json([asdict(f) for f in self.target.files]))

    def config_blob(self) -> bytes:
        """The canonical pair document."""
        return canonical_json({"schema": 1, **asdict(self)})

    def manifest(self) -> bytes:
        """Canonical OCI manifest; every file is a layer titled `role/path`."""
        config = self.config_blob()
        layers: list[dict[str, Any]] = [
            {
                "mediaType": _media_type(entry.path),
                "digest": entry.sha256,
                "size": entry.size,
                "annotations": {TITLE: f"{model.role}/{entry.path}"},
            }
            for model in self.models
            for entry in model.files
        ]
        return canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_MEDIA_TYPE,
                "artifactType": ARTIFACT_TYPE,
                "config": {
                    "mediaType": CONFIG_MEDIA_TYPE,
                    "digest": sha256_digest(config),
                    "size": len(config),
                },
                "layers": layers,
            }
        )

    @property
    def digest(self) -> str:
        return sha256_digest(self.manifest())


@dataclass(frozen=True, slots=True, kw_only=True)
class PairVersion:
    """`line@number`: an integer of one line that names a pair digest for ever."""

    line: str
    number: int
    pair_digest: str
    target_digest: str
    method: Method
    state: str
    created_at: str
    created_by: str
    # When gc deleted the files that only this version needed, and when the same files came back.
    collected_at: str | None = None
    renewed_at: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.line}@{self.number}"

    def require_files(self) -> None:
        """Raises `Refused` when gc collected this version."""
        if self.collected_at is not None:
            raise Refused(
                f"{self} was collected by gc on {self.collected_at[:10]}: its files are gone",
                hint="register the same files again: that restores it under the same number",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRef:
    """What a person types: `line@3`, `line@production`, `line@previous` or `line@sha256:…`."""

    line: str
    selector: str

    @classmethod
    def parse(cls, text: str) -> VersionRef:
        line, at, selector = text.partition("@")
        check_line_name(line)
        known = selector in ("production", "previous") or selector.startswith("sha256:")
        if not at or not (known or (selector.isascii() and selector.isdigit())):
            raise InvalidInput(
                f"{text!r} does not name a version",
                hint="write LINE@3, LINE@production, LINE@previous or LINE@sha256:DIGEST",
            )
        return cls(line=line, selector=selector)

    def __str__(self) -> str:
        return f"{self.line}@{self.selector}"


def check_line_name(name: str) -> str:
    """The name itself; raises `InvalidInput` unless it is fit for files, URLs and commands."""
    require(
        _LINE_NAME.match(name),
        f"{name!r} is not a line name",
        hint="use 1 to 100 of a-z, 0-9, dot, dash and underscore, starting with a letter or digit",
    )
    return name


def check_relative_path(path: str) -> str:
    """Refuse every path that could leave the folder it belongs to, on any operating system, or
    that a reader would take for another one."""
    parts = PurePosixPath(path).parts
    bad = (
        not path
        or path.startswith("/")
        or any(c in path for c in ("\\", "\0", ":"))
        or any(unicodedata.category(c) in _UNSEEN for c in path)
        or any(part[-1] in ". " or len(part.encode()) > 255 for part in parts)
        or "/".join(parts) != path
    )
    require(not bad, f"{path!r} is not a plain relative path inside the model's folder")
    return path


def _media_type(path: str) -> str:
    return WEIGHTS_MEDIA_TYPE if path.endswith(".safetensors") else MODEL_CONFIG_MEDIA_TYPE
