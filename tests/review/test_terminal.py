"""The same story as text: 80 columns, verdict first, no control characters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pairgate.domain.evidence import Estimate, Evaluation
from pairgate.domain.policy import Policy
from pairgate.domain.trace import TraceBatch
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.review.answers import reason
from pairgate.review.performance import crossover
from pairgate.review.story import Labels
from pairgate.review.terminal import summary_text

LABELS = Labels(candidate="code-assistant@2", incumbent="code-assistant@1")


def estimate(value: float, spread: float = 0.05) -> Estimate:
    return Estimate(
        value=value, low=value - spread, high=value + spread, n=6, unit="blocks", alpha=0.05,
        method="t",
    )  # fmt: skip


@pytest.fixture(scope="module")
def text(evaluation: Evaluation, verdict: Verdict, policy: Policy, batch: TraceBatch) -> str:
    return summary_text(evaluation, verdict, policy, labels=LABELS, acceptance=batch)


def test_the_verdict_stands_first_and_every_line_fits(text: str) -> None:
    lines = text.splitlines()
    assert lines[0] == "FAIL  code-assistant@2 must not go out."
    assert [line for line in lines if len(line) > 80] == []
    assert "\x1b" not in text


def test_it_says_why_and_where(text: str) -> None:
    assert "acceptance, domain sql" in text
    assert "Lowest: sql at 0.410 [0.380, 0.440], 120 requests." in text
    assert "The crossover lies between 8 and 32." in " ".join(text.split())
    assert "$ pairgate evaluate code-assistant@2" in text


def test_brief_keeps_the_answers_and_drops_the_appendix(
    text: str, evaluation: Evaluation, verdict: Verdict, policy: Policy
) -> None:
    brief = summary_text(evaluation, verdict, policy, labels=LABELS, brief=True)
    assert len(brief) < len(text) / 2
    assert "May it go out, and why" in brief
    assert "Where the evidence comes from" not in brief


def test_colour_changes_nothing_but_colour(
    text: str, evaluation: Evaluation, verdict: Verdict, policy: Policy, batch: TraceBatch
) -> None:
    painted = summary_text(
        evaluation, verdict, policy, labels=LABELS, acceptance=batch, colour=True
    )
    assert "\x1b[1;31mFAIL\x1b[0m" in painted
    plain = painted
    for code in (31, 32, 33, 35):
        plain = plain.replace(f"\x1b[1;{code}m", "")
    assert plain.replace("\x1b[0m", "") == text


def test_names_of_users_cannot_steer_the_terminal(
    make_evaluation: Callable[..., Evaluation],
    make_verdict: Callable[..., Verdict],
    policy: Policy,
) -> None:
    evaluation = make_evaluation({"\x1b]0;owned\x07\u202e": 0.4})
    verdict = replace(make_verdict(evaluation), recommendation="a\x1b[2Jb")
    text = summary_text(evaluation, verdict, policy, labels=LABELS)
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "a�[2Jb" in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.5, 1.2], "No crossover up to 8, the highest that was tested."),
        ([1.5, 0.9], "The crossover lies between 1 and 8."),
        ([0.8, 0.7], "slower at concurrency 1 and 8."),
        ([1.02, 0.7], "undecided at concurrency 1"),
    ],
)
def test_crossover(values: list[float], expected: str) -> None:
    assert expected in crossover(["1", "8"], [estimate(v) for v in values])


def test_an_inconclusive_check_says_how_much_more(
    evaluation: Evaluation, make_verdict: Callable[..., Verdict], policy: Policy
) -> None:
    verdict = make_verdict(evaluation, Outcome.INCONCLUSIVE)
    text = summary_text(evaluation, verdict, policy, labels=LABELS)
    assert text.startswith("INCONCLUSIVE  code-assistant@2 may not go out yet")
    assert "about 80 more would decide it" in " ".join(text.split())


def test_a_reason_that_names_the_missing_evidence_is_not_repeated(verdict: Verdict) -> None:
    check = replace(
        verdict.checks[0],
        outcome=Outcome.INCONCLUSIVE,
        reason="undecided (n=3 blocks, about 24 more would decide)",
        n_more=24,
    )
    assert reason(check).count("24 more") == 1
    assert reason(replace(check, reason="undecided")).endswith("about 24 more would decide it")
