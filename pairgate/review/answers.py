"""The first three sections, in the order in which people ask: may it go out and why, how does it
compare, where does it fail."""

from __future__ import annotations

from pairgate.domain.evidence import OVERALL, Estimate, Missing, Scope
from pairgate.domain.policy import AcceptanceRule, Mode
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Check, Outcome
from pairgate.review import plots
from pairgate.review.story import (
    Block,
    Command,
    Figure,
    Paragraph,
    ReviewInput,
    Section,
    Table,
)
from pairgate.review.wording import (
    ARM_NAMES,
    Cells,
    clipped,
    interval,
    natural,
    quantity,
    ratio,
    share,
)

MAX_DOMAINS = 24
_REQUEST_MEAN, _POOLED = "token_acceptance.request_mean", "token_acceptance.pooled"
_HEADLINES = {
    Outcome.PASS: "may go out: every gating check passed.",
    Outcome.FAIL: "must not go out.",
    Outcome.INCONCLUSIVE: "may not go out yet: there is not enough evidence to say.",
    Outcome.ERROR: "cannot be judged: the evaluation is invalid.",
}


def headline(inputs: ReviewInput) -> str:
    """One sentence: the version, and what may be done with it."""
    return headline_of(inputs.labels.candidate, inputs.verdict.outcome)


def headline_of(version: str, outcome: Outcome) -> str:
    """The report's first line: the version and its outcome in words."""
    return f"{version} {_HEADLINES[outcome]}"


def reason(check: Check) -> str:
    """The check's own sentence, and how much more evidence would decide it."""
    if check.n_more is None or check.outcome is not Outcome.INCONCLUSIVE:
        return check.reason
    if "more would decide" in check.reason:
        return check.reason
    return f"{check.reason}; about {check.n_more:,} more would decide it"


def verdict_section(inputs: ReviewInput, draw: bool) -> Section:
    """The verdict: recommendation, warnings, the table of checks, the next command."""
    verdict, evaluation = inputs.verdict, inputs.evaluation
    blocks: list[Block] = []
    if verdict.recommendation:
        blocks.append(Paragraph(text=f"Recommendation: {verdict.recommendation.replace('`', '')}"))
    if verdict.comparison:
        blocks.append(Paragraph(text=f"On the new target: {verdict.comparison}."))
    blocks += [Paragraph(text=text, tone="warning") for text in verdict.warnings]
    blocks += [Paragraph(text=text, tone="warning") for text in inputs.labels.notes]
    blocks += _checks_tables(verdict.checks)
    alpha = f"error rate {evaluation.alpha:g} one-sided"
    attempt = f"Attempt {evaluation.attempt} of this pair, policy and slice; {alpha}."
    early = f" {verdict.early_stop}" if verdict.early_stop else ""
    blocks.append(Paragraph(text=attempt + early))
    if verdict.outcome is Outcome.PASS:
        blocks.append(Command(text=f"pairgate promote {inputs.labels.candidate}"))
    return Section(key="verdict", title="May it go out, and why", blocks=tuple(blocks), brief=True)


