"""After a change of the target: no draft, production's draft on the new target, and the new one."""

from __future__ import annotations

from collections.abc import Iterator

from pairgate.domain.evidence import OVERALL, Estimate, Scope
from pairgate.domain.policy import AcceptanceRule, SpeedupRule
from pairgate.domain.trace import Arm
from pairgate.judge.case import Case

MEASURED = ("measured", "stored")


def comparison(case: Case) -> str:
    """`tokens per round: none 1.00, carried over 1.94, new 2.61; speedup at 8: 1.00, 1.18, 1.52`.

    Empty where the target is production's own; otherwise it says why a number is not there.
    """
    found = case.measurements.carry_over
    if found is None:
        return ""
    if found.kind == "none":
        return f"no draft to carry over: {found.reason}"
    columns = _columns(case)
    parts = [_line("tokens per round", "acceptance_length.pooled", OVERALL, case, named=True)]
    parts += [
        _line(f"speedup at {scope.key}", "speedup", scope, case) for scope in _speed_scopes(case)
    ]
    if found.kind == "self":
        return (
            f"{'; '.join(parts)} (this version is the carried-over draft: production's draft on "
            "the new target)"
        )
    gain = case.find("carry_over_gain", OVERALL)
    shown = (
        "; token acceptance of the new draft less that of the carried-over one, by request: "
        f"{gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}] (n={gain.n} {gain.unit})"
        if isinstance(gain, Estimate) and len(columns) == 2
        else ""
    )
    source = f" (carried over: the evidence of {found.name})" if found.kind == "stored" else ""
    return f"{'; '.join(parts)}{shown}{source}"


def carried_over_pays(case: Case) -> bool:
    """Whether the carried-over draft is measured to clear the acceptance and speed rules."""
    found = case.measurements.carry_over
    if found is None or found.kind not in MEASURED:
        return False
    rule = next((r for r in case.policy.rules if isinstance(r, AcceptanceRule)), AcceptanceRule())
    accepted = case.find(f"{rule.rate}.request_mean", OVERALL, Arm.CARRY_OVER)
    enough = not isinstance(rule.threshold, float) or (
        isinstance(accepted, Estimate) and accepted.low >= rule.threshold
    )
    return enough and all(_faster(case, c, Arm.CARRY_OVER) for c in case.speed_gates_at)


def carried_over_is_faster(case: Case) -> bool:
    """Whether it is measured to be faster than the new draft wherever speed decides."""
    pairs = [
        tuple(
            case.find("speedup", Scope(kind="concurrency", key=str(c)), arm)
            for arm in (Arm.CARRY_OVER, Arm.SPEC)
        )
        for c in case.speed_gates_at
    ]
    return bool(pairs) and all(
        isinstance(carried, Estimate) and isinstance(new, Estimate) and carried.low > new.high
        for carried, new in pairs
    )


def _faster(case: Case, concurrency: int, arm: Arm) -> bool:
    rule = next((r for r in case.policy.rules if isinstance(r, SpeedupRule)), SpeedupRule())
    found = case.find("speedup", Scope(kind="concurrency", key=str(concurrency)), arm)
    return isinstance(found, Estimate) and found.low > rule.ratio_at(concurrency)


def _columns(case: Case) -> tuple[tuple[str, Arm], ...]:
    found = case.measurements.carry_over
    if found is not None and found.kind == "self":
        return (("carried over", Arm.SPEC),)
    return (("carried over", Arm.CARRY_OVER), ("new", Arm.SPEC))


def _line(label: str, metric: str, scope: Scope, case: Case, *, named: bool = False) -> str:
    cells = [f"{'none ' if named else ''}1.00"]
    for name, arm in _columns(case):
        value = case.measurements.find(metric, scope, arm)
        shown = f"{value.value:.2f}" if isinstance(value, Estimate) else "not measured"
        cells.append(f"{name} {shown}" if named else shown)
    return f"{label}: {', '.join(cells)}"


def _speed_scopes(case: Case) -> Iterator[Scope]:
    for concurrency in case.speed_gates_at:
        scope = Scope(kind="concurrency", key=str(concurrency))
        if any(
            isinstance(case.measurements.find("speedup", scope, arm), Estimate)
            for _, arm in _columns(case)
        ):
            yield scope
