"""A serving command in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pairgate.domain.canonical import is_digest

Option = tuple[str, ...]
"""One option of a command: its name and its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the serving machine finds the models: folders, or addresses an engine can stream.

    `revision` is the commit of a target on a model hub. `draft` is None where nothing is stored.
    """

    target: str
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file that the command reads: name and text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """`launch` starts the engine and `model` names the target to it, as the words before the
    options; `notes` are for people, never part of the command."""

    engine: str
    engine_version: str
    label: str
    pair_digest: str
    profile: str
    launch: tuple[str, ...]
    model: tuple[str, ...]
    options: tuple[Option, ...]
    environment: tuple[str, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """All words after the launch."""
        return (*self.model, *(word for option in self.options for word in option))


def grouped(words: Iterable[str]) -> tuple[Option, ...]:
    """Options with their values, as the words of a canonical profile have them in a row."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            found.append([word])
        elif found:
            found[-1].append(word)
    return tuple(tuple(option) for option in found)


def without(options: Iterable[Option], names: frozenset[str]) -> Iterator[Option]:
    """The options whose name is not among `names`, written as `--name=value` or apart."""
    return (o for o in options if o[0].partition("=")[0] not in names)


def says(options: Iterable[Option], *names: str) -> bool:
    """Whether one of the names occurs."""
    return any(o[0].partition("=")[0] in names for o in options)


def served_digest(digest: str) -> str:
    """`sha256-…`: the digest without the colon, which SGLang keeps for adapters."""
    return digest.replace(":", "-", 1)


def pair_named_by(served_name: str) -> str | None:
    """The pair digest in a served model name `LINE@sha256-…`; None where there is none."""
    digest = served_name.rpartition("@")[2].replace("-", ":", 1)
    return digest if is_digest(digest) else None
