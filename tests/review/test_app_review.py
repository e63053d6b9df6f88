"""Report, terminal and MLflow over a real registry, as the outbox and the CLI use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pairgate.app.review import (
    deliver_mlflow,
    mlflow_drift,
    mlflow_settings,
    terminal_report,
    terminal_summary,
    write_report,
)
from pairgate.app.workspace import Workspace
from pairgate.cli.mlflow import mlflow_
from pairgate.domain.evidence import Evaluation
from pairgate.domain.pair import (
    Architecture,
    DecodingConfig,
    FileEntry,
    Method,
    ModelRef,
    Pair,
)
from pairgate.domain.policy import AcceptanceRule, Policy
from pairgate.domain.profile import ServingProfile
from pairgate.domain.release import Decision, Kind
from pairgate.domain.trace import TraceBatch
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.errors import Conflict, InvalidInput
from pairgate.policyfile import policy_document
from pairgate.store.traces import ParquetTraces

pytest.importorskip("mlflow", reason="the extra [mlflow] has it")

LINE, AT = "code-assistant", "2026-01-05T10:00:00.000000Z"
SLICE = "sha256:" + "d" * 64


def pair(letter: str) -> Pair:
    shape = Architecture(
        model_type="llama", class_name="LlamaForCausalLM", n_parameters=5_700_000,
        vocab_size=4096, max_position_embeddings=512, hidden_size=192, n_layers=12, n_heads=3,
        n_kv_heads=3, head_dim=64, dtype="float32",
    )  # fmt: skip
    file = FileEntry(path="model.safetensors", size=4, sha256="sha256:" + letter * 64)
    return Pair(
        target=ModelRef(role="target", files=(file,), architecture=shape),
        draft=ModelRef(role="draft", files=(file,), architecture=replace(shape, n_layers=1)),
        decoding=DecodingConfig(method=Method.DRAFT_MODEL, num_speculative_tokens=5),
    )


PAIRS = {1: pair("1"), 2: pair("2")}
PROFILE = ServingProfile(
    name="native-cpu",
    engine="native",
    engine_version="0.1",
    hardware_class="x86_64-avx512",
    concurrencies=(1, 8),
)
POLICY = Policy(name="house", rules=(AcceptanceRule(threshold=0.6),))


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A line with two versions; MLflow embedded in the home."""
    home = tmp_path_factory.mktemp("home")
    opened = Workspace(home=home, database_url=f"sqlite:///{home / 'pairgate.db'}", environ={})
    registry = opened.registry
    registry.create_line(LINE, AT)
    registry.save_policy(POLICY.digest, POLICY.name, policy_document(POLICY), AT)
    registry.save_profile(LINE, PROFILE, AT)
    registry.save_slice("held-out", SLICE, 480, {"sql": 480}, "sha256:" + "0" * 64, AT)
    for one in PAIRS.values():
        registry.add_pair(one, "{}", AT)
        registry.add_version(LINE, one.digest, one.target_digest, Method.DRAFT_MODEL, AT, "builder")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def stored(
    ws: Workspace,
    make_evaluation: Callable[..., Evaluation],
    make_verdict: Callable[..., Verdict],
    batch: TraceBatch,
) -> dict[int, Evaluation]:
    """Evidence of both versions: v1 passed without an incumbent, v2 failed against v1."""
    found = {}
    for number, outcome in ((1, Outcome.PASS), (2, Outcome.FAIL)):
        domains = {"sql": 0.8} if outcome is Outcome.PASS else {"sql": 0.41}
        evaluation = make_evaluation(domains, number)
        binding = replace(
            evaluation.binding,
            pair_digest=PAIRS[number].digest,
            target_digest=PAIRS[number].target_digest,
            policy_digest=POLICY.digest,
            slice_digest=SLICE,
            profile_digest=PROFILE.digest,
            incumbent_digest=None if number == 1 else PAIRS[1].digest,
        )
        evaluation = replace(evaluation, binding=binding)
        verdict = make_verdict(evaluation, outcome)
        folder = ws.evaluations_dir / f"{LINE}@{number}"
        write_report(ws, evaluation, verdict, POLICY, batch, folder)
        ParquetTraces(folder / "traces").save("acceptance-0", batch)
        ws.registry.save_evaluation(evaluation, verdict, AT, str(folder))
        found[number] = evaluation
    return found


def move(ws: Workspace, kind: Kind, production: int, previous: int | None) -> None:
    with ws.registry.lock(LINE) as transaction:
        transaction.append(
            Decision(
                line=LINE, sequence=transaction.head.revision + 1, kind=kind,
                production=production, previous=previous, version=production, at=AT,
                actor="someone", identity_source="os-user",
            )
        )  # fmt: skip


