"""Pairs and versions, and what a version is judged on: profiles, slices, policies."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import Connection, RowMapping, func, insert, or_, select, update

from pairgate.domain.pair import Method, Pair, PairVersion, VersionRef
from pairgate.domain.profile import ServingProfile
from pairgate.domain.records import ProfileRow, SliceRow, Verification
from pairgate.errors import InvalidInput, NotFound
from pairgate.store import schema as s
from pairgate.store.codec import dump_json, load_json
from pairgate.store.sqlbase import SqlBase, repeatable
from pairgate.store.sqllines import read_head


class Pairs(SqlBase):
    """Content by digest, and the versions that name it."""

    @repeatable
    def add_pair(self, pair: Pair, provenance_json: str, at: str) -> str:
        """Store the pair document (once); its files were hashed at `at`. Returns the digest."""
        with self._write() as connection:
            return ensure_pair(connection, pair, provenance_json, at)

    def pair(self, digest: str) -> Pair:
        """Raises `NotFound`."""
        with self._read() as connection:
            return read_pair(connection, digest)

    def provenance(self, pair_digest: str) -> str:
        """Where the pair's models came from, as JSON text."""
        with self._read() as connection:
            text = connection.scalar(
                select(s.pair.c.provenance).where(s.pair.c.digest == pair_digest)
            )
        if text is None:
            raise NotFound(f"there is no pair {pair_digest}")
        return text

    def record_verification(self, pair_digest: str, at: str, problem: str = "") -> None:
        """The files of the pair were hashed at `at`; `problem` is '' or what was wrong."""
        with self._write() as connection:
            connection.execute(
                update(s.pair)
                .where(s.pair.c.digest == pair_digest)
                .values(verified_at=at, verify_problem=problem)
            )

    def file_problems(self, line: str) -> dict[int, str]:
        """What was wrong with the files of a line's versions when they were last checked, by
        version; those without a problem are left out."""
        with self._read() as connection:
            query = (
                select(s.version.c.number, s.pair.c.verify_problem)
                .join(s.pair, s.pair.c.digest == s.version.c.pair_digest)
                .where(s.version.c.line == line, s.pair.c.verify_problem != "")
            )
            return {row.number: row.verify_problem for row in connection.execute(query)}

    def verification(self, pair_digest: str) -> Verification:
        """When the pair's files were last hashed; registering is the first time."""
        with self._read() as connection:
            row = connection.execute(
                select(s.pair.c.verified_at, s.pair.c.verify_problem).where(
                    s.pair.c.digest == pair_digest
                )
            ).first()
        if row is None:
            raise NotFound(f"there is no pair {pair_digest}")
        return Verification(pair_digest=pair_digest, at=row.verified_at, problem=row.verify_problem)

    @repeatable
    def add_version(
        self, line: str, pair_digest: str, target_digest: str, method: Method, at: str, by: str
    ) -> PairVersion:
        """The line's version of this pair: a new number, or the one that it has already."""
        with self._write() as connection:
            # The line's row serialises the numbering on PostgreSQL too.
            connection.execute(select(s.line.c.name).where(s.line.c.name == line).with_for_update())
            return ensure_version(connection, line, pair_digest, target_digest, method, at, by)

    def version(self, ref: VersionRef) -> PairVersion:
        """Resolve `line@3`, `@production`, `@previous` or `@sha256:…` (a unique prefix of at
        least 6 digits does). Raises `NotFound`."""
        with self._read() as connection:
            return read_version(connection, ref)

    def versions(self, line: str) -> list[PairVersion]:
        """All versions of a line, by number."""
        with self._read() as connection:
            read_head(connection, line)
            return read_versions(connection, line)

    @repeatable
    def save_profile(self, line: str, profile: ServingProfile, at: str) -> int:
        """The number of this profile on the line: `name@number`. Equal content keeps its number."""
        with self._write() as connection:
            read_head(connection, line)
            same_line = s.profile.c.line == line
            known = connection.scalar(
                select(s.profile.c.number).where(same_line, s.profile.c.digest == profile.digest)
            )
            if known is not None:
                return known
            newest = connection.scalar(
                select(func.max(s.profile.c.number)).where(
                    same_line, s.profile.c.name == profile.name
                )
            )
            number = (newest or 0) + 1
            connection.execute(
                insert(s.profile).values(
                    line=line,
                    name=profile.name,
                    number=number,
                    digest=profile.digest,
                    document=profile.document().decode(),
                    created_at=at,
                )
            )
            return number

    def profile(self, digest: str) -> ServingProfile:
        """Raises `NotFound`."""
        with self._read() as connection:
            text = connection.scalar(
                select(s.profile.c.document).where(s.profile.c.digest == digest).limit(1)
            )
        if text is None:
            raise NotFound(f"there is no profile {digest}")
        return load_json(ServingProfile, text)

    def profiles(self, line: str) -> list[ProfileRow]:
        """Every version of every profile of a line."""
        with self._read() as connection:
            read_head(connection, line)
            c = s.profile.c
            query = (
                select(c.line, c.name, c.number, c.digest, c.created_at)
                .where(c.line == line)
                .order_by(c.name, c.number)
            )
            return [ProfileRow(**row) for row in connection.execute(query).mappings()]

    @repeatable
    def save_slice(
        self,
        name: str,
        digest: str,
        n_requests: int,
        domains: Mapping[str, int],
        texts_digest: str,
        at: str,
    ) -> SliceRow:
        """Store a slice's hashes and counts (once). Raises `InvalidInput` when the same requests
        are stored under another name."""
        with self._write() as connection:
            known = _slice_row(connection, digest)
            if known is None:
                connection.execute(
                    insert(s.slice_).values(
                        digest=digest,
                        name=name,
                        n_requests=n_requests,
                        domains=json.dumps(dict(domains), ensure_ascii=False),
                        texts_digest=texts_digest,
                        created_at=at,
                    )
                )
                known = _slice_row(connection, digest)
        assert known is not None
        if known.name != name:
            raise InvalidInput(
                f"exactly these requests are stored as slice {known.name!r} already",
                hint=f"use that name: --slice {known.name}",
            )
        return known

    def slice_(self, digest_or_name: str) -> SliceRow:
        """By digest, or the newest of that name. Raises `NotFound`."""
        with self._read() as connection:
            row = _slice_row(connection, digest_or_name)
            names = connection.scalars(select(s.slice_.c.name).distinct()).all()
        if row is None:
            listed = ", ".join(sorted(names)) or "none yet"
            raise NotFound(
                f"there is no slice {digest_or_name!r}",
                hint=f"stored slices: {listed}; make one with `pairgate slice create`",
            )
        return row

    def slices(self) -> list[SliceRow]:
        with self._read() as connection:
            query = select(s.slice_).order_by(s.slice_.c.name, s.slice_.c.created_at)
            return [_slice(row) for row in connection.execute(query).mappings()]

    @repeatable
    def save_policy(self, digest: str, name: str, document: str, at: str) -> None:
        """Store a whole policy. Edits that do not decide (name, advice) keep the digest and
        replace the document."""
        with self._write() as connection:
            c = s.policy.c
            known = connection.scalar(select(c.document).where(c.digest == digest))
            if known is None:
                values = {"digest": digest, "name": name, "document": document, "created_at": at}
                connection.execute(insert(s.policy).values(values))
            elif known != document:
                connection.execute(
                    update(s.policy).where(c.digest == digest).values(name=name, document=document)
                )

    def policy_digests(self) -> tuple[str, ...]:
        """Of every stored policy."""
        with self._read() as connection:
            digests = select(s.policy.c.digest).order_by(s.policy.c.digest)
            return tuple(connection.scalars(digests))

    def has_policy(self, digest: str) -> bool:
        with self._read() as connection:
            query = select(s.policy.c.digest).where(s.policy.c.digest == digest)
            return connection.scalar(query) is not None

    def policy_document(self, digest: str) -> str:
        """Raises `NotFound`."""
        with self._read() as connection:
            return read_policy_document(connection, digest)


