"""What every part of the SQL registry stands on: one engine, opened and checked on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from pairgate.store.sqlengine import again, reading, writing
from pairgate.store.sqlschema import ensure_current

P = ParamSpec("P")
T = TypeVar("T")


def repeatable(method: Callable[P, T]) -> Callable[P, T]:
    """Mark a method that is one transaction and may run again when PostgreSQL asks for that."""

    @wraps(method)
    def attempted(*args: P.args, **kwargs: P.kwargs) -> T:
        return again(lambda: method(*args, **kwargs))

    return attempted


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
