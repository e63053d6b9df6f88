"""Checks for drafts that are no language models of their own: EAGLE-3, DFlash and MTP heads.

EAGLE-3 (Li et al. 2025) reads hidden states of the target at some layers and may propose from a
reduced vocabulary: `d2t[i]` is added to draft id i to get the target's id, and `t2d` marks the
target ids that the draft has.
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
    """A head's config and tensors; `read` gives the bytes of a small one."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    read: Callable[[Tensor], bytes]


def check_head(method: Method, head: Head, target: Architecture) -> tuple[str, ...]:
    """Raises `Refused` when the head cannot belong to the target; returns warnings."""
    _check_hidden_size(head, target)
    layers = _auxiliary_layers(head.config)
    deep = [layer for layer in layers if not 0 <= layer <= target.n_layers]
    if deep:
        raise Refused(
            f"the {method} head reads layers {deep} of a target that has {target.n_layers} layers",
            hint="use a head that was trained for this target",
        )
    _check_vocabulary(head, target)
    verifier = _verifier(head.config)
    return (f"the head names {verifier} as its target",) if verifier else ()


def check_mtp(config: Mapping[str, Any], names: frozenset[str]) -> None:
    """Raises `Refused` unless the target's own files hold the prediction layers that its config
    announces. `names` are the tensors of the target."""
    text = text_config(config)
    n_layers = text.get("num_nextn_predict_layers") or text.get("mtp_num_hidden_layers") or 0
    depth = text.get("num_hidden_layers", 0)
    found = any(f".layers.{depth}." in name or "mtp." in name for name in names)
    if not n_layers or not found:
        raise Refused(
            f"the target announces {n_layers} MTP layers and its files hold "
            f"{'some' if found else 'none'}",
            hint="use a checkpoint that kept its MTP layers, or another --method",
        )


def suggested_tokens(config: Mapping[str, Any]) -> int | None:
    """The draft length that a speculators checkpoint recommends."""
    for proposal in _speculators(config).get("proposal_methods") or ():
        n_tokens = proposal.get("speculative_tokens") if isinstance(proposal, dict) else None
        if type(n_tokens) is int:
            return n_tokens
    return None


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


def _verifier(config: Mapping[str, Any]) -> str | None:
    verifier = _speculators(config).get("verifier")
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return name if isinstance(name, str) else None


def _check_vocabulary(head: Head, target: Architecture) -> None:
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
        return
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
        return
    marked = {i for i, flag in enumerate(head.read(t2d)) if flag} if t2d.dtype == "BOOL" else None
    if t2d.shape != (target.vocab_size,) or marked != set(ids):
        raise Refused(
            f"t2d ({t2d.dtype} {t2d.shape}) does not mark the {len(ids)} ids that d2t maps to"
        )


def _int64(data: bytes) -> array[int]:
    values = array("q")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