def test_the_report_names_versions_not_digests(
    ws: Workspace, stored: dict[int, Evaluation]
) -> None:
    text = (ws.evaluations_dir / f"{LINE}@2" / "report.html").read_text()
    assert "Against code-assistant@1" in text
    assert "draft_model, K = 5, sampled draft; target 5.7 M" in text
    assert [p.name for p in (ws.evaluations_dir / f"{LINE}@2").glob("*report*")] == ["report.html"]


def test_the_terminal_draws_from_the_stored_traces(
    ws: Workspace, stored: dict[int, Evaluation]
) -> None:
    record = ws.registry.evaluation(stored[2].digest)
    report = terminal_report(ws, record.evaluation, record.verdict)
    assert "sql: 120 requests." in report
    summary = terminal_summary(ws, record.evaluation, record.verdict)
    assert summary.splitlines()[0] == "FAIL  code-assistant@2 must not go out."
    assert len(summary) < len(report)


def test_settings(tmp_path: Path) -> None:
    def settings(**environ: str) -> object:
        found = mlflow_settings(Workspace(home=tmp_path, database_url="", environ=environ))
        return found and (found.tracking_uri, found.embedded)

    embedded = (f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}", True)
    assert settings() == embedded
    assert settings(PAIRGATE_MLFLOW="off") is None
    assert settings(MLFLOW_TRACKING_URI="http://a") == ("http://a", False)
    both = {"MLFLOW_TRACKING_URI": "http://a", "PAIRGATE_MLFLOW_TRACKING_URI": "http://b"}
    assert settings(**both) == ("http://b", False)


def test_delivery_mirrors_evaluations_and_promotions(
    ws: Workspace, stored: dict[int, Evaluation]
) -> None:
    for evaluation in stored.values():
        deliver_mlflow(ws, "evaluation", {"digest": evaluation.digest})
    assert mlflow_drift(ws, LINE) == ()
    move(ws, Kind.PROMOTE, 1, None)
    what = [d.what for d in mlflow_drift(ws, LINE)]
    assert what == ["alias production of code-assistant"]
    payload = asdict(ws.registry.decisions(LINE)[-1])
    deliver_mlflow(ws, "head", payload)
    deliver_mlflow(ws, "head", payload)
    assert mlflow_drift(ws, LINE) == ()


def test_an_old_message_delivered_late_shows_the_present(
    ws: Workspace, stored: dict[int, Evaluation]
) -> None:
    old = asdict(ws.registry.decisions(LINE)[-1])
    move(ws, Kind.PROMOTE, 2, 1)
    deliver_mlflow(ws, "head", old)
    assert mlflow_drift(ws, LINE) == ()


def test_off_delivers_nothing_and_says_so_when_asked(
    ws: Workspace, stored: dict[int, Evaluation], tmp_path: Path
) -> None:
    off = Workspace(home=tmp_path, database_url=ws.database_url, environ={"PAIRGATE_MLFLOW": "off"})
    deliver_mlflow(off, "evaluation", {"digest": stored[1].digest})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="no MLflow mirror"):
        mlflow_drift(off, LINE)
    off.close()


def invoke(ws: Workspace, *arguments: str) -> tuple[int, str, BaseException | None]:
    environ = {"PAIRGATE_MLFLOW_TRACKING_URI": "", "MLFLOW_TRACKING_URI": "", "PAIRGATE_MLFLOW": ""}
    result = CliRunner().invoke(mlflow_, arguments, obj=(str(ws.home), None), env=environ)
    return result.exit_code, result.stdout, result.exception


def test_sync_and_verify_commands(ws: Workspace, stored: dict[int, Evaluation]) -> None:
    code, out, _ = invoke(ws, "sync", "--all")
    assert (code, out) == (0, "code-assistant: 2 evaluations and the aliases are in MLflow\n")
    code, out, _ = invoke(ws, "verify", LINE, "--json")
    assert (code, json.loads(out)) == (0, [])
    move(ws, Kind.ROLLBACK, 1, None)
    code, out, error = invoke(ws, "verify", LINE)
    assert isinstance(error, Conflict)
    assert error.exit_code == 13
    assert "alias production of code-assistant: expected version" in out
    invoke(ws, "sync", LINE)
    assert invoke(ws, "verify", LINE)[0] == 0


def test_ui_prints_a_command_for_the_embedded_store(ws: Workspace) -> None:
    code, out, _ = invoke(ws, "ui")
    assert code == 0
    assert out.startswith("mlflow ui --backend-store-uri sqlite:///")
    assert str(ws.home / "mlflow" / "mlflow.db") in out


def test_sync_wants_a_line_or_all(ws: Workspace) -> None:
    assert isinstance(invoke(ws, "sync")[2], InvalidInput)
    assert isinstance(invoke(ws, "sync", LINE, "--all")[2], InvalidInput)
