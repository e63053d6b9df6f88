"""The same story as plain text, 80 columns wide, verdict first."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from pairgate.domain.evidence import Evaluation
from pairgate.domain.policy import Policy
from pairgate.domain.trace import TraceBatch
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.review.answers import headline
from pairgate.review.outline import outline
from pairgate.review.story import (
    Block,
    Command,
    Figure,
    Labels,
    Paragraph,
    ReviewInput,
    Table,
)
from pairgate.review.wording import clipped, printable

_COLOURS = {Outcome.PASS: 32, Outcome.FAIL: 31, Outcome.INCONCLUSIVE: 33, Outcome.ERROR: 35}


def summary_text(
    evaluation: Evaluation,
    verdict: Verdict,
    policy: Policy,
    *,
    labels: Labels,
    acceptance: TraceBatch | None = None,
    brief: bool = False,
    width: int = 80,
    colour: bool = False,
) -> str:
    """The report as text; `brief` keeps verdict, comparison, domains and speed.

    No control character of the input reaches the output. `colour` paints the outcomes (ANSI) and
    nothing else, so the text says the same without it.
    """
    inputs = ReviewInput(
        evaluation=evaluation,
        verdict=verdict,
        policy=policy,
        labels=labels,
        acceptance=acceptance,
    )
    lines = [f"{verdict.outcome}  {headline(inputs)}"]
    if labels.pair:
        lines += _wrapped(labels.pair, width, "  ")
    for section in outline(inputs, draw=False):
        if brief and not section.brief:
            continue
        lines += ["", section.title, "-" * len(section.title)]
        for block in section.blocks:
            if brief and isinstance(block, Table) and block.folded:
                lines.append(f"  {block.folded}")
            else:
                lines += _block(block, width)
    text = "\n".join(line.rstrip() for line in lines)
    return _painted(text) if colour else text


def _block(block: Block, width: int) -> Iterator[str]:
    match block:
        case Table():
            yield from _prose(block, width) if block.prose else _columns(block, width)
            for note in block.notes:
                yield from _wrapped(f"  {note}", width, "  ")
        case Figure():
            yield ""
            yield from _wrapped(f"{block.title}. {block.alt}", width)
            yield from (f"  {line}" for line in block.lines)
        case Command():
            yield f"  $ {printable(block.text)}"
        case Paragraph():
            mark = "! " if block.tone == "warning" else ""
            yield from _wrapped(mark + block.text, width, "  " if mark else "")


def _prose(table: Table, width: int) -> Iterator[str]:
    """Short columns side by side, the last one wrapped beside them, or under them if too narrow."""
    rows = [tuple(printable(c) for c in row) for row in table.rows]
    widths = (
        [max(len(r[i]) for r in rows) + 2 for i in range(len(table.headers) - 1)] if rows else []
    )
    left = sum(widths)
    beside = width - left >= 36
    indent = " " * (left if beside else 4)
    for row in rows:
        head = "".join(c.ljust(w) for c, w in zip(row, widths, strict=False))
        prose = textwrap.wrap(row[-1], width - len(indent)) or [""]
        if beside:
            yield head + prose[0]
            prose = prose[1:]
        else:
            yield head
        yield from (indent + line for line in prose)


def _columns(table: Table, width: int) -> Iterator[str]:
    """Aligned columns; the first one gives way where the line would be too long."""
    rows = [table.headers, *(tuple(printable(c) for c in row) for row in table.rows)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(table.headers))]
    widths[0] = max(8, min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    for row in rows:
        first = clipped(row[0], widths[0]).ljust(widths[0])
        yield "  ".join([first, *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(printable(text), width, subsequent_indent=indent)


def _painted(text: str) -> str:
    for outcome, code in _COLOURS.items():
        text = re.sub(rf"(?m)^{outcome}(?=  )", f"\x1b[1;{code}m{outcome}\x1b[0m", text)
    return text