def ordered_checks(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """What blocks first, worst on top; then gating checks that passed; then advice."""
    severity = list(Outcome)
    severity.sort(key=[Outcome.ERROR, Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS].index)
    return tuple(sorted(checks, key=lambda c: (c.mode is not Mode.GATE, severity.index(c.outcome))))


def rule_name(check: Check) -> str:
    """`acceptance, domain sql (advises)`."""
    scope = "" if check.scope == OVERALL else f", {clipped(str(check.scope), 40)}"
    return f"{check.rule}{scope}{' (advises)' if check.mode is Mode.ADVISE else ''}"


def comparison_section(inputs: ReviewInput, draw: bool) -> Section:
    """The candidate beside the pair in production and beside its own target."""
    found = inputs.evaluation.measurements
    incumbent = inputs.evaluation.binding.incumbent_digest
    blocks: list[Block] = []
    if incumbent is None:
        text = "Nothing was in production, so there is no pair to compare with: "
        blocks.append(Paragraph(text=text + "only the absolute rules were judged."))
    else:
        difference = found.find("non_inferiority")
        name = inputs.labels.incumbent or "the pair in production"
        text = f"Against {name}, on the same requests: difference of token acceptance per request "
        blocks.append(Paragraph(text=text + interval(difference, share) + "."))
        blocks.append(_arms_table(inputs))
    blocks += _against_target(inputs)
    return Section(
        key="comparison",
        title="Compared with production and without the draft",
        blocks=tuple(blocks),
        brief=True,
    )


def failures_section(inputs: ReviewInput, draw: bool) -> Section:
    """Domains, lowest acceptance first; a table of all, a drawing of the worst."""
    found = inputs.evaluation.measurements
    rows = [(s, found.find(_REQUEST_MEAN, s)) for s in found.scopes(_REQUEST_MEAN, "domain")]
    rows.sort(key=lambda r: (_value(r[1]), r[0].key))
    if not rows:
        text = "No domain was measured on its own."
        return Section(key="domains", title="Where it fails", blocks=(Paragraph(text=text),))
    threshold = acceptance_threshold(inputs)
    cells = Cells()
    table_rows = [
        (
            clipped(scope.key, 60),
            str(_n(value)),
            cells(value, share),
            cells(found.find(_POOLED, scope), share),
        )
        for scope, value in rows
    ]
    # Requests of one session are one unit, so a domain has fewer sessions than requests.
    unit = next((v.unit for _, v in rows if isinstance(v, Estimate)), "requests")
    notes = list(cells.notes)
    if len(rows) > 3 * MAX_DOMAINS:
        notes.append(f"{len(rows) - 3 * MAX_DOMAINS} domains with higher acceptance are left out")
    table = Table(
        headers=("domain", unit, "mean of requests", "pooled over tokens"),
        rows=tuple(table_rows[: 3 * MAX_DOMAINS]),
        notes=tuple(notes),
    )
    blocks: list[Block] = [Paragraph(text=_worst_sentence(rows, threshold)), table]
    if draw and (drawn := [(s.key, v) for s, v in rows if isinstance(v, Estimate)][:MAX_DOMAINS]):
        names, values = [k for k, _ in drawn], [v for _, v in drawn]
        blocks.insert(
            1,
            Figure(
                title="Token acceptance by domain, lowest first",
                alt="Mean of requests with its interval per domain; the numbers are in the table.",
                svg=plots.forest_svg("domains", names, values, threshold=threshold),
            ),
        )
    return Section(key="domains", title="Where it fails", blocks=tuple(blocks), brief=True)


def acceptance_threshold(inputs: ReviewInput, domain: str | None = None) -> float | None:
    """What the acceptance rule asked for, if it judged token acceptance."""
    wanted = None if domain is None else Scope(kind="domain", key=domain)
    # Gating checks come first, so an advisory threshold is only the answer where nothing gates.
    checks = [c for c in ordered_checks(inputs.verdict.checks) if c.rule == AcceptanceRule.name]
    fitting = [c for c in checks if c.scope == wanted] or checks
    for check in fitting:
        if check.threshold is not None and check.metric.startswith("token_acceptance"):
            return check.threshold
    return None


def _checks_tables(checks: tuple[Check, ...]) -> list[Block]:
    """What decides or warns; folded away what passed for a single domain and the rest of the
    advice."""
    ordered = ordered_checks(checks)
    rest = [c for c in ordered if not _decides_or_warns(c)]
    tables: list[Block] = [_checks_table([c for c in ordered if _decides_or_warns(c)])]
    if rest:
        n_undecided = sum(c.outcome is not Outcome.PASS for c in rest)
        n_more = len(rest) - n_undecided
        parts = [f"{n_more} more pass (single domains, advice)"] if n_more else []
        if n_undecided:
            parts.append(f"{n_undecided} of the advice undecided or not applicable")
        text = "; ".join(parts)
        tables.append(_checks_table(rest, text))
    return tables


def _checks_table(checks: list[Check], folded: str = "") -> Table:
    return Table(
        headers=("outcome", "rule", "reason"),
        rows=tuple((c.outcome.value, rule_name(c), reason(c)) for c in checks),
        prose=True,
        folded=folded,
    )


def _decides_or_warns(check: Check) -> bool:
    if check.mode is not Mode.GATE:
        return check.outcome in (Outcome.FAIL, Outcome.ERROR)
    return check.outcome is not Outcome.PASS or check.scope.kind != "domain"


def _arms_table(inputs: ReviewInput) -> Table:
    found, cells = inputs.evaluation.measurements, Cells()
    arms = [Arm.SPEC, Arm.INCUMBENT]
    if not isinstance(found.find(_REQUEST_MEAN, arm=Arm.CARRY_OVER), Missing):
        arms.append(Arm.CARRY_OVER)
    names = (
        ("token acceptance, mean of requests", _REQUEST_MEAN, share),
        ("token acceptance, pooled", _POOLED, share),
        ("tokens per round", "acceptance_length.pooled", quantity),
    )
    rows = tuple(
        (label, *(cells(found.find(name, arm=arm), form) for arm in arms))
        for label, name, form in names
    )
    heads = ("", "candidate", *(ARM_NAMES[arm] for arm in arms[1:]))
    return Table(headers=heads, rows=rows, notes=cells.notes)


def _against_target(inputs: ReviewInput) -> list[Block]:
    found = inputs.evaluation.measurements
    scopes = sorted(found.scopes("speedup", "concurrency"), key=natural)
    if not scopes:
        missing = found.find("speedup")
        text = f"Speedup against the target without the draft: {interval(missing, ratio)}."
        return [Paragraph(text=text)]
    parts = [f"{interval(found.find('speedup', s), ratio)} at concurrency {s.key}" for s in scopes]
    return [Paragraph(text=f"Against the target without the draft: {'; '.join(parts)}.")]


def _worst_sentence(rows: list[tuple[Scope, Estimate | Missing]], threshold: float | None) -> str:
    scope, value = rows[0]
    if isinstance(value, Missing):
        return "No domain has enough requests for an estimate of its own."
    text = f"Lowest: {clipped(scope.key, 60)} at {interval(value, share)}"
    text += f", {value.n:,} {value.unit}."
    if threshold is None:
        return text
    under = sum(isinstance(v, Estimate) and v.value < threshold for _, v in rows)
    return f"{text} {under} of {len(rows)} domains lie under the threshold of {threshold:.3f}."


def _value(value: Estimate | Missing) -> float:
    return 2.0 if isinstance(value, Missing) else value.value


def _n(value: Estimate | Missing) -> int:
    return value.n
