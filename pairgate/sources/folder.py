"""Files of a local folder: links are followed only to where their bytes may lie."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pairgate.domain.documents import max_bytes, parse_document
from pairgate.domain.pair import check_relative_path
from pairgate.errors import InvalidInput, Refused
from pairgate.sources.model import MAX_DOCUMENT_BYTES, SourceFile, is_weights


def collect(folder: Path, paths: Iterable[str]) -> tuple[SourceFile, ...]:
    """The files of a folder at these paths."""
    files = tuple(locate(folder, path) for path in paths)
    _refuse_hard_links(folder, [(file.path, folder.joinpath(file.path).stat()) for file in files])
    return files


def locate(folder: Path, name: str) -> SourceFile:
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


def _refuse_hard_links(folder: Path, files: Iterable[tuple[str, os.stat_result]]) -> None:
    """Another name outside the source may let others change the bytes, or be a trick to copy
    a file that its author cannot read."""
    linked = [(path, found) for path, found in files if found.st_nlink > 1]
    if not linked:
        return
    names = Counter(
        (found.st_dev, found.st_ino)
        for root in _roots(folder)
        for parent, _, children in os.walk(root)
        for found in (os.lstat(os.path.join(parent, child)) for child in children)
        if stat.S_ISREG(found.st_mode)
    )
    for path, found in linked:
        if found.st_nlink > names[found.st_dev, found.st_ino]:
            raise Refused(
                f"{path} is a hard link to a file outside the source",
                hint="copy the folder first: cp -r SRC DIR",
            )


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a document of the folder; raises `InvalidInput` for anything else."""
    found = locate(folder, name)
    if found.size > max_bytes(name):
        raise InvalidInput(f"{name} has {found.size} bytes; at most {max_bytes(name)} are read")
    return parse_document((folder / name).read_bytes(), name, name=name)
