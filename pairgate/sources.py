"""Where a model comes from, and which of its files are taken.

A source is a local folder in the Hugging Face format, or `hf://org/name@revision`, which is
resolved to a commit once. Weights must be safetensors, and code is never taken, unless that was
allowed on purpose; then a flag says so for ever.
"""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from pairgate.domain.pair import check_relative_path
from pairgate.errors import InvalidInput, MissingExtra, NotFound, Refused, Unavailable

CUSTOM_CODE = "custom-code"
PICKLE = "pickle"
MAX_DOCUMENT_BYTES = 256 << 20

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DOCUMENTS = (
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
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt")
# Pickles that trainers leave beside a model and no engine reads.
_NO_WEIGHTS = ("training_args.bin", "optimizer.*", "scheduler.*", "rng_state*", "trainer_state*")
_HF = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to take: its path in the model's folder and the regular file that has its bytes.

    `sha256` is what the source promises, where it does.
    """

    path: str
    location: Path
    size: int
    sha256: str | None = None

    @property
    def is_weights(self) -> bool:
        return is_weights(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A resolved source. `origin` names it again: an absolute folder, or a repository's commit."""

    spec: str
    origin: str
    files: tuple[SourceFile, ...]
    flags: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a person allowed on purpose."""

    custom_code: bool = False
    pickle: bool = False


def is_weights(path: str) -> bool:
    """Whether the path holds weights, in safetensors or in a format that may be refused."""
    return path.endswith(".safetensors") or _matches(path, _PICKLED)


NOTHING = Allowed()


def resolve(spec: str, allowed: Allowed = NOTHING) -> Source:
    """List the files of a source.

    Raises `NotFound` when it does not exist, `Refused` for code, pickled weights, GGUF and for
    links that leave the source, `InvalidInput` for names that are not safe everywhere,
    `Unavailable` when a hub cannot be reached.
    """
    if spec.startswith("hf://"):
        return _from_hub(spec, allowed)
    if "://" in spec:
        raise InvalidInput(
            f"the source {spec!r} has a scheme that pairgate does not know",
            hint="give a local folder or hf://org/name@revision",
        )
    folder = Path(spec).expanduser()
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        hint = "give the folder that holds config.json and the safetensors weights"
        if folder.suffix == ".gguf":
            hint = _GGUF_HINT
        raise NotFound(f"the source {spec!r} is not a folder that can be read", hint=hint)
    real = folder.resolve()
    selection = _select(real, sorted(os.listdir(real)), allowed)
    return _collect(real, selection, spec=spec, origin=str(real))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    documents: tuple[str, ...]
    weights: tuple[str, ...]
    code: tuple[str, ...]
    flags: tuple[str, ...]
    warnings: tuple[str, ...]


def _select(folder: Path, names: Sequence[str], allowed: Allowed) -> _Selection:
    """Which of `names` are taken; the documents among them lie in `folder` already."""
    _refuse_collisions(names)
    index = _read_json(folder, _INDEX) if _INDEX in names and _WEIGHTS not in names else {}
    weights, warnings = _choose_weights(names, _shards(index), allowed)
    code = tuple(n for n in names if n.endswith(".py"))
    auto_map = _auto_map(folder, names)
    if code or auto_map:
        _refuse_code(code, auto_map, allowed)
    pickled = any(_matches(name, _PICKLED) for name in weights)
    flags = {CUSTOM_CODE: bool(code or auto_map), PICKLE: pickled}
    documents = tuple(n for n in names if _matches(n, _DOCUMENTS))
    return _Selection(
        documents=(*documents, _INDEX) if index else documents,
        weights=weights,
        code=code,
        flags=tuple(flag for flag, applies in flags.items() if applies),
        warnings=warnings,
    )


def _collect(folder: Path, selection: _Selection, *, spec: str, origin: str) -> Source:
    paths = (*selection.weights, *selection.documents, *selection.code)
    files = tuple(_locate(folder, path) for path in paths)
    _refuse_hard_links(folder, files)
    return Source(
        spec=spec,
        origin=origin,
        files=files,
        flags=selection.flags,
        warnings=selection.warnings,
    )


def _choose_weights(
    names: Sequence[str], shards: tuple[str, ...], allowed: Allowed
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(files, warnings): one set of weights, never two formats of the same."""
    pickled = tuple(n for n in names if _matches(n, _PICKLED) and not _matches(n, _NO_WEIGHTS))
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
        raise Refused("the only weights are GGUF", hint=_GGUF_HINT)
    raise InvalidInput(
        "the source holds no weights", hint="give the folder that holds the safetensors files"
    )


_GGUF_HINT = "GGUF is not taken: give the safetensors model that it was converted from"


def _shards(index: dict[str, Any]) -> tuple[str, ...]:
    weight_map = index.get("weight_map")
    if not index:
        return ()
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise InvalidInput(f"{_INDEX} has no weight_map of file names")
    shards = tuple(sorted(set(weight_map.values())))
    for shard in shards:
        check_relative_path(shard)
        if not shard.endswith(".safetensors"):
            raise Refused(f"{_INDEX} names {shard!r}, which is not a safetensors file")
    return shards


def _locate(folder: Path, name: str) -> SourceFile:
    """The regular file behind a name; links are followed only to where their bytes may lie."""
    check_relative_path(name)
    try:
        name.encode()  # a name that is not text has no digest on another machine
        location = (folder / name).resolve(strict=True)
    except (OSError, RuntimeError, UnicodeError) as error:  # missing, a circle of links, bytes
        raise InvalidInput(f"{name!r} is named by the source but cannot be read: {error}") from None
    if not any(location.is_relative_to(root) for root in _roots(folder)):
        raise Refused(
            f"{name} is a link that leaves the source, to {location}",
            hint="copy the folder with its links resolved first: cp -rL SRC DIR",
        )
    found = location.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{name} is not a regular file")
    if not os.access(location, os.R_OK):
        raise InvalidInput(f"{name} may not be read by this user", hint="change its permissions")
    if found.st_size > MAX_DOCUMENT_BYTES and not is_weights(name):
        raise Refused(
            f"{name} has {found.st_size} bytes; only weights may have more than "
            f"{MAX_DOCUMENT_BYTES}"
        )
    return SourceFile(path=name, location=location, size=found.st_size)


def _roots(folder: Path) -> tuple[Path, ...]:
    """The source itself, and the blobs of the same entry when it is a Hugging Face cache."""
    entry = folder.parent.parent
    in_cache = folder.parent.name == "snapshots" and entry.name.startswith("models--")
    return (folder, entry / "blobs") if in_cache else (folder,)


def _refuse_hard_links(folder: Path, files: Iterable[SourceFile]) -> None:
    """Another name outside the source may let others change the bytes, or be a trick to copy
    a file that its author cannot read."""
    linked = [f for f in files if f.location.stat().st_nlink > 1]
    if not linked:
        return
    names = Counter(
        (found.st_dev, found.st_ino)
        for root in _roots(folder)
        for parent, _, children in os.walk(root)
        for found in (os.lstat(os.path.join(parent, child)) for child in children)
        if stat.S_ISREG(found.st_mode)
    )
    for file in linked:
        found = file.location.stat()
        if found.st_nlink > names[found.st_dev, found.st_ino]:
            raise Refused(
                f"{file.path} is a hard link to a file outside the source",
                hint="copy the folder first: cp -r SRC DIR",
            )


def _refuse_collisions(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
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
            auto_map = _read_json(folder, name).get("auto_map")
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


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads(_locate(folder, name).location.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} is not a JSON object")
    return value


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in patterns)


def _from_hub(spec: str, allowed: Allowed) -> Source:
    """Resolve the revision to a commit once, download that commit, keep its promised hashes."""
    match = _HF.match(spec)
    if not match:
        raise InvalidInput(f"{spec!r} is not hf://org/name@revision")
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError:
        raise MissingExtra("huggingface_hub", "native") from None
    name, revision = match["name"], match["revision"] or "main"
    # The hub client's HTTP library changed more than once; its base error is re-exported.
    transport_error = vars(errors).get("HTTPError", OSError)
    try:
        info = hub.HfApi().model_info(name, revision=revision, files_metadata=True)
        siblings, commit = info.siblings or (), str(info.sha)

        def download(patterns: Iterable[str]) -> Path:
            path = hub.snapshot_download(name, revision=commit, allow_patterns=list(patterns))
            return Path(path).resolve()

        folder = download((*_DOCUMENTS, _INDEX))
        names = sorted(f.rfilename for f in siblings if "/" not in f.rfilename)
        selection = _select(folder, names, allowed)
        download((*selection.weights, *selection.code))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise NotFound(
            f"{spec} does not exist, or you may not read it: {_first_line(error)}",
            hint="check name and revision; for a gated model log in with `hf auth login`",
        ) from error
    except (OSError, transport_error) as error:
        raise Unavailable(
            f"{spec} cannot be reached: {_first_line(error)}",
            hint="without a network, give the folder of a downloaded copy instead",
        ) from error
    promised = {f.rfilename: "sha256:" + f.lfs.sha256 for f in siblings if f.lfs is not None}
    source = _collect(folder, selection, spec=spec, origin=f"hf://{name}@{commit}")
    files = tuple(replace(f, sha256=promised.get(f.path)) for f in source.files)
    return replace(source, files=files)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
