"""How large a slice a policy needs, from a pilot: requests per domain, and device time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairgate.domain.evidence import Estimate, Measurements
from pairgate.domain.pair import VersionRef
from pairgate.domain.policy import AcceptanceRule, Policy, Rate
from pairgate.domain.trace import Arm, Phase
from pairgate.errors import EvidenceMissing, InvalidInput

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.evidence import Evaluation

MIN_REQUESTS = 30
_ATTEMPT_ALPHA = 0.5  # of alpha, at the first attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainNeed:
    """`n` requests decide the domain (None: it lies too close to its threshold)."""

    domain: str
    mean: float
    sd: float
    threshold: float
    n: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """What a policy asks of a slice. `request_s` is what one request took in the pilot's acceptance
    pass, so `hours` (of the pilot's whole machine) is that of a pass without an early stop."""

    pilot: str
    policy: str
    alpha: float
    power: float
    domains: tuple[DomainNeed, ...]
    request_s: float

    @property
    def n_requests(self) -> int | None:
        known = [d.n for d in self.domains if d.n is not None]
        return sum(known) if len(known) == len(self.domains) else None

    @property
    def hours(self) -> float | None:
        return None if self.n_requests is None else self.n_requests * self.request_s / 3600.0


def slice_plan(
    ws: Workspace, pilot: str, policy: Policy | None = None, *, power: float = 0.9
) -> SlicePlan:
    """Sizes per domain for `policy` (that of the pilot, unless given) at its first attempt.

    `pilot` is LINE@N (its newest evidence) or an evaluation's digest. Raises `EvidenceMissing`
    when there is none, `InvalidInput` when the policy judges no token acceptance.
    """
    from pairgate.app.slice_checks import pilot_spreads
    from pairgate.policyfile import policy_from_document
    from pairgate.stats.sample_size import units_to_decide

    digest = _digest(ws, pilot)
    evaluation = ws.registry.evaluation(digest).evaluation
    if policy is None:
        document = ws.registry.policy_document(evaluation.binding.policy_digest)
        policy = policy_from_document(document)
    rule = _acceptance_rule(policy)
    alpha = policy.alpha * _ATTEMPT_ALPHA
    row = next(r for r in ws.registry.evaluations(evaluation.line) if r.digest == digest)
    spreads = {s.domain: s.sd for s in pilot_spreads(ws, row.folder)}
    found = evaluation.measurements
    domains = []
    for scope in found.scopes(f"{rule.rate}.request_mean", "domain"):
        mean = found.find(f"{rule.rate}.request_mean", scope)
        if scope.key in rule.other or not isinstance(mean, Estimate):
            continue
        threshold = _threshold(rule, found, scope.key)
        sd = spreads.get(scope.key, 0.2)
        n = units_to_decide(mean.value, sd, threshold, alpha=alpha, power=power)
        domains.append(
            DomainNeed(
                domain=scope.key,
                mean=mean.value,
                sd=sd,
                threshold=threshold,
                n=None if n is None else max(n, MIN_REQUESTS),
            )
        )
    return SlicePlan(
        pilot=digest,
        policy=policy.name,
        alpha=alpha,
        power=power,
        domains=tuple(domains),
        request_s=_request_s(evaluation),
    )


def _digest(ws: Workspace, pilot: str) -> str:
    from pairgate.app.inspect import newest_evidence

    if pilot.startswith("sha256:"):
        return pilot
    return newest_evidence(ws, ws.registry.version(VersionRef.parse(pilot))).digest


def _acceptance_rule(policy: Policy) -> AcceptanceRule:
    for rule in policy.rules:
        if isinstance(rule, AcceptanceRule) and rule.rate is Rate.TOKEN_ACCEPTANCE:
            return rule
    raise InvalidInput(
        f"policy {policy.name} has no rule about the token acceptance",
        hint='sizes are computed for rules.acceptance with rate = "token_acceptance"',
    )


def _threshold(rule: AcceptanceRule, found: Measurements, domain: str) -> float:
    """The rule's number, or the pilot's own break-even at its worst."""
    wanted = rule.threshold_in(domain)
    if not isinstance(wanted, str):
        return wanted
    values = [found.find("break_even", s) for s in found.scopes("break_even", "concurrency")]
    known = [value.high for value in values if isinstance(value, Estimate)]
    if not known:
        raise EvidenceMissing(
            "the pilot measured no break-even, which the policy's threshold is",
            hint="evaluate the pilot with --all, so that its speed is measured as well",
        )
    return max(known)


def _request_s(evaluation: Evaluation) -> float:
    rows = [
        c
        for c in evaluation.measurements.counts
        if c.arm is Arm.SPEC and c.phase == str(Phase.ACCEPTANCE) and c.n_requests
    ]
    if not rows:
        raise EvidenceMissing("the pilot has no acceptance pass with a draft")
    return rows[0].wall_s / rows[0].n_requests