def ensure_pair(connection: Connection, pair: Pair, provenance_json: str, at: str) -> str:
    """Insert the pair unless it is there; returns its digest."""
    digest = pair.digest
    known = select(s.pair.c.digest).where(s.pair.c.digest == digest)
    if connection.scalar(known) is None:
        connection.execute(
            insert(s.pair).values(
                digest=digest,
                target_digest=pair.target_digest,
                method=pair.decoding.method.value,
                document=dump_json(pair),
                provenance=provenance_json,
                created_at=at,
                verified_at=at,
            )
        )
    return digest


def read_pair(connection: Connection, digest: str) -> Pair:
    """The pair of this digest; raises `NotFound`."""
    text = connection.scalar(select(s.pair.c.document).where(s.pair.c.digest == digest))
    if text is None:
        raise NotFound(f"there is no pair {digest}")
    return load_json(Pair, text)


def ensure_version(
    connection: Connection,
    line: str,
    pair_digest: str,
    target_digest: str,
    method: Method,
    at: str,
    by: str,
) -> PairVersion:
    """Inside a transaction that holds the line, once the files are there: a version that gc
    collected is whole again."""
    read_head(connection, line)
    c = s.version.c
    mine = (c.line == line) & (c.pair_digest == pair_digest)
    same = select(s.version).where(mine)
    row = connection.execute(same).mappings().first()
    if row is not None:
        renewed = update(s.version).where(mine).values(collected_at=None, renewed_at=at)
        connection.execute(renewed)
        row = connection.execute(same).mappings().one()
    else:
        newest = connection.scalar(select(func.max(c.number)).where(c.line == line))
        connection.execute(
            insert(s.version).values(
                line=line,
                number=(newest or 0) + 1,
                pair_digest=pair_digest,
                target_digest=target_digest,
                method=Method(method).value,
                created_at=at,
                created_by=by,
            )
        )
        row = connection.execute(same).mappings().one()
    return _version(row)


