"""MLflow as a mirror: written after our own commit, idempotent, never asked for a decision.

One experiment per line (`pairgate/LINE`), one run per evaluation, one registered model per line
with one version per pair, and the aliases production, previous and candidate. Everything is looked
up by a digest tag before it is made, so that delivering twice changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairgate.domain.evidence import Evaluation
from pairgate.domain.pair import Pair, PairVersion
from pairgate.domain.policy import Policy
from pairgate.domain.release import Decision, Head
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.review import mlflow_records as records
from pairgate.review.ci import junit_xml, verdict_document
from pairgate.review.mlflow_client import connected, existing_is_fine, without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

_METRICS_PER_CALL = 900  # MLflow takes at most 1,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One difference between what pairgate says and what MLflow shows."""

    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One pair of a line, as the model registry has to show it."""

    line: str
    number: int
    pair_digest: str
    run_id: str | None = None
    description: str | None = None

    @property
    def tags(self) -> dict[str, str]:
        name = f"{self.line}@{self.number}"
        return {records.PAIR_TAG: self.pair_digest, records.VERSION_TAG: name}


@dataclass(frozen=True, kw_only=True)
class MlflowTracker:
    """Implements `ports.Tracker`. `artifact_root` (a URI) is where a store without a server keeps
    artifacts; with a server it stays None and the server decides."""

    tracking_uri: str
    artifact_root: str | None = None

    def log_evaluation(
        self,
        evaluation: Evaluation,
        verdict: Verdict,
        policy: Policy,
        *,
        pair: Pair | None = None,
        report: Path | None = None,
        head: Head | None = None,
    ) -> str:
        """One run with params, metrics, tags and artifacts, and the pair's model version. The run
        keeps the first `head` that it is given, so that a history truncated later shows.

        Returns the run's address. Raises `Unavailable` when MLflow cannot be reached and
        `MissingExtra` when it is not installed.
        """
        with connected(self.tracking_uri) as client:
            experiment = self._experiment(client, evaluation.line)
            run_id = _find_run(client, experiment, evaluation.digest)
            if run_id is None:
                run_id = _start_run(client, experiment, evaluation)
            _fill_run(client, run_id, evaluation, verdict, policy, pair, head)
            _log_artifacts(client, run_id, evaluation, verdict, report)
            link = self._address(experiment, run_id)
            entry = _Entry(
                line=evaluation.line,
                number=evaluation.version,
                pair_digest=evaluation.binding.pair_digest,
                run_id=run_id,
            )
            number = _ensure_version(client, experiment, entry)
            _describe_version(client, number, evaluation, verdict, run_id, link)
            at = records.milliseconds(evaluation.provenance.finished_at)
            status = "FAILED" if verdict.outcome is Outcome.ERROR else "FINISHED"
            client.set_terminated(run_id, status=status, end_time=at)
            return link if link.startswith("http") else f"runs:/{run_id}"

    def set_head(
        self,
        head: Head,
        versions: Sequence[PairVersion],
        candidate: int | None = None,
        overrides: Sequence[Decision] = (),
    ) -> None:
        """Move the aliases to where the line stands; an alias that names nothing is taken away.
        The head of the history is kept as a tag, so that a truncated history shows, and each
        promotion without a PASS (`overrides`) as one on its model version."""
        wanted = {"production": head.production, "previous": head.previous, "candidate": candidate}
        by_number = {v.number: v for v in versions}
        with connected(self.tracking_uri) as client:
            experiment = self._experiment(client, head.line)
            _ensure_model(client, head.line)
            found = _aliases(client, head.line)
            for alias, number in wanted.items():
                if number is None:
                    if alias in found:
                        client.delete_registered_model_alias(head.line, alias)
                    continue
                model_version = _ensure_version(client, experiment, _entry(by_number[number]))
                if found.get(alias) != model_version:
                    client.set_registered_model_alias(head.line, alias, model_version)
            client.set_registered_model_tag(head.line, records.HEAD_TAG, records.head_tag(head))
            for made in overrides:
                entry = _entry(by_number[made.production or 0])
                model_version = _ensure_version(client, experiment, entry)
                said = records.override_tag(made)
                client.set_model_version_tag(head.line, model_version, records.OVERRIDE_TAG, said)

    def drift(
        self, head: Head, versions: Sequence[PairVersion], evaluations: Sequence[str]
    ) -> tuple[Drift, ...]:
        """What differs: aliases moved by hand, versions and runs that are gone. `evaluations` are
        the digests of the line's evaluations. Changes nothing."""
        by_number = {v.number: v for v in versions}
        found: list[Drift] = []
        with connected(self.tracking_uri) as client:
            aliases = _aliases(client, head.line)
            for alias, number in (("production", head.production), ("previous", head.previous)):
                version = by_number[number] if number is not None else None
                difference = _alias_drift(client, head.line, alias, version, aliases.get(alias))
                if difference is not None:
                    found.append(difference)
            experiment = client.get_experiment_by_name(experiment_name(head.line))
            for digest in evaluations:
                if experiment is None or not _find_run(client, experiment.experiment_id, digest):
                    what = f"run of evaluation {digest.removeprefix('sha256:')[:12]}"
                    found.append(Drift(what=what, expected="one", found="none"))
        return tuple(found)

    def _experiment(self, client: MlflowClient, line: str) -> str:
        name = experiment_name(line)
        found = client.get_experiment_by_name(name)
        if found is None:
            root = self.artifact_root
            location = None if root is None else f"{root}/{line}"
            with existing_is_fine():
                client.create_experiment(name, artifact_location=location)
            found = client.get_experiment_by_name(name)
        if found.lifecycle_stage == "deleted":  # in MLflow's waste basket, and needed again
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _address(self, experiment: str, run_id: str) -> str:
        # Without a server the page's own address is unknown; its fragment is always the same.
        uri = without_password(self.tracking_uri).rstrip("/")
        base = f"{uri}/" if uri.startswith("http") else ""
        return f"{base}#/experiments/{experiment}/runs/{run_id}"


