"""Checks for drafts that are no language models of their own: EAGLE-3 and DFlash heads.

EAGLE-3 (Li et al. 2025) reads hidden states of the target at some layers and may propose from a
reduced vocabulary: `d2t[i]` is added to draft id i to get the target's id, and `t2d` marks the
target ids that the draft has. DFlash (Chen et al. 2026) proposes a block at once, from hidden
states of `target_layer_ids`. The speculators format wraps both and names the verifier.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pairgate.compat.architecture import text_config
from pairgate.compat.weights import Tensor
from pairgate.domain.pair import Architecture, Method
from pairgate.errors import InvalidInput, Refused

_LAYER_IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
_N_AUXILIARY_LAYERS = 3  # what EAGLE-3 concatenates when the config does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head's config and tensors; `read` gives the bytes of a small one. `target_name` is where
    the target came from."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    read: Callable[[Tensor], bytes]
    target_name: str = ""


def check_head(method: Method, head: Head, target: Architecture) -> tuple[str, ...]:
    """Raises `Refused` when the head cannot belong to the target; returns warnings."""
    _check_hidden_size(head, target)
    layers = _auxiliary_layers(head.config)
    depth = head.config.get("num_target_layers", target.n_layers)
    if depth != target.n_layers:
        raise Refused(
            f"the {method} head was made for a target of {depth} layers, this one has "
            f"{target.n_layers}",
            hint="use a head that was trained for this target",
        )
    deep = [layer for layer in layers if not 0 <= layer < target.n_layers]
    if deep:
        raise Refused(
            f"the {method} head reads layers {deep} of a target that has {target.n_layers} layers",
            hint="use a head that was trained for this target",
        )
    return (*_check_vocabulary(head, target), *_verifier_warnings(head, target))


def suggested_tokens(config: Mapping[str, Any]) -> int | None:
    """The draft length that a speculators checkpoint recommends, or the block of a DFlash head
    less the token that it starts from."""
    speculators = _speculators(config)
    default = speculators.get("default_proposal_method")
    methods = speculators.get("proposal_methods")
    proposals = [p for p in methods if isinstance(p, dict)] if isinstance(methods, list) else []
    proposals.sort(key=lambda p: p.get("proposal_type") != default)
    said = [p.get("speculative_tokens") for p in proposals]
    counts = [n for n in (*said, speculators.get("num_speculative_tokens")) if type(n) is int]
    nested = config.get("dflash_config")
    if isinstance(nested, dict):
        block = config.get("block_size") or nested.get("block_size")
        counts += [block - 1] if type(block) is int and block > 1 else []
    return counts[0] if counts else None


def named_verifier(config: Mapping[str, Any]) -> str | None:
    """The target that a speculators checkpoint was trained for: a repository or a folder."""
    name = _verifier(config).get("name_or_path")
    return name if isinstance(name, str) and name else None


def _speculators(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("speculators_config")
    return nested if isinstance(nested, dict) else {}


def _check_hidden_size(head: Head, target: Architecture) -> None:
    layers = _auxiliary_layers(head.config)
    found: int | None
    projection = head.tensors.get("fc.weight")
    if projection is not None and len(projection.shape) == 2:
        wanted = (len(layers) or _N_AUXILIARY_LAYERS) * target.hidden_size
        found = projection.shape[1]
    else:
        wanted = target.hidden_size
        text = text_config(head.config)
        found = head.config.get("target_hidden_size") or text.get("hidden_size")
    if found != wanted:
        raise Refused(
            f"the head reads hidden states of {found} values, the target gives {wanted}",
            hint="use a head that was trained for this target",
        )


def _auxiliary_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    nested = (config.get(name) for name in ("eagle_config", "dflash_config"))
    for source in (config, *(value for value in nested if isinstance(value, dict))):
        for name in _LAYER_IDS:
            layers = source.get(name)
            if not layers:
                continue
            if not isinstance(layers, list) or not all(type(i) is int for i in layers):
                raise InvalidInput(f"config.json of the draft: {name} is {layers!r:.80}")
            return tuple(layers)
    return ()


def _verifier(config: Mapping[str, Any]) -> Mapping[str, Any]:
    verifier = _speculators(config).get("verifier")
    return verifier if isinstance(verifier, dict) else {}


def _verifier_warnings(head: Head, target: Architecture) -> tuple[str, ...]:
    """What speaks against the target being the one that the head was trained for."""
    warnings = []
    name = named_verifier(head.config)
    if name is not None and not _is_named(head.target_name, name):
        warnings.append(
            f"the head was trained for {name}, and the target is {head.target_name or 'another'}: "
            "make sure that this is the same model"
        )
    classes = _verifier(head.config).get("architectures")
    if isinstance(classes, list) and classes and target.class_name not in classes:
        warnings.append(f"the head was trained for a {classes[0]}, this is a {target.class_name}")
    return tuple(warnings)


def _is_named(source: str, name: str) -> bool:
    """Whether a source (a folder, or hf://org/name@revision) is what a config calls `name`."""
    repository = source.removeprefix("hf://").partition("@")[0]
    return repository.casefold() == name.removeprefix("hf://").partition("@")[0].casefold()


def _check_vocabulary(head: Head, target: Architecture) -> tuple[str, ...]:
    """A reduced vocabulary needs `d2t`: one offset per draft id, to distinct target ids."""
    n_draft = head.config.get("draft_vocab_size") or target.vocab_size
    if type(n_draft) is not int:
        raise InvalidInput(f"config.json of the draft: draft_vocab_size is {n_draft!r:.80}")
    d2t, t2d = head.tensors.get("d2t"), head.tensors.get("t2d")
    if d2t is None:
        if n_draft != target.vocab_size:
            raise Refused(
                f"the head proposes from {n_draft} of the target's {target.vocab_size} ids, but "
                "holds no d2t that says which",
                hint="export the head with its vocabulary mapping",
            )
        return ()
    if d2t.dtype != "I64" or d2t.shape != (n_draft,):
        raise Refused(f"d2t is {d2t.dtype} {d2t.shape}; {n_draft} values of I64 are needed")
    ids = [draft_id + offset for draft_id, offset in enumerate(_int64(head.read(d2t)))]
    outside = [i for i in ids if not 0 <= i < target.vocab_size]
    if outside or len(set(ids)) != len(ids):
        raise Refused(
            f"d2t maps {len(outside)} draft ids outside the target's vocabulary and "
            f"{len(ids) - len(set(ids))} onto an id that is taken",
            hint="export the head with the vocabulary mapping that it was trained with",
        )
    if t2d is None:
        if n_draft == target.vocab_size:
            return ()
        return ("the head holds d2t without t2d: some engines and trainers need both",)
    marked = {i for i, flag in enumerate(head.read(t2d)) if flag} if t2d.dtype == "BOOL" else None
    if t2d.shape != (target.vocab_size,) or marked != set(ids):
        raise Refused(
            f"t2d ({t2d.dtype} {t2d.shape}) does not mark the {len(ids)} ids that d2t maps to"
        )
    return ()


def _int64(data: bytes) -> array[int]:
    values = array("q")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
