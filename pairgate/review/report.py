"""The report as one self-contained HTML file.

It is shown in sandboxed frames (MLflow's is 529 pixels wide: no links, downloads or storage), so
nothing is loaded, nothing is scripted and commands are selectable text. Everything that comes from
users passes through the template's autoescape; only our own drawings are marked safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from pairgate.domain.evidence import Evaluation
from pairgate.domain.policy import Policy
from pairgate.domain.trace import TraceBatch
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.errors import MissingExtra
from pairgate.review import plots
from pairgate.review.answers import headline
from pairgate.review.outline import outline
from pairgate.review.story import Labels, ReviewInput
from pairgate.review.wording import printable


def report_html(
    evaluation: Evaluation,
    verdict: Verdict,
    policy: Policy,
    *,
    labels: Labels,
    acceptance: TraceBatch | None = None,
    texts: Mapping[str, str] | None = None,
) -> str:
    """One HTML document; the same input gives the same text.

    `acceptance` is the acceptance pass of the candidate, `texts` request id -> prompt (read only
    where `policy.show_texts`). Without matplotlib tables and text histograms take the place of
    drawings, and the report names the missing extra. Raises `MissingExtra` without jinja2.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise MissingExtra("jinja2", "report") from None
    inputs = ReviewInput(
        evaluation=evaluation,
        verdict=verdict,
        policy=policy,
        labels=labels,
        acceptance=acceptance,
        texts=texts,
    )
    missing = ""
    try:
        plots.require_matplotlib()
    except MissingExtra as error:
        missing = f"Without drawings: {error.message}; {error.hint}."
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files(__package__).joinpath("report.html.j2").read_text("utf-8")
    text = environment.from_string(source).render(
        title=f"{verdict.outcome}: {labels.candidate}",
        headline=headline(inputs),
        outcome=verdict.outcome.value,
        outcomes=[o.value for o in Outcome],
        pair=labels.pair,
        missing=missing,
        sections=outline(inputs, draw=not missing),
    )
    # A lone surrogate of a prompt cannot be written as UTF-8.
    return printable(text.encode("utf-8", "replace").decode("utf-8"))
