"""What a source is: the files of one model, and where their bytes are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pairgate.remotefiles import RemoteFile, Seen

CUSTOM_CODE = "custom-code"
PICKLE = "pickle"
MAX_DOCUMENT_BYTES = 256 << 20

_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to take: its path in the model's folder and what has its bytes.

    `sha256` is what the source promises, where it does. A file with a `reference` stays where it
    is; its location is a path only if that is on this machine.
    """

    path: str
    location: Path | RemoteFile
    size: int
    sha256: str | None = None
    reference: Seen | None = None

    @property
    def is_weights(self) -> bool:
        return is_weights(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A resolved source. `origin` names it again: an absolute folder, or a repository's commit."""

    spec: str
    origin: str
    files: tuple[SourceFile, ...]
    flags: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a person allowed on purpose."""

    custom_code: bool = False
    pickle: bool = False


NOTHING = Allowed()


def is_weights(path: str) -> bool:
    """Whether the path holds weights, in safetensors or in a format that may be refused."""
    return path.endswith(".safetensors") or is_pickled(path)


def is_pickled(path: str) -> bool:
    """Whether the path is named like a file that pickle wrote."""
    return PurePosixPath(path).suffix in _PICKLED