def experiment_name(line: str) -> str:
    """Name of the MLflow experiment of a line."""
    return f"pairgate/{line}"


def _find_run(client: MlflowClient, experiment: str, digest: str) -> str | None:
    query = f"tags.`{records.EVALUATION_TAG}` = '{digest}'"
    runs = client.search_runs([experiment], filter_string=query, max_results=1)
    return str(runs[0].info.run_id) if runs else None


def _start_run(client: MlflowClient, experiment: str, evaluation: Evaluation) -> str:
    run = client.create_run(
        experiment,
        start_time=records.milliseconds(evaluation.provenance.started_at),
        # The digest is there from the first moment, so that a run cut short is found again.
        tags={records.EVALUATION_TAG: evaluation.digest},
        run_name=f"{evaluation.line}@{evaluation.version} attempt {evaluation.attempt}",
    )
    return str(run.info.run_id)


def _fill_run(
    client: MlflowClient,
    run_id: str,
    evaluation: Evaluation,
    verdict: Verdict,
    policy: Policy,
    pair: Pair | None,
    head: Head | None,
) -> None:
    from mlflow.entities import Metric, Param, RunTag

    at = records.milliseconds(evaluation.provenance.finished_at)
    known = client.get_run(run_id).data
    wanted = records.params(evaluation, policy, pair)
    fresh = [Param(k, v) for k, v in wanted.items() if k not in known.params]
    numbers = records.metrics(evaluation.measurements)
    metrics = [Metric(k, v, at, 0) for k, v in numbers.items() if k not in known.metrics]
    client.log_batch(run_id, params=fresh)
    tags = records.tags(evaluation, verdict)
    if head is not None and records.HEAD_TAG not in known.tags:
        tags[records.HEAD_TAG] = records.head_tag(head)
    client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])
    for start in range(0, len(metrics), _METRICS_PER_CALL):
        client.log_batch(run_id, metrics=metrics[start : start + _METRICS_PER_CALL])


