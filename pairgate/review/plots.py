"""The report's drawings as inline SVG (matplotlib, no GUI, the same bytes every time).

Nothing depends on colour: series differ in marker, line style or hatch. No text of a user reaches
matplotlib unfiltered: names are cut down to printable ASCII, and the report has them in full.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pairgate.domain.evidence import Estimate
from pairgate.errors import MissingExtra
from pairgate.review.acceptance import Histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN = 4.8  # at 100 dots per inch: the review frame leaves about 500 pixels
_INK, _PAPER, _SECOND = "#1f3a5f", "#b9cde5", "#c4622d"
_MARKERS = ("o", "s", "^", "D")
_LINES = ("-", "--", ":", "-.")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---")
_FILLS = ("#7fa3cc", "#e3b58f", "#c9dcc0", "#efe3a0", "#d9d9d9", "#ffffff")
_ABOVE: dict[str, Any] = {
    "frameon": False,
    "fontsize": 7.5,
    "ncols": 3,
    "loc": "lower left",
    "bbox_to_anchor": (0, 1),
}
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "text.parse_math": False,
    "hatch.linewidth": 0.6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Estimates over labelled places; `values[i]` may be None where nothing was measured."""

    name: str
    values: tuple[Estimate | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One stacked bar: a name and its parts in the order of the legend."""

    name: str
    parts: tuple[float, ...]


def require_matplotlib() -> None:
    """Raises `MissingExtra` where matplotlib is not installed."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # first use builds a font cache
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("matplotlib", "report") from None


def histogram_svg(key: str, data: Histogram, threshold: float | None) -> str:
    """Bars of requests per bin, the null band hatched, the threshold as a dashed line."""

    def draw(ax: Axes) -> None:
        ax.stairs(
            data.counts,
            data.edges,
            fill=True,
            facecolor=_PAPER,
            edgecolor=_INK,
            linewidth=0.8,
            label="requests",
        )
        ax.stairs(
            data.high,
            data.edges,
            baseline=data.low,
            fill=True,
            facecolor="none",
            edgecolor=_SECOND,
            hatch="////",
            linewidth=0.8,
            label="if all were alike (95 %)",
        )
        if threshold is not None:
            ax.axvline(threshold, color="black", linestyle="--", linewidth=1, label="threshold")
        ax.set_xlim(0, 1)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("token acceptance of one request")
        ax.set_ylabel("requests")
        ax.legend(**_ABOVE)

    return _svg(key, 2.2, draw)


def series_svg(
    key: str,
    places: Sequence[str],
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    reference: float | None = None,
    from_zero: bool = False,
) -> str:
    """Points with intervals over places in a row; `reference` is a horizontal dashed line."""

    def draw(ax: Axes) -> None:
        for i, one in enumerate(series):
            shift = 0.12 * (i - (len(series) - 1) / 2)
            found = [(x + shift, e) for x, e in enumerate(one.values) if e is not None]
            if found:
                _points(ax, [x for x, _ in found], [e for _, e in found], one.name, i)
        if reference is not None:
            ax.axhline(reference, color="black", linestyle="--", linewidth=0.9)
        shown = range(0, len(places), max(1, len(places) // 12))
        ax.set_xticks(list(shown), [_plain(places[i]) for i in shown])
        ax.set_xlim(-0.5, len(places) - 0.5)
        if from_zero:
            ax.set_ylim(bottom=0)
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        if len(series) > 1:
            ax.legend(**{**_ABOVE, "ncols": 2})

    # The legend stands above, two names in a row.
    top_in = 0.28 if len(series) <= 2 else 0.46
    return _svg(key, 2.12 + top_in, draw, top_in=top_in)


def forest_svg(
    key: str, places: Sequence[str], values: Sequence[Estimate], *, threshold: float | None
) -> str:
    """One row per place, first on top: point and interval, and the threshold as a dashed line."""

    def draw(ax: Axes) -> None:
        rows = np.arange(len(values))
        x = np.array([e.value for e in values])
        bars = [x - [e.low for e in values], [e.high for e in values] - x]
        ax.errorbar(x, rows, xerr=np.maximum(bars, 0), fmt="o", color=_INK, markersize=4, capsize=2)
        if threshold is not None:
            ax.axvline(threshold, color="black", linestyle="--", linewidth=1)
        ax.set_yticks(rows, [_plain(p) for p in places])
        ax.set_ylim(len(values) - 0.5, -0.5)
        ax.set_xlim(0, 1)
        ax.set_xlabel("token acceptance")

    height = 0.55 + 0.24 * len(values)
    return _svg(key, height, draw, left_in=_names_in(places), top_in=0.06)


def stacked_svg(
    key: str, bars: Sequence[Bar], parts: Sequence[str], *, x_label: str, budget: float | None
) -> str:
    """Horizontal stacked bars, first on top, with the budget as a dashed line where it is near."""

    def draw(ax: Axes) -> None:
        rows = np.arange(len(bars))
        left = np.zeros(len(bars))
        for i, part in enumerate(parts):
            width = np.array([b.parts[i] for b in bars])
            ax.barh(
                rows,
                width,
                left=left,
                height=0.6,
                color=_FILLS[i % len(_FILLS)],
                edgecolor="black",
                linewidth=0.5,
                hatch=_HATCHES[i % len(_HATCHES)],
                label=part,
            )
            left = left + width
        longest = float(left.max()) if len(left) else 0.0
        if budget is not None and budget <= 3 * longest:
            ax.axvline(budget, color="black", linestyle="--", linewidth=1, label="budget")
        ax.set_yticks(rows, [_plain(b.name) for b in bars])
        ax.set_ylim(len(bars) - 0.5, -0.5)
        ax.set_xlabel(x_label)
        ax.legend(**_ABOVE)

    height = 0.95 + 0.26 * len(bars)
    return _svg(key, height, draw, left_in=_names_in([b.name for b in bars]), top_in=0.46)


def _points(
    ax: Axes, x: Sequence[float], values: Sequence[Estimate], name: str, style: int
) -> None:
    y = np.array([e.value for e in values])
    bars = [y - [e.low for e in values], [e.high for e in values] - y]
    ax.errorbar(
        x,
        y,
        yerr=np.maximum(bars, 0),
        marker=_MARKERS[style % len(_MARKERS)],
        linestyle=_LINES[style % len(_LINES)],
        color=(_INK, _SECOND, "#4b7f52", "#6b4c8a")[style % 4],
        markersize=4,
        linewidth=1.2,
        capsize=2,
        label=name,
    )


def _svg(
    key: str,
    height_in: float,
    draw: Callable[[Axes], None],
    *,
    left_in: float = 0.55,
    top_in: float = 0.28,
) -> str:
    """The drawing as one `<svg>` element without prolog, metadata and unused ids. `key` salts the
    ids that remain, so that two drawings on one page never share one."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": key}):
        figure = Figure(figsize=(WIDTH_IN, height_in))
        FigureCanvasSVG(figure)
        # Fixed margins: half the time of a layout engine, and no text metrics in the result.
        figure.subplots_adjust(
            left=left_in / WIDTH_IN,
            right=1 - 0.12 / WIDTH_IN,
            bottom=0.45 / height_in,
            top=1 - top_in / height_in,
        )
        draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    # The size comes from the page, so that the drawing shrinks with a narrow frame.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    return re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1).strip()


def _names_in(names: Sequence[str]) -> float:
    """Inches that the names left of the axis take, at most those of 22 characters."""
    return 0.25 + 0.064 * max(len(_plain(name)) for name in names)


def _plain(name: str) -> str:
    ascii_only = "".join(c if " " <= c <= "~" else "?" for c in name)
    return ascii_only if len(ascii_only) <= 22 else ascii_only[:21] + "."
