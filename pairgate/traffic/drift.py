"""Does a slice still look like the traffic? Shares and distributions against a fresh log.

Domains are compared with the shares in the log that the slice was drawn from (a stratified slice
has other shares on purpose). Lengths and sampling parameters are compared inside each domain, so
that oversampling a domain is no drift.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pairgate.domain.traffic import Request
from pairgate.traffic.importing import prompt_text
from pairgate.traffic.report import Named

# A shift counts when it is both large enough to matter and too large for chance.
P_LIMIT = 0.01
FEWEST = 30
ABSENT_SHARE = 0.01

_MEASURES: tuple[tuple[str, Callable[[Request], float]], ...] = (
    ("prompt length (characters)", lambda r: float(len(prompt_text(r)))),
    ("max_tokens", lambda r: float(r.max_tokens)),
    ("temperature", lambda r: r.sampling.temperature),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """One comparison. `distance` is the largest difference in shares (0 to 1): total variation
    for domains, Kolmogorov-Smirnov for the others; None where there is too little to compare."""

    what: str
    domain: str
    n_slice: int
    n_log: int
    distance: float | None
    p_value: float | None
    warning: str = ""


def shifts(
    requests: Iterable[Request],
    usable: Iterable[Named],
    log: Iterable[Request],
    log_usable: Iterable[Named],
    *,
    threshold: float,
) -> tuple[Shift, ...]:
    """Compare a slice and the shares it was drawn with (`usable`) with a sample of a log and its
    shares. A shift beyond `threshold` with p < 0.01 carries a warning."""
    ours, theirs = _by_domain(requests), _by_domain(log)
    before = {u.name: u.n for u in usable}
    after = {u.name: u.n for u in log_usable}
    found = [_domain_shift(before, after, threshold), *_absent(set(ours), after)]
    for domain in sorted(set(ours) & set(theirs)):
        for what, measure in _MEASURES:
            a, b = map(measure, ours[domain]), map(measure, theirs[domain])
            found.append(_distribution_shift(what, domain, list(a), list(b), threshold))
    return tuple(found)


def _by_domain(requests: Iterable[Request]) -> dict[str, list[Request]]:
    grouped: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        grouped[request.domain].append(request)
    return grouped


def _domain_shift(before: dict[str, int], after: dict[str, int], threshold: float) -> Shift:
    """Chi-square test of homogeneity over the domains."""
    from scipy.stats import chi2_contingency

    names = sorted(set(before) | set(after))
    table = np.array([[counts.get(name, 0) for name in names] for counts in (before, after)])
    shares = table / table.sum(axis=1, keepdims=True)
    distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    p_value = float(chi2_contingency(table).pvalue) if len(names) > 1 else 1.0
    most = int(np.argmax(np.abs(shares[1] - shares[0])))
    warning = ""
    if distance > threshold and p_value < P_LIMIT:
        warning = f"domain {names[most]} went from {shares[0, most]:.0%} to {shares[1, most]:.0%}"
    return Shift(
        what="domains",
        domain="",
        n_slice=int(table[0].sum()),
        n_log=int(table[1].sum()),
        distance=distance,
        p_value=p_value,
        warning=warning,
    )


def _absent(ours: set[str], after: dict[str, int]) -> list[Shift]:
    total = sum(after.values())
    return [
        Shift(
            what="absent domain",
            domain=name,
            n_slice=0,
            n_log=n,
            distance=n / total,
            p_value=None,
            warning=f"{n / total:.0%} of the log is of domain {name}, which the slice lacks",
        )
        for name, n in sorted(after.items())
        if name not in ours and n / total >= ABSENT_SHARE
    ]


def _distribution_shift(
    what: str, domain: str, a: list[float], b: list[float], threshold: float
) -> Shift:
    from scipy.stats import ks_2samp

    if min(len(a), len(b)) < FEWEST:
        return Shift(
            what=what, domain=domain, n_slice=len(a), n_log=len(b), distance=None, p_value=None
        )
    test = ks_2samp(a, b, method="asymp")
    distance, p_value = float(test.statistic), float(test.pvalue)
    warning = ""
    if distance > threshold and p_value < P_LIMIT:
        medians = f"median {np.median(a):g} in the slice, {np.median(b):g} in the log"
        warning = f"{what} in {domain}: shift {distance:.2f}, {medians}"
    return Shift(
        what=what,
        domain=domain,
        n_slice=len(a),
        n_log=len(b),
        distance=distance,
        p_value=p_value,
        warning=warning,
    )
