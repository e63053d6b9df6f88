"""The rules about the machine: speedup, latency, prefix cache and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pairgate.domain.evidence import OVERALL, MemoryUse, Missing, Scope
from pairgate.domain.policy import CacheRule, LatencyRule, MemoryRule, Mode, SpeedupRule
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import MIN_BLOCKS, Case
from pairgate.judge.sentences import Question, check, not_applicable, statement

_GIB = float(1 << 30)


def speedup_checks(rule: SpeedupRule, case: Case) -> Iterator[Check]:
    """(e) Tokens per second with / without draft at each concurrency."""
    for concurrency, mode in _concurrencies(rule, case, rule.mode):
        scope = Scope(kind="concurrency", key=str(concurrency))
        question = Question(
            rule=rule.name,
            mode=mode,
            scope=scope,
            metric="speedup",
            subject=f"speedup at concurrency {concurrency}",
            threshold=rule.ratio_at(concurrency),
            min_n=MIN_BLOCKS,
            strict=True,
        )
        yield check(question, case.find("speedup", scope))


def latency_checks(rule: LatencyRule, case: Case) -> Iterator[Check]:
    """(h) p95 of time to first token and of time per output token, with / without draft."""
    mode = rule.mode
    if case.engine == "native" and rule.on_native is Mode.ADVISE:
        mode = Mode.ADVISE
    for concurrency, at_mode in _concurrencies(rule, case, mode):
        scope = Scope(kind="concurrency", key=str(concurrency))
        for metric, words, limit in (
            ("ttft_ratio.p95", "time to first token p95", rule.max_ttft_ratio),
            ("tpot_ratio.p95", "time per output token p95", rule.max_tpot_ratio),
        ):
            question = Question(
                rule=rule.name,
                mode=at_mode,
                scope=scope,
                metric=metric,
                subject=f"{words} with / without draft at concurrency {concurrency}",
                threshold=limit,
                at_least=False,
                min_n=MIN_BLOCKS,
            )
            yield check(question, case.find(metric, scope))


def _concurrencies(
    rule: SpeedupRule | LatencyRule, case: Case, mode: Mode
) -> Iterator[tuple[int, Mode]]:
    named = rule.concurrencies or case.concurrencies
    for concurrency in sorted({*named, *rule.advise_at}):
        yield concurrency, Mode.ADVISE if concurrency in rule.advise_at else mode


def cache_checks(rule: CacheRule, case: Case) -> Iterator[Check]:
    """(h) Prefix-cache hit share, where the engine has such a cache."""
    if not case.prefix_cache:
        yield not_applicable(rule.name, "no prefix cache on this engine and profile")
        return
    question = Question(
        rule=rule.name,
        mode=rule.mode,
        scope=OVERALL,
        metric="cache_hit_difference",
        subject="prefix-cache hit share with less without draft",
        threshold=-rule.max_drop,
        min_n=MIN_BLOCKS,
    )
    yield check(question, case.find("cache_hit_difference", OVERALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """One arm at one concurrency against the budget less the margin, in bytes."""

    outcome: Outcome
    limit: float
    text: str


def memory_checks(rule: MemoryRule, case: Case) -> Iterator[Check]:
    """(f) The forced worst case and the analytic bound."""
    arm = Arm.SPEC if case.has_draft else Arm.TARGET
    uses = [m for m in case.measurements.memory if m.arm is arm]
    if not uses and not case.has_draft:
        uses = [m for m in case.measurements.memory if m.arm is Arm.SPEC]
    if not uses:
        text = "memory was not measured"
        yield statement(rule.name, rule.mode, Outcome.INCONCLUSIVE, text)
    elif max(m.concurrency for m in uses) < max(case.concurrencies):
        most = max(case.concurrencies)
        text = f"memory at concurrency {most}, the profile's largest, was not measured"
        yield statement(rule.name, rule.mode, Outcome.INCONCLUSIVE, text)
    for use in uses:
        fit = memory_fit(use, rule)
        yield Check(
            rule=rule.name,
            scope=Scope(kind="concurrency", key=str(use.concurrency)),
            mode=rule.mode,
            outcome=fit.outcome,
            reason=fit.text,
            metric="memory",
            observed=None if use.peak_bytes else Missing(reason="no peak was measured"),
            threshold=fit.limit,
        )


def memory_fit(use: MemoryUse, rule: MemoryRule) -> MemoryFit:
    """Whether peak and bound fit; not fitting is a FAIL even before the worst case is reached."""
    budget = rule.budget_bytes or use.budget_bytes
    limit = budget * (1.0 - rule.margin)
    where = f"at concurrency {use.concurrency}"
    shown = f"{limit / _GIB:.2f} GiB (budget {budget / _GIB:.2f} less {rule.margin:.0%})"
    peak, bound = use.peak_bytes / _GIB, use.predicted_bytes / _GIB
    if budget <= 0:
        text = f"undecided: no memory budget is known {where}"
        return MemoryFit(outcome=Outcome.INCONCLUSIVE, limit=limit, text=text)
    if use.peak_bytes > limit:
        text = f"fails: peak memory {where} {peak:.2f} GiB > {shown}"
        return MemoryFit(outcome=Outcome.FAIL, limit=limit, text=text)
    if use.predicted_bytes > limit:
        text = f"fails: bound on the memory {where} {bound:.2f} GiB > {shown}"
        return MemoryFit(outcome=Outcome.FAIL, limit=limit, text=text)
    if not use.worst_case_reached or use.peak_bytes <= 0:
        text = f"undecided: the worst case {where} was not reached, peak {peak:.2f} GiB of {shown}"
        return MemoryFit(outcome=Outcome.INCONCLUSIVE, limit=limit, text=text)
    # A process holds its libraries too, so its peak may lie over the bound on models and caches.
    whole = " of the whole process" if use.kind == "rss" else ""
    text = f"passes: peak memory {where} {peak:.2f} GiB{whole}, bound {bound:.2f} GiB <= {shown}"
    return MemoryFit(outcome=Outcome.PASS, limit=limit, text=text)
