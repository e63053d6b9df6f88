"""What every part of the SQL registry stands on: one engine, opened and checked on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from pairgate.store.sqlengine import reading, writing
from pairgate.store.sqlschema import ensure_current


class SqlBase:
    """Read and write transactions on a database whose schema is current."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._checked = False

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        self._ensure()
        with reading(self.engine) as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        self._ensure()
        with writing(self.engine) as connection:
            yield connection

    def _ensure(self) -> None:
        if not self._checked:
            ensure_current(self.engine)
            self._checked = True
