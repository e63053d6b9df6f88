"""Which prompts of a slice stand, nearly word for word, in text that a model was trained on.

Broder 1997, "On the resemblance and containment of documents": texts are sets of shingles (runs of
words), compared by MinHash. A prompt can stand anywhere in a long document, so both sides are cut
into windows of equal length, dense enough on the training side that a copy always meets one.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairgate.domain.traffic import Request
from pairgate.errors import InvalidInput, MissingExtra
from pairgate.traffic.jsontext import DECODER
from pairgate.traffic.lines import read_lines
from pairgate.traffic.report import BadRecord

SHINGLE_WORDS = 4
# Window lengths in shingles; the short one is for prompts that the long one does not fit.
WINDOWS = (32, 8)
# Jaccard similarity of two windows that counts as near-duplicate: a copy off by an eighth of a
# window has 0.78, one changed word in a window of 32 another 0.8 of that.
SIMILARITY = 0.5
# A prompt leaks when at least this share of its windows was found.
LEAKED_SHARE = 0.5
_PERMUTATIONS = 64
_WORD = re.compile(r"\w+")
_TEXT_KEYS = ("text", "content", "prompt", "value")
_FLUSH_WORDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A prompt and the share of its windows that stand in the training text."""

    request_id: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakReport:
    """`n_too_short` prompts have fewer words than the shortest window: they are not judged."""

    n_checked: int
    n_too_short: int
    n_training_words: int
    leaks: tuple[Leak, ...]


def find_leaks(requests: Iterable[Request], training: Iterable[Path]) -> LeakReport:
    """Compare prompts with training text files (plain text, or JSON lines, all of whose strings
    under text, content, prompt or value are read), holding only the prompts."""
    index = _Index()
    n_too_short = 0
    n_checked = 0
    for request in requests:
        if index.add(request.id, prompt_words(request)):
            n_checked += 1
        else:
            n_too_short += 1
    index.finish()
    n_words = 0
    for path in training:
        for block in _blocks(path):
            index.meet(block.words)
            n_words += block.n_new
    return LeakReport(
        n_checked=n_checked,
        n_too_short=n_too_short,
        n_training_words=n_words,
        leaks=index.leaks(),
    )


def prompt_words(request: Request) -> list[str]:
    """Words of the user's own text: a system prompt is the same in every request."""
    if request.text is not None:
        return words(request.text)
    messages = json.loads(request.messages) if request.messages is not None else []
    own = [m for m in messages if m["role"] not in ("system", "developer")]
    return words("\n".join(_strings(own)))


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return _WORD.findall(text.lower())


def shingles(tokens: list[str]) -> NDArray[np.uint32]:
    """[words − 3] hashes of all runs of four words."""
    runs = zip(*(tokens[i:] for i in range(SHINGLE_WORDS)), strict=False)
    return np.fromiter((zlib.crc32(" ".join(run).encode()) for run in runs), dtype=np.uint32)


@dataclass
class _Index:
    """Windows of the prompts by length, and which of them were met in the training text."""

    searches: dict[int, Any] = field(default_factory=dict)
    prompts: dict[int, list[NDArray[np.uint32]]] = field(default_factory=dict)
    known: dict[int, NDArray[np.uint32]] = field(default_factory=dict)
    n_windows: dict[str, int] = field(default_factory=dict)
    met: dict[str, set[str]] = field(default_factory=dict)

    def add(self, id: str, tokens: list[str]) -> bool:
        hashes = shingles(tokens)
        size = next((s for s in WINDOWS if len(hashes) >= s), None)
        if size is None:
            return False
        if size not in self.searches:
            self.searches[size] = _library().MinHashLSH(
                threshold=SIMILARITY, num_perm=_PERMUTATIONS
            )
        starts = sorted({*range(0, len(hashes) - size + 1, size), len(hashes) - size})
        for start in starts:
            window = hashes[start : start + size]
            # The id stands last: it may hold any character.
            self.searches[size].insert(f"{start} {id}", _minhash(window))
        self.prompts.setdefault(size, []).append(hashes)
        self.n_windows[id] = len(starts)
        return True

    def finish(self) -> None:
        self.known = {size: np.unique(np.concatenate(p)) for size, p in self.prompts.items()}
        self.prompts.clear()

    def meet(self, tokens: list[str]) -> None:
        """Look for the windows in one block of training text."""
        hashes = shingles(tokens)
        for size, search in self.searches.items():
            shared = np.concatenate(([0], np.cumsum(_among(hashes, self.known[size]))))
            last = len(hashes) - size
            starts = np.arange(0, last + 1, size // 4) if last >= 0 else np.zeros(0, np.int64)
            # Similarity s of two sets of n needs 2ns/(1 + s) common members (half of that where
            # shingles repeat); most windows of training text share none, and need no MinHash.
            needed = int(size * SIMILARITY / (1 + SIMILARITY))
            for start in starts[shared[starts + size] - shared[starts] >= needed]:
                for key in search.query(_minhash(hashes[start : start + size])):
                    window, _, id = key.partition(" ")
                    self.met.setdefault(id, set()).add(window)

    def leaks(self) -> tuple[Leak, ...]:
        shares = {id: len(found) / self.n_windows[id] for id, found in self.met.items()}
        found = [Leak(request_id=id, share=s) for id, s in shares.items() if s >= LEAKED_SHARE]
        return tuple(sorted(found, key=lambda leak: (-leak.share, leak.request_id)))


def _among(hashes: NDArray[np.uint32], known: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """[n] which hashes occur in `known`, which is sorted; far faster here than np.isin."""
    at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return np.asarray(known[at] == hashes)


@cache
def _empty_minhash() -> Any:
    # The shingles are hashes already; drawing the permutations again for each would dominate.
    return _library().MinHash(num_perm=_PERMUTATIONS, seed=1, hashfunc=int)


def _minhash(window: NDArray[np.uint32]) -> Any:
    found = _empty_minhash().copy()
    found.update_batch(window.tolist())
    return found


def _library() -> Any:
    try:
        import datasketch
    except ImportError as error:
        raise MissingExtra("datasketch", "slices") from error
    return datasketch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Words of a training file; all but the last `n_new` stood in the block before too."""

    words: list[str]
    n_new: int


def _blocks(path: Path) -> Iterator[_Block]:
    """A training file in blocks that overlap by a window, so that no copy is cut."""
    if not path.is_file():
        raise InvalidInput(f"--check-against {path}: there is no such file")
    overlap = max(WINDOWS) + SHINGLE_WORDS
    held: list[str] = []
    n_old = 0
    for text in _texts(path):
        held += words(text)
        if len(held) > _FLUSH_WORDS:
            yield _Block(words=held, n_new=len(held) - n_old)
            held = held[-overlap:]
            n_old = len(held)
    yield _Block(words=held, n_new=len(held) - n_old)


def _texts(path: Path) -> Iterator[str]:
    for raw in read_lines(path, path.name):
        if raw.bad is not None:
            raise InvalidInput(f"--check-against {path}, line {raw.place.line}: {raw.bad}")
        if not raw.text.startswith("{"):
            yield raw.text
            continue
        try:
            yield "\n".join(_strings(DECODER.decode(raw.text)))
        except (ValueError, RecursionError, BadRecord):
            yield raw.text


def _strings(value: Any) -> Iterator[str]:
    """Every string that stands under a key for text, at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str):
                if key in _TEXT_KEYS:
                    yield item
            else:
                yield from _strings(item)
