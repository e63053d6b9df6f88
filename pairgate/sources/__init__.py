"""Where a model comes from, and which of its files are taken.

A source is a local folder in the Hugging Face format, `hf://org/name@revision`, which is resolved
to a commit once, or a prefix of an object store. Weights must be safetensors, and code is never
taken, unless that was allowed on purpose; then a flag says so for ever.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from pairgate.errors import InvalidInput, NotFound
from pairgate.remotefiles import OBJECT_SCHEMES, look, scheme
from pairgate.sources.folder import collect
from pairgate.sources.hub import from_hub
from pairgate.sources.model import (
    CUSTOM_CODE,
    MAX_DOCUMENT_BYTES,
    NOTHING,
    PICKLE,
    Allowed,
    Source,
    SourceFile,
    is_weights,
)
from pairgate.sources.objects import from_objects
from pairgate.sources.selection import GGUF_HINT, check_files, select

__all__ = [
    "CUSTOM_CODE",
    "MAX_DOCUMENT_BYTES",
    "NOTHING",
    "PICKLE",
    "Allowed",
    "Source",
    "SourceFile",
    "check_files",
    "is_remote",
    "is_weights",
    "resolve",
]


def is_remote(spec: str) -> bool:
    """Whether the source is on another machine."""
    return scheme(spec) == "hf" or scheme(spec) in OBJECT_SCHEMES


def resolve(
    spec: str,
    allowed: Allowed = NOTHING,
    *,
    by_reference: bool = False,
    scratch: Path | None = None,
) -> Source:
    """List the files of a source; `by_reference` leaves its weights where they are.

    What an object store holds is downloaded to the empty folder `scratch`. Raises `NotFound` when
    the source does not exist, `Refused` for code, pickled weights, GGUF and for links that leave
    the source, `InvalidInput` for names that are not safe everywhere, `Unavailable` when a hub or
    a store cannot be reached.
    """
    if scheme(spec) == "hf":
        return from_hub(spec, allowed, by_reference=by_reference)
    if scheme(spec) in OBJECT_SCHEMES and scratch is not None:
        return from_objects(spec, allowed, scratch, by_reference=by_reference)
    if scheme(spec):
        raise InvalidInput(
            f"the source {spec!r} has a scheme that pairgate does not know",
            hint="give a local folder, hf://org/name@revision or s3://bucket/prefix",
        )
    return _from_folder(spec, allowed, by_reference=by_reference)


def _from_folder(spec: str, allowed: Allowed, *, by_reference: bool) -> Source:
    folder = Path(spec).expanduser()
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        hint = "give the folder that holds config.json and the safetensors weights"
        if folder.suffix == ".gguf":
            hint = GGUF_HINT
        raise NotFound(f"the source {spec!r} is not a folder that can be read", hint=hint)
    real = folder.resolve()
    selection = select(real, sorted(os.listdir(real)), allowed)
    files = collect(real, selection.paths)
    return Source(
        spec=spec,
        origin=str(real),
        files=tuple(_staying(f) if by_reference and f.is_weights else f for f in files),
        flags=selection.flags,
        warnings=selection.warnings,
    )


def _staying(file: SourceFile) -> SourceFile:
    assert isinstance(file.location, Path)
    seen = look(file.location.as_uri())
    if seen is None:
        raise NotFound(f"{file.location} vanished while it was read")
    return replace(file, size=seen.size, reference=seen)
