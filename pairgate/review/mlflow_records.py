"""An evaluation in MLflow's words: metrics, params, tags and a description, within its limits.

MLflow (3.x): names of metrics and params hold letters, digits and `_ - . / :` and spaces, at most
250 characters; a param is at most 6,000 characters long, a tag 8,000.
"""

from __future__ import annotations

import re
from datetime import datetime

from pairgate.domain.canonical import sha256_digest
from pairgate.domain.evidence import Estimate, Evaluation, Measurements, Scope
from pairgate.domain.pair import Pair, PairVersion
from pairgate.domain.policy import Policy
from pairgate.domain.release import Decision, Head
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.review.answers import headline_of
from pairgate.review.ci import checks_markdown, escaped
from pairgate.review.wording import printable, short

EVALUATION_TAG = "pairgate.evaluation"
PAIR_TAG = "pairgate.pair"
VERSION_TAG = "pairgate.version"
OUTCOME_TAG = "pairgate.outcome"
HEAD_TAG = "pairgate.head"
OVERRIDE_TAG = "pairgate.override"
MAX_DESCRIPTION = 4900  # the model registry's column holds 5,000
_MAX_PARAM, _MAX_TAG, _MAX_KEY = 5900, 7900, 100
_HEADLINES = (
    "token_acceptance.request_mean",
    "token_acceptance.pooled",
    "acceptance_length.pooled",
)


def metrics(measurements: Measurements) -> dict[str, float]:
    """Every estimate as `name`, `name.low`, `name.high`, under `kind/key/` for a part of the
    traffic and with `.arm` for an arm other than the candidate; memory peaks in bytes."""
    found: dict[str, float] = {}
    for metric in measurements.metrics:
        if isinstance(metric.value, Estimate):
            name = metric_name(metric.name, metric.scope, metric.arm)
            found[name] = metric.value.value
            found[f"{name}.low"] = metric.value.low
            found[f"{name}.high"] = metric.value.high
    for use in measurements.memory:
        name = metric_name("peak_bytes", Scope(kind="memory", key=str(use.concurrency)), use.arm)
        found[name] = float(use.peak_bytes)
    fidelity = measurements.fidelity
    if fidelity is not None:
        found["fidelity/n_divergent"] = float(fidelity.n_divergent)
        found["fidelity/n_support_violations"] = float(fidelity.n_support_violations)
    return found


def headline_metrics(measurements: Measurements) -> dict[str, float]:
    """The few that stand beside the model in MLflow's lists."""
    scopes = measurements.scopes("speedup", "concurrency")
    wanted = [(name, Scope()) for name in _HEADLINES] + [("speedup", s) for s in scopes]
    found = ((metric_name(n, s, Arm.SPEC), measurements.find(n, s)) for n, s in wanted)
    return {name: value.value for name, value in found if isinstance(value, Estimate)}


def metric_name(name: str, scope: Scope, arm: Arm) -> str:
    """A legal and unique MLflow name; what had to change gets a piece of its hash."""
    prefix = "" if scope.kind == "overall" else f"{scope.kind}/{_legal(scope.key)}/"
    return f"{prefix}{name}" + ("" if arm is Arm.SPEC else f".{arm}")


def params(evaluation: Evaluation, policy: Policy, pair: Pair | None) -> dict[str, str]:
    """The settings a person filters runs by."""
    binding, found = evaluation.binding, evaluation.measurements
    temperatures = found.scopes("token_acceptance.request_mean", "temperature")
    concurrencies = found.scopes("speedup", "concurrency")
    values = {
        "version": str(evaluation.version),
        "policy": policy.name,
        "engine": binding.engine,
        "engine_version": binding.engine_version,
        "hardware_class": binding.hardware_class,
        "dtype": evaluation.provenance.engine.dtype,
        "slice": short(binding.slice_digest),
        "temperatures": ", ".join(s.key for s in temperatures) or "not broken down",
        "concurrencies": ", ".join(s.key for s in concurrencies) or "not measured",
        "attempt": str(evaluation.attempt),
        "alpha": f"{evaluation.alpha:g}",
        "seed": str(evaluation.provenance.seed),
    }
    if pair is not None:
        decoding = pair.decoding
        values["K"] = str(decoding.num_speculative_tokens)
        values["method"] = decoding.method.value
        values["draft_sampling"] = decoding.draft_sampling
    return {key: value[:_MAX_PARAM] for key, value in values.items()}


def tags(evaluation: Evaluation, verdict: Verdict) -> dict[str, str]:
    """Digests and verdict, and the description that the run's page shows."""
    binding = evaluation.binding
    values = {
        EVALUATION_TAG: evaluation.digest,
        PAIR_TAG: binding.pair_digest,
        VERSION_TAG: f"{evaluation.line}@{evaluation.version}",
        OUTCOME_TAG: verdict.outcome.value,
        "pairgate.target": binding.target_digest,
        "pairgate.policy": binding.policy_digest,
        "pairgate.slice": binding.slice_digest,
        "pairgate.profile": binding.profile_digest,
        "pairgate.incumbent": binding.incumbent_digest or "none",
        "pairgate.recommendation": verdict.recommendation or "none",
        "pairgate.command": evaluation.provenance.command,
        "mlflow.note.content": description(evaluation, verdict),
    }
    return {key: value[:_MAX_TAG] for key, value in values.items()}


def description(evaluation: Evaluation, verdict: Verdict, run_link: str = "") -> str:
    """Markdown under 5,000 characters: verdict, checks, the command to promote, the run."""
    version = f"{evaluation.line}@{evaluation.version}"
    approval = short(evaluation.digest)
    ending = ["", f"Evaluation `{approval}`, attempt {evaluation.attempt}."]
    if verdict.outcome is Outcome.PASS:
        ending += ["", f"Promote: `pairgate promote {version}`"]
        ending += ["", f"To approve here, set the tag `pairgate.approve` to `{approval}`."]
    if run_link:
        ending += ["", f"[Report and metrics]({run_link})"]
    opening = [f"**{verdict.outcome}**: {headline_of(version, verdict.outcome)}", ""]
    if verdict.recommendation:
        opening += [f"Recommendation: {escaped(verdict.recommendation)}", ""]
    rows = checks_markdown(verdict.checks)
    while len("\n".join([*opening, *rows, *ending])) > MAX_DESCRIPTION - 40 and len(rows) > 2:
        rows.pop()
    left_out = len(verdict.checks) - (len(rows) - 2)
    if left_out:
        ending = ["", f"{left_out} more checks in the report.", *ending]
    return "\n".join([*opening, *rows, *ending])


def version_description(version: PairVersion) -> str:
    """What stands beside a version that was never evaluated."""
    return f"{version}, {version.method}, registered {version.created_at}. Not evaluated."


def head_tag(head: Head) -> str:
    """The head of the history as `pairgate audit head` prints it."""
    return f"{head.line}:{head.revision}:{head.hash}"


def override_tag(made: Decision) -> str:
    """Who promoted without a PASS, when and why."""
    said = f"{made.reason} ({made.actor}, {made.identity_source}, {made.at})"
    return printable(said)[:MAX_DESCRIPTION]


def milliseconds(at: str) -> int:
    """ISO 8601 to milliseconds since 1970, so that logging twice writes the same rows."""
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def _legal(key: str) -> str:
    legal = re.sub(r"[^A-Za-z0-9_. -]", "_", key)[:_MAX_KEY].strip(" .") or "_"
    return (
        legal if legal == key else f"{legal}-{sha256_digest(key.encode('utf-8', 'replace'))[7:15]}"
    )
