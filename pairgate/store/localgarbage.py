"""What garbage collection does with a store in a local folder, apart from its index."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pairgate.domain.garbage import StoredBlob


class LocalGarbage:
    """Mixed into the store: listing and deleting; who decides is `pairgate.app.gc`."""

    _blobs: Path
    _staging: Path

    def list_blobs(self) -> Iterator[StoredBlob]:
        """Every file among the blobs, in no order; those that vanish meanwhile are left out."""
        with suppress(FileNotFoundError), os.scandir(self._blobs) as listing:
            for entry in listing:
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    yield StoredBlob(
                        digest=f"sha256:{entry.name}",
                        n_bytes=found.st_size,
                        stored_at=_iso(found.st_mtime),
                    )

    def delete_blob(self, digest: str) -> None:
        """Absent is fine."""
        (self._blobs / digest.removeprefix("sha256:")).unlink(missing_ok=True)

    def list_leftovers(self) -> tuple[StoredBlob, ...]:
        """What killed writers left in the staging folder; `digest` is the file's name there."""
        found = []
        for path in sorted(self._staging.iterdir()) if self._staging.is_dir() else ():
            with _abandoned(path) as size:
                if size is not None:
                    found.append(StoredBlob(digest=path.name, n_bytes=size, stored_at=""))
        return tuple(found)

    def sweep(self) -> int:
        """Delete what killed writers left in the staging folder; returns how many files."""
        n_swept = 0
        for path in list(self._staging.iterdir()) if self._staging.is_dir() else []:
            with _abandoned(path) as size:
                if size is not None:
                    path.unlink(missing_ok=True)
                    n_swept += 1
        return n_swept


@contextmanager
def _abandoned(path: Path) -> Iterator[int | None]:
    """The size of a staged file whose writer died, locked; None while its writer lives."""
    with suppress(FileNotFoundError), path.open("rb") as left:
        try:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a living writer holds it
        except BlockingIOError:
            yield None
        else:
            yield os.fstat(left.fileno()).st_size
        return
    yield None


def _iso(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
