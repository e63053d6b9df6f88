"""Frozen dataclasses to canonical JSON text and back.

Standard library only: `promote` and `rollback` decode pairs and profiles and must not pay for a
validation library. The text is our own (and bound by digests), so decoding is strict and short.
"""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pairgate.domain.canonical import canonical_json
from pairgate.errors import IntegrityError

T = TypeVar("T")


def dump_json(value: Any) -> str:
    """Canonical JSON of a dataclass: the text whose digest is the value's."""
    return canonical_json(value).decode("utf-8", "surrogatepass")


def load_json(cls: type[T], text: str) -> T:
    """The dataclass `cls` that `dump_json` wrote; raises `IntegrityError` for any other text."""
    try:
        return cast(T, _decode(cls, json.loads(text), cls.__name__))
    except ValueError as error:
        raise IntegrityError(f"stored {cls.__name__} is not JSON: {error}") from error


def _decode(kind: Any, value: Any, where: str) -> Any:
    """`value` (parsed JSON) as an instance of the annotation `kind`."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), value, where)
    if origin in (tuple, frozenset):
        return _decode_items(kind, value, where)
    if is_dataclass(kind):
        return _decode_dataclass(cast(type, kind), value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    # A float field that was given 1 keeps its 1: 1.0 would change the digest.
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise IntegrityError(f"{where} is {value!r:.60}, not {kind}")
    return value


def _decode_dataclass(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict) or not _fits(cls, value):
        raise IntegrityError(f"{where} does not have the fields of {cls.__name__}")
    hints = _hints(cls)
    return cls(**{k: _decode(hints[k], v, f"{where}.{k}") for k, v in value.items()})


def _decode_items(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise IntegrityError(f"{where} is {value!r:.60}, not a list")
    args = get_args(kind)
    repeated = get_origin(kind) is frozenset or args[-1] is Ellipsis
    kinds: Sequence[Any] = [args[0]] * len(value) if repeated else args
    if len(kinds) != len(value):
        raise IntegrityError(f"{where} has {len(value)} items, not {len(kinds)}")
    made = (
        _decode(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))
    )
    return get_origin(kind)(made)


def _decode_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """The member that fits; of dataclasses the one with the fewest fields left to defaults."""
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, dict):
        fitting = [k for k in kinds if is_dataclass(k) and _fits(cast(type, k), value)]
        if fitting:
            return _decode(min(fitting, key=lambda k: len(fields(k))), value, where)
    for kind in kinds:
        if not is_dataclass(kind) and kind is not type(None):
            try:
                return _decode(kind, value, where)
            except (IntegrityError, ValueError):
                continue
    raise IntegrityError(f"{where} is {value!r:.60}, which fits none of {kinds}")


def _fits(cls: type, value: dict[str, Any]) -> bool:
    known = {f.name for f in fields(cls)}
    return set(value) <= known and _required(cls) <= set(value)


@cache
def _required(cls: type) -> frozenset[str]:
    def needed(field: Field[Any]) -> bool:
        return field.default is MISSING and field.default_factory is MISSING

    return frozenset(f.name for f in fields(cls) if needed(f))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)
