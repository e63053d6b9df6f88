"""The mirror on a real MLflow store (SQLite and a folder, no server)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pairgate.domain.evidence import Evaluation
from pairgate.domain.pair import Method, PairVersion
from pairgate.domain.policy import Policy
from pairgate.domain.release import Head
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.errors import Unavailable
from pairgate.review.mlflow_client import connected
from pairgate.review.mlflow_mirror import MlflowTracker

pytest.importorskip("mlflow", reason="the extra [mlflow] has it")

LINE = "code-assistant"


def version(number: int, letter: str) -> PairVersion:
    return PairVersion(
        line=LINE, number=number, pair_digest="sha256:" + letter * 64,
        target_digest="sha256:" + "b" * 64, method=Method.DRAFT_MODEL, state="ready",
        created_at="2026-01-01T00:00:00.000000Z", created_by="builder",
    )  # fmt: skip


VERSIONS = (version(1, "f"), version(2, "a"))


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> MlflowTracker:
    folder = tmp_path_factory.mktemp("mlflow")
    return MlflowTracker(
        tracking_uri=f"sqlite:///{folder / 'mlflow.db'}",
        artifact_root=(folder / "artifacts").as_uri(),
    )


@pytest.fixture(scope="module")
def address(
    tracker: MlflowTracker,
    evaluation: Evaluation,
    verdict: Verdict,
    policy: Policy,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    report = tmp_path_factory.mktemp("evaluation") / "report.html"
    report.write_text("<p>report</p>")
    return tracker.log_evaluation(evaluation, verdict, policy, report=report)


def contents(tracker: MlflowTracker) -> dict[str, Any]:
    """Everything the store holds of the line, without times."""
    with connected(tracker.tracking_uri) as client:
        experiment = client.get_experiment_by_name(f"pairgate/{LINE}")
        runs = client.search_runs([experiment.experiment_id])
        return {
            "runs": sorted(
                (r.info.run_id, r.info.status, r.data.metrics, r.data.params, r.data.tags)
                for r in runs
            ),
            "history": {
                (r.info.run_id, key): len(client.get_metric_history(r.info.run_id, key))
                for r in runs
                for key in ("token_acceptance.pooled", "domain/sql/token_acceptance.pooled.low")
            },
            "artifacts": {r.info.run_id: _paths(client, r.info.run_id) for r in runs},
            "versions": [
                (str(v.version), v.description, v.tags, v.source)
                for v in client.search_model_versions(f"name = '{LINE}'")
            ],
            "models": len(client.search_logged_models([experiment.experiment_id])),
            "aliases": {k: str(v) for k, v in client.get_registered_model(LINE).aliases.items()},
        }


def _paths(client: Any, run_id: str) -> list[str]:
    return sorted(a.path for a in client.list_artifacts(run_id))


def test_a_run_has_params_metrics_tags_and_artifacts(
    tracker: MlflowTracker, address: str, evaluation: Evaluation
) -> None:
    found = contents(tracker)
    ((run_id, status, metrics, params, tags),) = found["runs"]
    assert address == f"runs:/{run_id}"
    assert status == "FINISHED"
    assert metrics["domain/sql/token_acceptance.pooled.low"] == pytest.approx(0.38)
    assert params["policy"] == "default"
    assert tags["pairgate.evaluation"] == evaluation.digest
    assert tags["pairgate.outcome"] == "FAIL"
    assert found["artifacts"][run_id] == ["junit.xml", "report.html", "verdict.json"]
    ((number, description, version_tags, source),) = found["versions"]
    assert number == "1"
    assert description.startswith("**FAIL**")
    assert version_tags["pairgate.pair"] == evaluation.binding.pair_digest
    assert source.startswith("models:/m-")


def test_the_stored_verdict_is_the_verdict(tracker: MlflowTracker, address: str) -> None:
    with connected(tracker.tracking_uri) as client:
        path = client.download_artifacts(address.removeprefix("runs:/"), "verdict.json")
        assert json.loads(Path(path).read_text())["outcome"] == "FAIL"


def test_headline_metrics_stand_beside_the_model(tracker: MlflowTracker, address: str) -> None:
    with connected(tracker.tracking_uri) as client:
        experiment = client.get_experiment_by_name(f"pairgate/{LINE}")
        (model,) = client.search_logged_models([experiment.experiment_id])
        assert {m.key for m in model.metrics} >= {
            "token_acceptance.pooled",
            "concurrency/8/speedup",
        }


def test_logging_again_changes_nothing(
    tracker: MlflowTracker, address: str, evaluation: Evaluation, verdict: Verdict, policy: Policy
) -> None:
    before = contents(tracker)
    assert tracker.log_evaluation(evaluation, verdict, policy) == address
    assert contents(tracker) == before


def test_a_second_evaluation_of_a_pair_is_a_run_but_no_version(
    tracker: MlflowTracker,
    address: str,
    evaluation: Evaluation,
    make_verdict: Callable[..., Verdict],
    policy: Policy,
) -> None:
    again = replace(evaluation, attempt=2)
    tracker.log_evaluation(again, make_verdict(again, Outcome.ERROR), policy)
    found = contents(tracker)
    assert sorted(run[1] for run in found["runs"]) == ["FAILED", "FINISHED"]
    assert len(found["versions"]) == 1
    assert found["models"] == 1


def test_aliases_follow_the_head(tracker: MlflowTracker, address: str) -> None:
    head = Head(line=LINE, revision=3, production=1, previous=None, hash="sha256:x")
    tracker.set_head(head, VERSIONS, candidate=2)
    assert contents(tracker)["aliases"] == {"candidate": "1", "production": "2"}
    promoted = replace(head, revision=4, production=2, previous=1)
    tracker.set_head(promoted, VERSIONS)
    tracker.set_head(promoted, VERSIONS)
    assert contents(tracker)["aliases"] == {"production": "1", "previous": "2"}
    assert len(contents(tracker)["versions"]) == 2


def test_drift_names_what_people_changed(
    tracker: MlflowTracker, address: str, evaluation: Evaluation
) -> None:
    head = Head(line=LINE, revision=4, production=2, previous=1)
    tracker.set_head(head, VERSIONS)
    assert tracker.drift(head, VERSIONS, [evaluation.digest]) == ()
    with connected(tracker.tracking_uri) as client:
        client.set_registered_model_alias(LINE, "production", "2")
        client.delete_registered_model_alias(LINE, "previous")
    found = tracker.drift(head, VERSIONS, [evaluation.digest, "sha256:" + "0" * 64])
    assert [str(d) for d in found] == [
        "alias production of code-assistant: expected version 1 (code-assistant@2), "
        "found version 2",
        "alias previous of code-assistant: expected version 2 (code-assistant@1), found none",
        "run of evaluation 000000000000: expected one, found none",
    ]
    tracker.set_head(head, VERSIONS)
    assert tracker.drift(head, VERSIONS, [evaluation.digest]) == ()


def test_a_deleted_version_is_drift_and_comes_back(tracker: MlflowTracker, address: str) -> None:
    head = Head(line=LINE, revision=4, production=2, previous=1)
    tracker.set_head(head, VERSIONS)
    with connected(tracker.tracking_uri) as client:
        client.delete_model_version(LINE, "2")
    what = [d.what for d in tracker.drift(head, VERSIONS, [])]
    assert what == ["model version of code-assistant@1"]
    tracker.set_head(head, VERSIONS)
    assert tracker.drift(head, VERSIONS, []) == ()


def test_the_global_state_of_mlflow_is_put_back(
    tracker: MlflowTracker, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    tracker.set_head(Head(line=LINE, production=2), VERSIONS)
    assert mlflow.get_tracking_uri() == "sqlite:///elsewhere.db"
    assert "MLFLOW_DISABLE_TELEMETRY" not in os.environ
    assert list(tmp_path.iterdir()) == []
    mlflow.set_tracking_uri(None)


def test_it_is_quiet(
    tracker: MlflowTracker, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tracker.set_head(Head(line="quiet-line"), ())
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_a_store_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tracker = MlflowTracker(tracking_uri=f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}")
    with pytest.raises(Unavailable, match="did not take the record"):
        tracker.set_head(Head(line=LINE), ())


def test_a_dead_server_is_unavailable_soon(
    evaluation: Evaluation, verdict: Verdict, policy: Policy
) -> None:
    tracker = MlflowTracker(tracking_uri="http://user:secret@127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"MLflow at http://127\.0\.0\.1:9 did") as failure:
        tracker.log_evaluation(evaluation, verdict, policy)
    assert "pairgate mlflow sync" in (failure.value.hint or "")
    assert "secret" not in str(failure.value)


def test_a_run_keeps_the_first_head_of_the_history_that_it_was_given(
    tracker: MlflowTracker, evaluation: Evaluation, make_verdict: Any, policy: Policy
) -> None:
    """A history that is truncated and told again must not overwrite what was said before."""
    logged = replace(evaluation, line="told-twice")
    verdict = make_verdict(logged, Outcome.PASS)
    first = Head(line="told-twice", revision=4, hash="sha256:" + "1" * 64)
    for head in (first, replace(first, revision=2, hash="sha256:" + "2" * 64)):
        tracker.log_evaluation(logged, verdict, policy, head=head)
    with connected(tracker.tracking_uri) as client:
        experiment = client.get_experiment_by_name("pairgate/told-twice").experiment_id
        (run,) = client.search_runs([experiment])
    assert run.data.tags["pairgate.head"] == f"told-twice:4:{first.hash}"
