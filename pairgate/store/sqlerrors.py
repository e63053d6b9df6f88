"""What SQLite and PostgreSQL say, in our words: which file or server, and what to do next."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from pairgate.errors import Conflict, IntegrityError, InvalidInput, PairgateError, Unavailable

# Primary result codes, https://www.sqlite.org/rescode.html
_BUSY, _LOCKED, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = (
    5, 6, 8, 10, 11, 13, 14, 26,
)  # fmt: skip
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_LOCK_TIMEOUT, _DISK_FULL, _READ_ONLY, _UNIQUE = "55P03", "53100", "25006", "23505"
_AGAIN = ("40001", "40P01", _UNIQUE)
_UNREACHABLE = ("connection failed", "connection is bad", "connection timeout", "resolve host")
_SMALLEST_BYTES = 1 << 20
_NOTHING_CHANGED = "nothing was changed; run the command again"


def in_our_words(error: DBAPIError, engine: Engine) -> PairgateError:
    """The error of ours that a driver's error is."""
    where = shown(engine)
    said = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else "no message"
    known = (
        _of_sqlite(error, Path(engine.url.database or ""), said)
        if engine.dialect.name == "sqlite"
        else _of_postgresql(error, where, said)
    )
    return known or _of_constraints(error, said) or _unknown(where, said)


def is_transient(error: BaseException) -> bool:
    """Whether PostgreSQL wants the whole transaction once more: a serialisation failure, a
    deadlock, or a row that another transaction inserted first and this one will now see."""
    cause = error.__cause__
    original = cause.orig if isinstance(cause, DBAPIError) else None
    return getattr(original, "sqlstate", None) in _AGAIN


def lost_at_commit(error: DBAPIError, engine: Engine) -> PairgateError:
    """The one moment in which nobody can tell whether a change took effect."""
    if not error.connection_invalidated:
        return in_our_words(error, engine)
    return Unavailable(
        f"the connection to {shown(engine)} was lost while the change was being committed: "
        "whether it took effect is not known",
        hint="look with `pairgate status`; repeating the command is safe, a rollback's with its "
        "--request-id",
    )


def shown(engine: Engine) -> str:
    """The database's file, or the server's address without its password."""
    if engine.dialect.name == "sqlite":
        return engine.url.database or ""
    return engine.url.render_as_string(hide_password=True)


def _of_sqlite(error: DBAPIError, path: Path, said: str) -> PairgateError | None:
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    name = getattr(error.orig, "sqlite_errorname", "")
    if code in (_CORRUPT, _NOTADB):
        return IntegrityError(
            f"the registry {path} is damaged: {said}",
            hint="restore it from a backup; `sqlite3 FILE .recover` may save what is left",
        )
    if code in (_BUSY, _LOCKED):
        return Unavailable(
            f"another process holds the registry {path}: {said}", hint="run the command again"
        )
    if code == _READONLY:
        return Unavailable(
            f"the registry {path} cannot be written: {said}",
            hint=f"{_obstacle(path)}. Reading commands write beside it too (-wal, -shm)",
        )
    if code == _CANTOPEN:
        return Unavailable(f"the registry {path} cannot be opened: {said}", hint=_obstacle(path))
    if code == _FULL or (code == _IOERR and _is_full(path.parent)):
        return Unavailable(
            f"no space is left for the registry {path}: {said}",
            hint=f"free some on the disk of {path.parent}; {_NOTHING_CHANGED}",
        )
    if code == _IOERR:
        return Unavailable(
            f"the disk refused the registry {path}: {said} ({name})",
            hint=f"look for a full or failing disk, a quota or a limit on file sizes at "
            f"{path.parent} (df, dmesg, ulimit -f), then run the command again",
        )
    return None


def _is_full(folder: Path) -> bool:
    """SQLite calls it an I/O error when the index of its log (-shm) finds no room."""
    try:
        free = os.statvfs(folder)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _SMALLEST_BYTES


def _obstacle(path: Path) -> str:
    """What stands in the way of opening the file for writing, as far as one can see."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder}: make it, or name another with --home"
    read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    if read_only:
        return f"{folder} is mounted read-only: mount it writable, or name another with --home"
    for wanted in (folder, path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        if wanted.exists() and not os.access(wanted, os.R_OK | os.W_OK):
            return f"you may not write {wanted}: check its owner and mode"
    return f"check the owner and the mode of {folder} and of the files in it"


def _of_postgresql(error: DBAPIError, where: str, said: str) -> PairgateError | None:
    state, low = getattr(error.orig, "sqlstate", None), str(error.orig).lower()
    if state == _LOCK_TIMEOUT:
        return Unavailable(
            f"another process holds the registry at {where}: {said}", hint="run the command again"
        )
    if state == _DISK_FULL:
        return Unavailable(
            f"no space is left on the database server {where}: {said}",
            hint=f"free some there; {_NOTHING_CHANGED}",
        )
    if state == _READ_ONLY:
        return Unavailable(
            f"the registry at {where} cannot be written: {said}",
            hint="name the primary server in PAIRGATE_DATABASE_URL, this is a standby",
        )
    if "authentication failed" in low or "no password supplied" in low:
        return Unavailable(
            f"the database server {where} does not let you in: {said}",
            hint="check user and password in PAIRGATE_DATABASE_URL, or in ~/.pgpass",
        )
    if error.connection_invalidated:
        return Unavailable(f"the connection to {where} was lost: {said}", hint=_NOTHING_CHANGED)
    if any(words in low for words in _UNREACHABLE):
        return Unavailable(
            f"the database server {where} cannot be reached: {said}",
            hint="start it, or check PAIRGATE_DATABASE_URL and the network; what is in production "
            "stays in production meanwhile",
        )
    return None


def _of_constraints(error: DBAPIError, said: str) -> PairgateError | None:
    low, state = said.lower(), getattr(error.orig, "sqlstate", None)
    if "unique" in low or "is there already" in low or state == _UNIQUE:
        return Conflict(f"somebody else stored the same thing: {said}", hint="run it again")
    if "foreign key" in low:
        return InvalidInput(f"this refers to something that the registry does not hold: {said}")
    if state == "23001" or isinstance(error.orig, _sqlite_integrity_error()):
        return IntegrityError(f"the registry refuses this change: {said}")
    return None


def _unknown(where: str, said: str) -> PairgateError:
    return Unavailable(
        f"the registry at {where} cannot be used: {said}",
        hint="check --home and --database-url, and `pairgate db current`",
    )


def _sqlite_integrity_error() -> type[Exception]:
    import sqlite3

    return sqlite3.IntegrityError
