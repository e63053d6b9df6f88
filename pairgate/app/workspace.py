"""The workspace: the home folder, the registry, the blob store and who acts in it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from pairgate.ports import BlobStore
    from pairgate.store.blobs import LocalBlobStore
    from pairgate.store.observations import Observations
    from pairgate.store.references import ReferencingStore
    from pairgate.store.sql import SqlRegistry

DEFAULT_HOME = "~/.pairgate"


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Opens lazily: a command pays only for what it touches.

    HOME/pairgate.db       the registry, unless a database URL is given
    HOME/store/            OCI image layout with every file of every pair, without a store URL
    HOME/cache/            files that were fetched from elsewhere; safe to delete when idle
    HOME/slices/           request texts, apart from the registry
    HOME/evaluations/      one folder per evaluation: traces, verdict, report
    HOME/work/             staging and materialised pairs; safe to delete when idle
    HOME/mlflow/           the embedded MLflow store
    HOME/observations/     what `watch` saw of live servers
    """

    home: Path
    database_url: str
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    store_url: str | None = None

    @classmethod
    def open(
        cls,
        *,
        home: str | None = None,
        database_url: str | None = None,
        store_url: str | None = None,
        create: bool = False,
    ) -> Workspace:
        """`store_url` (PAIRGATE_STORE_URL) is an object store; without it files lie in the home.

        Raises `NotFound` when the home does not exist and `create` is false, `Unavailable` when
        it cannot be made."""
        folder = Path(home or os.environ.get("PAIRGATE_HOME") or DEFAULT_HOME).expanduser()
        folder = folder.absolute()
        if create:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Unavailable(
                    f"the home {folder} cannot be made: {error.strerror}",
                    hint="name a folder that you may write, with --home or PAIRGATE_HOME",
                ) from error
        elif not folder.is_dir():
            raise NotFound(
                f"there is no pairgate home at {folder}",
                hint="make one with `pairgate init LINE`, or name another with --home",
            )
        url = database_url or os.environ.get("PAIRGATE_DATABASE_URL")
        return cls(
            home=folder,
            database_url=url or f"sqlite:///{folder / 'pairgate.db'}",
            store_url=store_url or os.environ.get("PAIRGATE_STORE_URL") or None,
        )

    @cached_property
    def registry(self) -> SqlRegistry:
        from pairgate.store.sql import SqlRegistry

        return SqlRegistry.open(self.database_url)

    @cached_property
    def blobs(self) -> ReferencingStore:
        from pairgate.store.references import ReferencingStore

        return ReferencingStore(
            self._store(), lambda digests: self.registry.references(digests), self.cache
        )

    def _store(self) -> BlobStore:
        if self.store_url:
            from pairgate.store.remote import RemoteBlobStore

            return RemoteBlobStore(self.store_url, self.cache)
        from pairgate.store.blobs import LocalBlobStore

        return LocalBlobStore(self.home / "store")

    @cached_property
    def cache(self) -> LocalBlobStore:
        """Blobs of an object store, and referenced files, that were brought to this machine."""
        from pairgate.store.blobs import LocalBlobStore

        return LocalBlobStore(self.home / "cache")

    @property
    def observations(self) -> Observations:
        """What was seen of live servers, from this home."""
        from pairgate.store.observations import Observations

        return Observations(self.home / "observations")

    @property
    def slices_dir(self) -> Path:
        return self.home / "slices"

    @property
    def evaluations_dir(self) -> Path:
        return self.home / "evaluations"

    def evaluation_folder(self, name: str) -> Path:
        """The folder of a stored evaluation, by the name that the registry keeps: a home that was
        copied or moved has its own."""
        return self.evaluations_dir / name

    @property
    def work_dir(self) -> Path:
        return self.home / "work"

    def close(self) -> None:
        if "registry" in self.__dict__:
            self.registry.close()


def now() -> str:
    """The present as ISO 8601 in UTC with microseconds; sorts as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
