"""The HTML report: escaping, size, determinism, self-containedness, and life without matplotlib."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pairgate.domain.evidence import Evaluation, Measurements
from pairgate.domain.policy import Policy
from pairgate.domain.trace import TraceBatch
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.errors import MissingExtra
from pairgate.review.report import report_html
from pairgate.review.story import Labels

LABELS = Labels(
    candidate="code-assistant@2", incumbent="code-assistant@1", pair="draft_model, K = 5"
)
HOSTILE = '<script>alert("x")</script>&amp;</pre>\'$x$\x1b[31m'


class Elements(HTMLParser):
    """Collects tags, attributes and text as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def html(evaluation: Evaluation, verdict: Verdict, policy: Policy, batch: TraceBatch) -> str:
    """The policy does not show texts, though they are at hand."""
    texts = {str(i): "secret prompt" for i in batch.request_id}
    return report_html(evaluation, verdict, policy, labels=LABELS, acceptance=batch, texts=texts)


def test_the_answers_come_in_order(html: str) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles[0] == "May it go out, and why"
    assert titles[1].startswith("Compared with production")
    assert titles[2] == "Where it fails"
    assert titles[-1] == "Where the evidence comes from"
    assert html.index("must not go out") < html.index("<h2>")


def test_nothing_is_loaded_or_run(html: str) -> None:
    found = Elements(html)
    assert not {"script", "a", "img", "iframe", "object", "form"} & set(found.tags)
    outside = [(k, v) for k, v in found.attributes if "://" in v and not k.startswith("xmlns")]
    assert outside == []
    # Inside drawings only references to the same page.
    references = [v for k, v in found.attributes if k in ("href", "xlink:href", "src")]
    assert all(v.startswith(("#", "data:,")) for v in references)


def test_the_same_input_gives_the_same_bytes(
    html: str, evaluation: Evaluation, verdict: Verdict, policy: Policy, batch: TraceBatch
) -> None:
    again = report_html(evaluation, verdict, policy, labels=LABELS, acceptance=batch)
    assert again == html


def test_ids_of_drawings_are_unique(html: str) -> None:
    ids = re.findall(r'<(?:clipPath|pattern) id="([^"]+)"', html)
    assert ids
    assert len(ids) == len(set(ids))


def test_every_drawing_says_in_words_what_it_shows(html: str) -> None:
    drawings = html.count("<svg")
    assert drawings >= 10
    assert len(re.findall(r'role="img" aria-label="[^"]{20,}"', html)) == drawings


def test_names_and_prompts_of_users_stay_text(
    make_evaluation: Callable[..., Evaluation],
    make_verdict: Callable[..., Verdict],
    make_batch: Callable[..., TraceBatch],
    showing_policy: Policy,
) -> None:
    domains = {HOSTILE: 0.4, "数学": 0.8, "plain": 0.7}
    evaluation = make_evaluation(domains)
    verdict = replace(make_verdict(evaluation), warnings=(HOSTILE,), recommendation=HOSTILE)
    batch = make_batch(60, domains)
    texts = {str(i): f"{HOSTILE} prompt \udc80" for i in batch.request_id}
    html = report_html(
        evaluation, verdict, showing_policy, labels=LABELS, acceptance=batch, texts=texts
    )
    found = Elements(html)
    assert "script" not in found.tags
    assert any('<script>alert("x")</script>&amp;' in text for text in found.texts)
    assert any("prompt ?" in text for text in found.texts)
    html.encode("utf-8")


def test_texts_need_the_policys_leave(html: str) -> None:
    assert "secret prompt" not in html
    assert "Texts stay out of this report" in html


def test_ten_thousand_requests_in_many_domains_stay_small(
    make_evaluation: Callable[..., Evaluation],
    make_verdict: Callable[..., Verdict],
    make_batch: Callable[..., TraceBatch],
    policy: Policy,
) -> None:
    domains = {f"domain-{i}": 0.4 + 0.01 * i for i in range(40)}
    evaluation = make_evaluation(domains)
    batch = TraceBatch.concat([make_batch(400, domains)] * 25)
    html = report_html(
        evaluation, make_verdict(evaluation), policy, labels=LABELS, acceptance=batch
    )
    assert len(batch) == 10_000
    assert len(html.encode()) < 3 * 2**20
    assert "domains with higher acceptance are not drawn" in html


def test_without_matplotlib_it_is_written_and_says_so(
    evaluation: Evaluation,
    verdict: Verdict,
    policy: Policy,
    batch: TraceBatch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    html = report_html(evaluation, verdict, policy, labels=LABELS, acceptance=batch)
    assert "<svg" not in html
    assert "pairgate[report]" in html
    assert "##########" in html


def test_without_jinja2_the_extra_is_named(
    evaluation: Evaluation, verdict: Verdict, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match="jinja2"):
        report_html(evaluation, verdict, policy, labels=LABELS)


def test_an_evaluation_without_any_measurement_is_still_reported(
    evaluation: Evaluation, policy: Policy
) -> None:
    empty = replace(evaluation, measurements=Measurements(definition="d", metrics=(), counts=()))
    nothing = Verdict(outcome=Outcome.ERROR, checks=(), policy_digest=policy.digest)
    html = report_html(empty, nothing, policy, labels=LABELS)
    assert "cannot be judged" in html
    assert "not measured" in html
