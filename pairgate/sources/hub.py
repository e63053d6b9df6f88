"""Models on the Hugging Face hub: a revision is resolved to a commit once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pairgate.errors import InvalidInput, MissingExtra, NotFound, Unavailable
from pairgate.remotefiles import HUB_HASH, RemoteFile, Seen
from pairgate.sources.folder import collect
from pairgate.sources.model import Allowed, Source, SourceFile
from pairgate.sources.selection import DOCUMENTS, INDEX, select

_HF = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?\Z", re.ASCII)


def from_hub(spec: str, allowed: Allowed, *, by_reference: bool) -> Source:
    """Download the files of a commit, or all but the weights, and keep its promised hashes.

    Only a file that the hub keeps by its sha256 (Git LFS, Xet) can stay there.
    """
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
        hashed = {f.rfilename: (f.lfs.sha256, f.size or 0) for f in siblings if f.lfs}

        def download(patterns: Iterable[str]) -> Path:
            path = hub.snapshot_download(name, revision=commit, allow_patterns=list(patterns))
            return Path(path).resolve()

        folder = download((*DOCUMENTS, INDEX))
        names = sorted(f.rfilename for f in siblings if "/" not in f.rfilename)
        selection = select(folder, names, allowed)
        stay = tuple(w for w in selection.weights if by_reference and w in hashed)
        taken = tuple(p for p in selection.paths if p not in stay)
        download(tuple(p for p in taken if p not in selection.documents))
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
    promised = {path: f"sha256:{sha256}" for path, (sha256, _) in hashed.items()}
    files = tuple(replace(f, sha256=promised.get(f.path)) for f in collect(folder, taken))
    origin = f"hf://{name}@{commit}"
    return Source(
        spec=spec,
        origin=origin,
        files=(*files, *(_referenced(origin, commit, path, *hashed[path]) for path in stay)),
        flags=selection.flags,
        warnings=selection.warnings,
    )


def _referenced(origin: str, commit: str, path: str, lfs_sha256: str, size: int) -> SourceFile:
    uri, sha256 = f"{origin}/{path}", f"sha256:{lfs_sha256}"
    seen = Seen(uri=uri, size=size, version_id=commit, sha256=sha256, hashed_by=HUB_HASH)
    location = RemoteFile(uri=uri, size=size)
    return SourceFile(path=path, location=location, size=size, sha256=sha256, reference=seen)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
