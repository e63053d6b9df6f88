"""Is the evaluation itself valid? A broken one is ERROR, which claims nothing about the pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pairgate.domain.evidence import OVERALL, Counts, Estimate
from pairgate.domain.policy import Mode
from pairgate.domain.trace import Arm, Phase
from pairgate.domain.verdict import Check, Outcome
from pairgate.judge.case import Case
from pairgate.judge.sentences import statement

INTEGRITY_RULES = ("replay", "boundary", "policy")
_CANDIDATE = (Arm.SPEC, Arm.TARGET)


def replay_checks(case: Case) -> Iterator[Check]:
    """Requests ran, few failed, counters add up, and something was accepted."""
    counts = case.measurements.counts
    yield _failed(counts, case.policy.replay.max_failed_share)
    contradictory = case.find("inconsistent_requests", OVERALL)
    if isinstance(contradictory, Estimate) and contradictory.value > 0:
        n = round(contradictory.value * contradictory.n)
        yield _error(f"the counters of {n} of {contradictory.n} requests do not add up")
    if case.has_draft:
        yield from _drafted(counts)
    stop = case.measurements.early_stop
    if stop is not None and stop.undecided:
        missing = f"; not run: {', '.join(stop.left_out)}" if stop.left_out else ""
        text = (
            f"{stop.why} after {stop.n_requests} of {stop.n_planned} requests of the acceptance "
            f"pass{missing}"
        )
        yield statement("replay", Mode.GATE, Outcome.INCONCLUSIVE, text)


def _failed(counts: tuple[Counts, ...], max_share: float) -> Check:
    """Over all passes, and over the acceptance pass alone, which the others must not dilute."""
    n, bad = _sums(counts)
    if n == 0 or bad == n:
        return _error("no request finished" if n else "no request was replayed")
    where, first = "", [c for c in counts if c.phase == Phase.ACCEPTANCE and c.arm in _CANDIDATE]
    n_first, bad_first = _sums(first)
    if n_first and bad_first / n_first > bad / n:
        where, n, bad = " of the acceptance pass", n_first, bad_first
    text = f"{bad} of {n} requests{where} failed or were excluded, {bad / n:.1%}"
    if bad / n > max_share:
        return _error(f"{text} > {max_share:.1%}")
    return statement("replay", Mode.GATE, Outcome.PASS, f"{text} <= {max_share:.1%}")


def _sums(counts: Iterable[Counts]) -> tuple[int, int]:
    """Requests, and those of them that failed or were excluded."""
    rows = [(c.n_requests, c.n_failed + c.n_excluded) for c in counts]
    return sum(n for n, _ in rows), sum(bad for _, bad in rows)


def _drafted(counts: tuple[Counts, ...]) -> Iterator[Check]:
    passes = [c for c in counts if c.arm is Arm.SPEC and c.phase == Phase.ACCEPTANCE]
    proposed = sum(c.n_proposed for c in passes)
    if proposed == 0:
        yield _error("the draft proposed no token in the acceptance pass")
    elif sum(c.n_accepted for c in passes) == 0:
        yield _error(
            f"none of {proposed} proposed tokens was accepted: a broken pair, not a low rate"
        )


def boundary_checks(case: Case) -> Iterator[Check]:
    """Requests at the edges: the longest prompts, an empty one, one token, EOS at once.

    With the draft failing where the target alone passes, the draft is at fault: FAIL. Where the
    target alone fails too, the evaluation says nothing: ERROR.
    """
    results = case.measurements.boundary
    if not results:
        yield statement("boundary", Mode.GATE, Outcome.INCONCLUSIVE, "no boundary request was run")
        return
    alone = {r.name: r.ok for r in results if r.arm is Arm.TARGET}
    broken = [r for r in results if not r.ok]
    for result in broken:
        detail = f": {result.detail}" if result.detail else ""
        if result.arm is Arm.TARGET:
            outcome, text = Outcome.ERROR, f"{result.name} fails without a draft{detail}"
        elif alone.get(result.name, False):
            outcome = Outcome.FAIL
            text = f"{result.name} fails with the draft and not without{detail}"
        elif result.name in alone:
            continue  # said once, by the target's own row
        else:
            outcome, text = Outcome.ERROR, f"{result.name} fails{detail}"
        yield statement("boundary", Mode.GATE, outcome, text)
    if not broken:
        text = f"{len(results)} boundary requests"
        yield statement("boundary", Mode.GATE, Outcome.PASS, text)


def _error(text: str) -> Check:
    return statement("replay", Mode.GATE, Outcome.ERROR, text)
