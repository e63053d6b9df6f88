"""Numbers and names as people read them; every rendering of the review says the same words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from pairgate.domain.evidence import Estimate, Missing, Scope
from pairgate.domain.trace import Arm

ARM_NAMES = {
    Arm.SPEC: "with draft",
    Arm.TARGET: "without draft",
    Arm.INCUMBENT: "production",
    Arm.CARRY_OVER: "production's draft",
}

# Escape sequences, other control characters and reordering of a name must not steer a reader's
# terminal or page.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

Format = Callable[[float], str]


def share(x: float) -> str:
    """An acceptance or another share of one."""
    return f"{x:.3f}"


def percent(x: float) -> str:
    """A share in percent, one decimal."""
    return f"{100 * x:.1f} %"


def ratio(x: float) -> str:
    """How many times as much."""
    return f"×{x:.2f}"


def quantity(x: float) -> str:
    """Milliseconds, tokens per second, tokens per round: three significant digits."""
    if abs(x) >= 99.95:
        return f"{x:,.0f}"
    return f"{x:.1f}" if abs(x) >= 9.995 else f"{x:.2f}"


def megabytes(n_bytes: float) -> str:
    """Bytes as MiB or GiB."""
    mib = n_bytes / 2**20
    return f"{mib / 1024:.2f} GiB" if mib >= 1024 else f"{mib:.1f} MiB"


def interval(value: Estimate | Missing, form: Format) -> str:
    """`0.712 [0.690, 0.733]`, or why there is no number."""
    if isinstance(value, Missing):
        return f"not measured: {value.reason}"
    return f"{form(value.value)} [{form(value.low)}, {form(value.high)}]"


def short(digest: str | None) -> str:
    """The first 12 hex digits of a digest: what people compare by eye, and approve by."""
    return "none" if digest is None else digest.removeprefix("sha256:")[:12]


def printable(text: str) -> str:
    """The text with control characters replaced by `�`."""
    return _CONTROL.sub("�", text)


def clipped(text: str, width: int) -> str:
    """At most `width` characters, with the middle left out; names of users can be any length."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def natural(scope: Scope) -> tuple[float, str]:
    """Sort key: by the first number in the scope's key, then by the key."""
    found = re.search(r"\d+(\.\d+)?", scope.key)
    return (float(found.group()) if found else -1.0, scope.key)


def unique(texts: Iterable[str], limit: int) -> tuple[str, ...]:
    """The first `limit` different texts, in order, and how many more there were."""
    found = list(dict.fromkeys(texts))
    more = len(found) - limit
    return (*found[:limit], *((f"and {more} more",) if more > 0 else ()))


def joined(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


class Cells:
    """Formats the cells of one table and keeps, for its notes, why some hold no number."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def __call__(self, value: Estimate | Missing, form: Format) -> str:
        if isinstance(value, Missing):
            self._reasons.append(value.reason)
            return "not measured"
        return interval(value, form)

    def point(self, value: Estimate | Missing, form: Format) -> str:
        """Without the interval, where a table has no room for it."""
        return self(value, form) if isinstance(value, Missing) else form(value.value)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"not measured: {text}" for text in unique(self._reasons, 3))
