"""A folder that moves from one version to the next in one step.

    DIR                      a symbolic link to the version in use, replaced by rename
    DIR.versions/<hex>/      one version whole: target/, draft/, pair.json; its files are read-only
    DIR.versions/.<hex>/     a version that is being written; a later run goes on with it

Who opens DIR (or resolves it) once and reads below that sees one version, whatever happens
meanwhile: the version that was replaced stays until the next switch.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pairgate.app.fetch import read_pair
from pairgate.domain.pair import FileEntry, Pair
from pairgate.errors import InvalidInput, PairgateError, Unavailable, require
from pairgate.store.streams import copy_to, hash_file, sync_folder, write_all

DOCUMENT = "pair.json"
_NAME = re.compile(r"[0-9a-f]{64}(-[0-9a-f]{8})?\Z")

Place = Callable[[FileEntry, Path], None]
"""place(entry, path): make the file at the new `path`, checked and synced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the folder shall hold, and how its files get there.

    `linked` says that `place` makes links; `check` may refuse the written version, before anybody
    sees it.
    """

    pair: Pair
    place: Place
    linked: bool = False
    check: Callable[[Path], None] | None = None

    def files(self, folder: Path) -> Iterator[tuple[FileEntry, Path]]:
        for model in self.pair.models:
            for entry in model.files:
                yield entry, folder / model.role / entry.path


def switch(to: Path, content: Content) -> bool:
    """Make `to` hold the content; false when it does already, by presence and size of its files.

    Raises `InvalidInput` when `to` is neither new, empty nor made here, `IntegrityError` for wrong
    bytes, `Unavailable` when nothing can be written there. Then `to` is what it was.
    """
    to = Path(os.path.abspath(to))  # not resolved: `to` is the link itself
    require(to.name, f"{to} cannot be replaced", hint="name a folder that does not exist yet")
    versions = to.with_name(to.name + ".versions")
    _current(to, versions)  # refused before anything is made
    try:
        with _locked(versions):
            current = _current(to, versions)
            if current is not None and _is_there(current, content):
                return False
            _point(to, _written(versions, current, content))
            _sweep(versions, keep=(_current(to, versions), current))
    except OSError as error:
        raise Unavailable(
            f"{to} cannot be written: {error.strerror}",
            hint="it holds what it held before; make room or give permission, then run it again",
        ) from error
    return True


def _current(to: Path, versions: Path) -> Path | None:
    """The version in use. Raises `InvalidInput` for anything that is not ours to replace."""
    if to.is_symlink():
        target = Path(os.readlink(to))
        if target.parent.name == versions.name and _NAME.match(target.name):
            return versions / target.name
        raise InvalidInput(
            f"{to} is a link to {target}, which pull did not make", hint="name another folder"
        )
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InvalidInput(
            f"{to} is not an empty folder, and pull did not make it",
            hint="name one that does not exist yet",
        )
    return None


@contextmanager
def _locked(versions: Path) -> Iterator[None]:
    """One writer at a time; the folder goes away again if nothing is in it in the end."""
    fd = _lock(versions)
    try:
        yield
    finally:
        with suppress(OSError):
            versions.rmdir()
        os.close(fd)


def _lock(versions: Path) -> int:
    while True:
        versions.mkdir(parents=True, exist_ok=True)
        fd = os.open(versions, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if versions.stat().st_ino == os.fstat(fd).st_ino:
                return fd
        os.close(fd)  # the writer before us removed it between open and lock


def _is_there(folder: Path, content: Content) -> bool:
    """Whether every file is there in its size; reads no weights."""
    try:
        return (folder / DOCUMENT).read_bytes() == content.pair.config_blob() and all(
            path.stat().st_size == entry.size and path.is_symlink() == content.linked
            for entry, path in content.files(folder)
        )
    except OSError:
        return False


def _is_right(entry: FileEntry, path: Path) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            return hash_file(file, None) == entry.sha256
    except OSError:
        return False


def _written(versions: Path, current: Path | None, content: Content) -> Path:
    """The folder of the version, whole, hashed and synced."""
    name = content.pair.digest.removeprefix("sha256:")
    folder = versions / name
    if folder.exists():
        if _is_there(folder, content) and all(_is_right(e, p) for e, p in content.files(folder)):
            return folder
        if folder == current:  # damaged and in use: beside it
            folder = versions / f"{name}-{secrets.token_hex(4)}"
        else:
            shutil.rmtree(folder)
    partial = versions / f".{name}"
    try:
        _write(partial, _files_of(current), content)
        if content.check is not None:
            content.check(partial)
    except (Unavailable, KeyboardInterrupt):
        raise  # a later run goes on from here
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    os.rename(partial, folder)
    sync_folder(versions)
    return folder


def _write(partial: Path, known: dict[str, Path], content: Content) -> None:
    for entry, path in content.files(partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() == content.linked and _is_right(entry, path):
            continue
        path.unlink(missing_ok=True)
        if content.linked or not _copied(known.get(entry.sha256), entry, path):
            content.place(entry, path)
        if not content.linked:
            path.chmod(0o444)
    (partial / DOCUMENT).unlink(missing_ok=True)
    with (partial / DOCUMENT).open("xb", buffering=0) as document:
        write_all(document, content.pair.config_blob())
        os.fsync(document.fileno())
        os.fchmod(document.fileno(), 0o444)
    for parent, _, _ in os.walk(partial):
        sync_folder(Path(parent))


def _files_of(current: Path | None) -> dict[str, Path]:
    """Files of the version in use by digest: an unchanged one need not come from afar again."""
    if current is None:
        return {}
    try:
        pair = read_pair((current / DOCUMENT).read_bytes())
    except (OSError, PairgateError):
        return {}
    return {e.sha256: current / m.role / e.path for m in pair.models for e in m.files}


def _copied(source: Path | None, entry: FileEntry, path: Path) -> bool:
    """Whether the file in use could be copied, or its extents shared, and is what it should be."""
    if source is None or source.is_symlink() or not source.is_file():
        return False
    with source.open("rb", buffering=0) as file:
        if copy_to(file, path) == entry.sha256:
            return True
    path.unlink()
    return False


def _point(to: Path, folder: Path) -> None:
    staged = to.with_name(f".{to.name}.next")  # one writer at a time, see _locked
    staged.unlink(missing_ok=True)
    staged.symlink_to(Path(folder.parent.name) / folder.name)
    try:
        if not to.is_symlink():
            with suppress(FileNotFoundError):
                to.rmdir()  # empty: a link cannot replace a folder
        os.replace(staged, to)
    finally:
        staged.unlink(missing_ok=True)
    sync_folder(to.parent)


def _sweep(versions: Path, keep: tuple[Path | None, ...]) -> None:
    for entry in list(versions.iterdir()):
        ours = _NAME.match(entry.name.removeprefix("."))
        if ours and entry not in keep:
            shutil.rmtree(entry, ignore_errors=True)
