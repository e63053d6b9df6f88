"""Which files of a model are taken: weights, documents, and code where it was allowed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from pairgate.domain.pair import check_relative_path
from pairgate.errors import InvalidInput, Refused
from pairgate.sources.folder import read_json
from pairgate.sources.model import CUSTOM_CODE, PICKLE, Allowed, is_pickled

_WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DOCUMENTS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.tiktoken",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "README.md",
    "LICENSE*",
    "LICENCE*",
    "NOTICE*",
    "USE_POLICY*",
)
# Pickles that trainers leave beside a model and no engine reads.
_NO_WEIGHTS = ("training_args.bin", "optimizer.*", "scheduler.*", "rng_state*", "trainer_state*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The names that are taken, by kind."""

    documents: tuple[str, ...]
    weights: tuple[str, ...]
    code: tuple[str, ...]
    flags: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return (*self.weights, *self.documents, *self.code)


def select(folder: Path, names: Sequence[str], allowed: Allowed) -> Selection:
    """Which of `names` are taken; the documents among them lie in `folder` already."""
    index = read_json(folder, INDEX) if INDEX in names and _WEIGHTS not in names else {}
    shards = _shards(index)
    _refuse_collisions({*names, *shards})
    weights, warnings = _choose_weights(names, shards, allowed)
    code = tuple(n for n in names if n.endswith(".py"))
    auto_map = _auto_map(folder, names)
    if code or auto_map:
        _refuse_code(code, auto_map, allowed)
    pickled = any(is_pickled(name) for name in weights)
    flags = {CUSTOM_CODE: bool(code or auto_map), PICKLE: pickled}
    documents = tuple(n for n in names if matches(n, DOCUMENTS))
    return Selection(
        documents=(*documents, INDEX) if index else documents,
        weights=weights,
        code=code,
        flags=tuple(flag for flag, applies in flags.items() if applies),
        warnings=warnings,
    )


def check_files(folder: Path, names: Sequence[str], allowed: Allowed) -> tuple[str, ...]:
    """The flags of a model that consists of `names`, whose documents lie in `folder`.

    Raises `Refused` for what `resolve` refuses, and for a file that it would not take.
    """
    selection = select(folder, sorted(names), allowed)
    taken = set(selection.paths)
    if taken != set(names):
        odd = sorted(taken ^ set(names))
        raise Refused(f"the model has files that no source of pairgate gives: {', '.join(odd[:5])}")
    return selection.flags


def _choose_weights(
    names: Sequence[str], shards: tuple[str, ...], allowed: Allowed
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(files, warnings): one set of weights, never two formats of the same."""
    pickled = tuple(n for n in names if is_pickled(n) and not matches(n, _NO_WEIGHTS))
    safe = tuple(n for n in names if n.endswith(".safetensors"))
    if _WEIGHTS in safe:
        safe = (_WEIGHTS,)
    elif shards:
        safe = shards
    if safe:
        left = f"left out, because safetensors are there: {', '.join(pickled)}"
        return safe, (left,) if pickled else ()
    if pickled and allowed.pickle:
        return pickled, (f"the weights are pickled: {', '.join(pickled)}",)
    if pickled:
        raise Refused(
            f"the only weights are pickled, and loading them can run code: {', '.join(pickled)}",
            hint="convert them to safetensors, or allow them for ever with --allow-pickle",
        )
    if any(n.endswith(".gguf") for n in names):
        raise Refused("the only weights are GGUF", hint=GGUF_HINT)
    raise InvalidInput(
        "the source holds no weights", hint="give the folder that holds the safetensors files"
    )


GGUF_HINT = "GGUF is not taken: give the safetensors model that it was converted from"


def _shards(index: dict[str, Any]) -> tuple[str, ...]:
    weight_map = index.get("weight_map")
    if not index:
        return ()
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise InvalidInput(f"{INDEX} has no weight_map of file names")
    shards = tuple(sorted(set(weight_map.values())))
    for shard in shards:
        check_relative_path(shard)
        if not shard.endswith(".safetensors"):
            raise Refused(f"{INDEX} names {shard!r}, which is not a safetensors file")
    return shards


def _refuse_collisions(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in sorted(names):
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in seen:
            raise Refused(
                f"{seen[folded]!r} and {name!r} are one name on a case-folding file system",
                hint="rename or remove one of them",
            )
        seen[folded] = name


def _auto_map(folder: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Classes that a config asks the loader to import from code files."""
    found: list[str] = []
    for name in ("config.json", "tokenizer_config.json"):
        if name in names:
            auto_map = read_json(folder, name).get("auto_map")
            if auto_map:
                values = auto_map.values() if isinstance(auto_map, dict) else [auto_map]
                found += [str(v) for v in values]
    return tuple(found)


def _refuse_code(code: tuple[str, ...], auto_map: tuple[str, ...], allowed: Allowed) -> None:
    elsewhere = [name for name in auto_map if "--" in name]
    if elsewhere:
        raise Refused(
            f"auto_map names code of another repository: {', '.join(elsewhere)}",
            hint="copy that code into the model's folder, so that it is part of the version",
        )
    if not allowed.custom_code:
        what = ", ".join((*code, *(f"auto_map {name}" for name in auto_map)))
        raise Refused(
            f"the model brings its own code, which would run when it is loaded: {what}",
            hint="remove what is not needed, or allow it for ever with --allow-custom-code",
        )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether the last part of a path fits one of the patterns; case counts."""
    return any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in patterns)
