"""The report as data: sections of paragraphs, tables, figures and commands.

The HTML report and the terminal render the same story, so that neither can say what the other
does not. A figure always carries its meaning in words and in lines of text; the drawing is extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pairgate.domain.evidence import Evaluation
from pairgate.domain.policy import Policy
from pairgate.domain.trace import TraceBatch
from pairgate.domain.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What the evaluation's digests are called: `candidate` is `line@3`, `incumbent` the version in
    production at the time, `pair` one line on method, draft length and models. `notes` are shown
    beside the verdict (an override, attempts on other slices)."""

    candidate: str
    incumbent: str = ""
    pair: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewInput:
    """Everything the story is told from. `acceptance` is the acceptance pass of the candidate;
    `texts` maps request ids to prompts and is read only where the policy shows texts."""

    evaluation: Evaluation
    verdict: Verdict
    policy: Policy
    labels: Labels
    acceptance: TraceBatch | None = None
    texts: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Running text."""

    kind: ClassVar[str] = "paragraph"
    text: str
    tone: str = ""  # "warning" or empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`prose` tables wrap their last column; others align every column but the first right.
    `notes` say why a cell holds no number. A `folded` table only confirms, and is shown on request
    under that line."""

    kind: ClassVar[str] = "table"
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    prose: bool = False
    notes: tuple[str, ...] = ()
    folded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`alt` says in a sentence what there is to see, `lines` draw it in text, `svg` in vectors."""

    kind: ClassVar[str] = "figure"
    title: str
    alt: str
    lines: tuple[str, ...] = ()
    svg: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line to select and copy."""

    kind: ClassVar[str] = "command"
    text: str


Block = Paragraph | Table | Figure | Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`brief` sections are part of the short story on the terminal."""

    key: str
    title: str
    blocks: tuple[Block, ...]
    brief: bool = False