def _log_artifacts(
    client: MlflowClient,
    run_id: str,
    evaluation: Evaluation,
    verdict: Verdict,
    report: Path | None,
) -> None:
    document = json.dumps(verdict_document(evaluation, verdict), indent=2, ensure_ascii=False)
    client.log_text(run_id, document, "verdict.json")
    client.log_text(run_id, junit_xml(evaluation, verdict), "junit.xml")
    if report is not None and report.is_file():
        client.log_artifact(run_id, str(report))


def _ensure_model(client: MlflowClient, line: str) -> None:
    with existing_is_fine():
        client.create_registered_model(
            line, description=f"Release line {line}; its pairs are kept and gated by pairgate."
        )


def _find_version(client: MlflowClient, line: str, pair_digest: str) -> str | None:
    query = f"name = '{line}' and tags.`{records.PAIR_TAG}` = '{pair_digest}'"
    found = client.search_model_versions(query, max_results=1)
    return str(found[0].version) if found else None


def _entry(version: PairVersion) -> _Entry:
    return _Entry(
        line=version.line,
        number=version.number,
        pair_digest=version.pair_digest,
        description=records.version_description(version),
    )


def _ensure_version(client: MlflowClient, experiment: str, entry: _Entry) -> str:
    """The number of the model version of this pair in MLflow; made if there is none."""
    _ensure_model(client, entry.line)
    known = _find_version(client, entry.line, entry.pair_digest)
    if known is not None:
        return known
    model_id = _ensure_logged_model(client, experiment, entry)
    made = client.create_model_version(
        entry.line,
        source=f"models:/{model_id}",
        run_id=entry.run_id,
        tags=entry.tags,
        description=entry.description,
        model_id=model_id,
    )
    return str(made.version)


def _ensure_logged_model(client: MlflowClient, experiment: str, entry: _Entry) -> str:
    """An external model: MLflow knows of the pair, the bytes stay in our store."""
    import mlflow

    query = f"tags.`{records.PAIR_TAG}` = '{entry.pair_digest}'"
    found = client.search_logged_models([experiment], filter_string=query, max_results=1)
    if found:
        return str(found[0].model_id)
    model = mlflow.create_external_model(
        # MLflow refuses dots in names of logged models.
        name=f"{entry.line.replace('.', '-')}-{entry.number}",
        source_run_id=entry.run_id,
        tags=entry.tags,
        model_type="speculative-decoding pair",
        experiment_id=experiment,
    )
    return str(model.model_id)


def _describe_version(
    client: MlflowClient,
    number: str,
    evaluation: Evaluation,
    verdict: Verdict,
    run_id: str,
    link: str,
) -> None:
    line = evaluation.line
    text = records.description(evaluation, verdict, link)
    client.update_model_version(line, number, description=text)
    client.set_model_version_tag(line, number, records.OUTCOME_TAG, verdict.outcome.value)
    client.set_model_version_tag(line, number, records.EVALUATION_TAG, evaluation.digest)
    source = client.get_model_version(line, number).source
    at = records.milliseconds(evaluation.provenance.finished_at)
    for name, value in records.headline_metrics(evaluation.measurements).items():
        client.log_metric(
            run_id, name, value, timestamp=at, step=0, model_id=source.removeprefix("models:/")
        )


def _aliases(client: MlflowClient, line: str) -> dict[str, str]:
    """Alias -> model version; empty when the registered model does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return {k: str(v) for k, v in client.get_registered_model(line).aliases.items()}
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return {}
        raise


def _alias_drift(
    client: MlflowClient, line: str, alias: str, version: PairVersion | None, found: str | None
) -> Drift | None:
    """None when the alias names the model version of the pair that pairgate names."""
    what = f"alias {alias} of {line}"
    if version is None:
        if found is None:
            return None
        return Drift(what=what, expected="none", found=f"version {found}")
    wanted = _find_version(client, line, version.pair_digest)
    if wanted is None:
        what = f"model version of {version}"
        return Drift(what=what, expected="one for its pair", found="none")
    if found == wanted:
        return None
    shown = "none" if found is None else f"version {found}"
    return Drift(what=what, expected=f"version {wanted} ({version})", found=shown)
