"""One model read from its files, and two of them checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pairgate.compat.architecture import read_architecture, text_config
from pairgate.compat.documents import Documents, parse_object
from pairgate.compat.heads import Head, check_head
from pairgate.compat.match import MatchKind, compare_tokenizers, require_match
from pairgate.compat.mtp import check_mtp, mtp_tensors
from pairgate.compat.native import method_obstacle, model_obstacle
from pairgate.compat.tokenizer import Tokenizer, read_tokenizer
from pairgate.compat.weights import (
    INDEX_NAME,
    Header,
    Tensor,
    check_index,
    pickled_bytes,
    read_header,
    read_tensor_bytes,
)
from pairgate.domain.pair import Architecture, Method
from pairgate.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from pathlib import Path

    from pairgate.ports import ByteRanges

_PICKLE_DTYPE_BYTES = {"float32": 4, "float64": 8}  # every other dtype of pickled weights has 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as its files describe it. `headers` is empty for pickled weights, `origin` is the
    source as it was named."""

    role: str
    config: Mapping[str, Any]
    architecture: Architecture
    tokenizer: Tokenizer | None
    headers: Mapping[str, Header]
    weights: Mapping[str, Path | ByteRanges]
    flags: tuple[str, ...]
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """What was found beside errors. `native_obstacle` is why the native engine would refuse."""

    tokenizers: MatchKind | None
    native_obstacle: str | None
    warnings: tuple[str, ...]


def read_model(
    role: str,
    documents: Documents,
    weights: Mapping[str, Path | ByteRanges],
    flags: tuple[str, ...],
    origin: str = "",
) -> Model:
    """Raises `InvalidInput` naming the file that is broken."""
    if "config.json" not in documents:
        raise InvalidInput(
            f"the {role} has no config.json",
            hint="give a folder in the Hugging Face format: config.json beside the weights",
        )
    config = parse_object(documents, "config.json", role)
    headers = read_headers(weights)
    if INDEX_NAME in documents:
        check_index(parse_object(documents, INDEX_NAME, role), headers, role)
    architecture = read_architecture(config, headers, role=role)
    if not headers:
        architecture = _with_pickled_size(architecture, config, weights)
    return Model(
        role=role,
        config=config,
        architecture=architecture,
        tokenizer=read_tokenizer(documents, role=role),
        headers=headers,
        weights=weights,
        flags=flags,
        origin=origin,
    )


def read_headers(weights: Mapping[str, Path | ByteRanges]) -> dict[str, Header]:
    """The header of every safetensors file, by path in the model's folder."""
    return {
        name: read_header(path, name)
        for name, path in weights.items()
        if name.endswith(".safetensors")
    }


def check_pair(target: Model, draft: Model | None, method: Method) -> Compatibility:
    """Raises `Refused` when the draft cannot belong to the target."""
    kind: MatchKind | None = None
    warnings: tuple[str, ...] = ()
    if method is Method.MTP:
        located = mtp_tensors(target.config, target.headers, target.weights)
        warnings = check_mtp(target.config, located)
    if draft is not None and method is Method.DRAFT_MODEL:
        kind, warnings = _check_draft_model(target, draft)
    elif draft is not None:
        warnings = check_head(method, _head(draft, target), target.architecture)
        warnings += _head_tokenizer_warnings(target, draft)
    obstacle = method_obstacle(method)
    for model in (target, draft):
        if model is not None:
            obstacle = obstacle or model_obstacle(
                text_config(model.config),
                role=model.role,
                model_type=model.architecture.model_type,
                flags=model.flags,
            )
    return Compatibility(
        tokenizers=kind,
        native_obstacle=obstacle,
        warnings=(*warnings, obstacle) if obstacle else warnings,
    )


def _check_draft_model(target: Model, draft: Model) -> tuple[MatchKind, tuple[str, ...]]:
    for model in (target, draft):
        if model.tokenizer is None:
            raise Refused(
                f"the {model.role} has no tokenizer, so its ids cannot be compared",
                hint="add tokenizer.json to its folder (save_pretrained writes it)",
            )
    assert target.tokenizer is not None
    assert draft.tokenizer is not None
    match = compare_tokenizers(
        target.tokenizer,
        draft.tokenizer,
        target_vocab_size=target.architecture.vocab_size,
        draft_vocab_size=draft.architecture.vocab_size,
    )
    require_match(match)
    warnings = match.warnings
    if match.kind is MatchKind.SUBSET:
        warnings = (f"{match.n_differing} ids exist for one of the two models only", *warnings)
    ours = target.architecture.max_position_embeddings
    theirs = draft.architecture.max_position_embeddings
    if 0 < theirs < ours:  # 0 is "not stated"
        warnings = (
            f"the draft reads at most {theirs} positions, the target {ours}: longer requests go "
            "on without a draft",
            *warnings,
        )
    return match.kind, warnings


def _head_tokenizer_warnings(target: Model, draft: Model) -> tuple[str, ...]:
    """A head needs none; one that came along says what it was trained with."""
    if target.tokenizer is None or draft.tokenizer is None:
        return ()
    match = compare_tokenizers(
        target.tokenizer,
        draft.tokenizer,
        target_vocab_size=target.architecture.vocab_size,
        draft_vocab_size=target.architecture.vocab_size,
    )
    if match.kind is not MatchKind.INCOMPATIBLE:
        return ()
    return (
        f"the head came with another tokenizer than the target's ({match.n_differing} ids differ, "
        f"first {match.differences[0]}): it was trained for another target",
    )


def _head(draft: Model, target: Model) -> Head:
    where = {name: draft.weights[file] for file, header in draft.headers.items() for name in header}

    def read(tensor: Tensor) -> bytes:
        return read_tensor_bytes(where[tensor.name], tensor)

    tensors = {name: t for header in draft.headers.values() for name, t in header.items()}
    return Head(config=draft.config, tensors=tensors, read=read, target_name=target.origin)


def _with_pickled_size(
    architecture: Architecture, config: Mapping[str, Any], weights: Mapping[str, Path | ByteRanges]
) -> Architecture:
    """Size and dtype from the archive's directory and the config, without unpickling."""
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    n_bytes = sum(pickled_bytes(path, name) for name, path in weights.items())
    return replace(
        architecture, n_parameters=n_bytes // _PICKLE_DTYPE_BYTES.get(dtype, 2), dtype=dtype
    )
