"""The order of the story; every section is a function of the same input."""

from __future__ import annotations

from pairgate.review.answers import comparison_section, failures_section, verdict_section
from pairgate.review.appendix import counts_section, fidelity_section, provenance_section
from pairgate.review.breakdowns import breakdown_section, requests_section, worst_section
from pairgate.review.performance import (
    fallback_section,
    latency_section,
    memory_section,
    speed_section,
)
from pairgate.review.story import ReviewInput, Section

_SECTIONS = (
    verdict_section,
    comparison_section,
    failures_section,
    requests_section,
    breakdown_section,
    speed_section,
    latency_section,
    memory_section,
    fallback_section,
    fidelity_section,
    worst_section,
    counts_section,
    provenance_section,
)


def outline(inputs: ReviewInput, *, draw: bool) -> tuple[Section, ...]:
    """All sections in order; `draw` adds vector drawings (needs matplotlib)."""
    return tuple(section(inputs, draw) for section in _SECTIONS)