def read_version(connection: Connection, ref: VersionRef) -> PairVersion:
    """The version that a person named; raises `NotFound`, `InvalidInput` for a bad digest."""
    head = read_head(connection, ref.line)
    c = s.version.c
    if ref.selector.startswith("sha256:"):
        if len(ref.selector) < len("sha256:") + 6 or not ref.selector[7:].isalnum():
            raise InvalidInput(f"{ref} is too short or no digest", hint="give 6 digits or more")
        chosen = c.pair_digest.startswith(ref.selector, autoescape=True)
    elif ref.selector in ("production", "previous"):
        number = head.production if ref.selector == "production" else head.previous
        if number is None:
            raise NotFound(f"line {ref.line} has no {ref.selector} version")
        chosen = c.number == number
    else:
        chosen = c.number == int(ref.selector)
    query = select(s.version).where(c.line == ref.line, chosen).limit(2)
    rows = connection.execute(query).mappings().all()
    if len(rows) == 1:
        return _version(rows[0])
    if rows:
        raise InvalidInput(f"{ref} names more than one version", hint="give more digits")
    newest = connection.scalar(select(func.max(c.number)).where(c.line == ref.line))
    known = f"versions 1 to {newest}" if newest else "no versions yet; run `pairgate register`"
    raise NotFound(f"there is no version {ref}", hint=f"line {ref.line} has {known}")


def read_versions(connection: Connection, line: str) -> list[PairVersion]:
    """The versions of a line by number."""
    query = select(s.version).where(s.version.c.line == line).order_by(s.version.c.number)
    return [_version(row) for row in connection.execute(query).mappings()]


def read_profiles(connection: Connection, line: str) -> list[ServingProfile]:
    """Every stored profile of a line, by name and number."""
    c = s.profile.c
    query = select(c.document).where(c.line == line).order_by(c.name, c.number)
    return [load_json(ServingProfile, document) for document in connection.scalars(query)]


def read_policy_document(connection: Connection, digest: str) -> str:
    """The canonical text of a policy; raises `NotFound`."""
    document = connection.scalar(select(s.policy.c.document).where(s.policy.c.digest == digest))
    if document is None:
        raise NotFound(f"there is no policy {digest}")
    return document


def _version(row: RowMapping) -> PairVersion:
    return PairVersion(
        line=row["line"],
        number=row["number"],
        pair_digest=row["pair_digest"],
        target_digest=row["target_digest"],
        method=Method(row["method"]),
        state=row["state"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        collected_at=row["collected_at"],
        renewed_at=row["renewed_at"],
    )


def _slice_row(connection: Connection, digest_or_name: str) -> SliceRow | None:
    c = s.slice_.c
    query = (
        select(s.slice_)
        .where(or_(c.digest == digest_or_name, c.name == digest_or_name))
        .order_by(c.created_at.desc())
        .limit(1)
    )
    row = connection.execute(query).mappings().first()
    return None if row is None else _slice(row)


def _slice(row: RowMapping) -> SliceRow:
    values = dict(row)
    values["domains"] = tuple(json.loads(values["domains"]).items())
    return SliceRow(**values)
