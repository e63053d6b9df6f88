"""Where content lies that is referenced instead of copied: one row per digest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, insert, select, update

from pairgate.domain.records import Reference
from pairgate.errors import IntegrityError
from pairgate.store import schema as s
from pairgate.store.sqlbase import SqlBase, repeatable


class References(SqlBase):
    """The places of referenced files, by the digest of their content."""

    def references(self, digests: Iterable[str]) -> dict[str, Reference]:
        """The references among these digests; a digest without one is left out."""
        with self._read() as connection:
            query = select(s.reference).where(s.reference.c.digest.in_(tuple(digests)))
            rows = connection.execute(query).mappings()
            return {row["digest"]: Reference(**row) for row in rows}

    @repeatable
    def save_references(self, references: Sequence[Reference]) -> None:
        """Insert references; the row of content that is known follows to its newest place.

        Raises `IntegrityError` when the same digest is given another size.
        """
        with self._write() as connection:
            _save(connection, references)


def _save(connection: Connection, references: Iterable[Reference]) -> None:
    c = s.reference.c
    for reference in references:
        values = asdict(reference)
        size = connection.scalar(select(c.size).where(c.digest == reference.digest))
        if size is None:
            connection.execute(insert(s.reference).values(values))
        elif size == reference.size:
            where = c.digest == reference.digest
            connection.execute(update(s.reference).where(where).values(values))
        else:
            raise IntegrityError(
                f"{reference.uri} has {reference.size} bytes, but {reference.digest} was recorded "
                f"with {size}: its stated hash is wrong",
                hint="register again without --checksums, so that the file is hashed",
            )
