"""Values for tests of the registry: pairs of a few bytes, evidence without a replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pairgate.app import lines, release
from pairgate.app.workspace import Workspace
from pairgate.domain.canonical import sha256_digest
from pairgate.domain.evidence import (
    OVERALL,
    Binding,
    EngineInfo,
    Estimate,
    Evaluation,
    Measurements,
    Metric,
    Missing,
    Provenance,
)
from pairgate.domain.pair import (
    Architecture,
    DecodingConfig,
    FileEntry,
    Method,
    ModelRef,
    Pair,
    PairVersion,
    VersionRef,
)
from pairgate.domain.policy import Mode
from pairgate.domain.profile import ServingProfile
from pairgate.domain.release import Actor
from pairgate.domain.trace import Arm
from pairgate.domain.verdict import Check, Outcome, Verdict

LINE = "code"
SLICE = sha256_digest(b"slice")
ALICE = Actor(name="alice", source="os-user")
BOB = Actor(name="bob", source="os-user")
PROFILE = ServingProfile(
    name="native-cpu",
    engine="native",
    engine_version="1.2.3",
    hardware_class="x86_64-avx512",
    concurrencies=(1, 8),
)

_ARCHITECTURE = Architecture(
    model_type="llama",
    class_name="LlamaForCausalLM",
    n_parameters=1000,
    vocab_size=64,
    max_position_embeddings=128,
    hidden_size=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=2,
    head_dim=8,
    dtype="float32",
)


def make_pair(target: bytes, draft: bytes | None) -> Pair:
    """A pair whose only files hold these bytes."""

    def model(role: str, content: bytes) -> ModelRef:
        entry = FileEntry(
            path="model.safetensors", size=len(content), sha256=sha256_digest(content)
        )
        return ModelRef(role=role, files=(entry,), architecture=_ARCHITECTURE)

    method = Method.NONE if draft is None else Method.DRAFT_MODEL
    return Pair(
        target=model("target", target),
        draft=None if draft is None else model("draft", draft),
        decoding=DecodingConfig(method=method, num_speculative_tokens=0 if draft is None else 4),
    )


def store_pair(ws: Workspace, pair: Pair, *contents: bytes) -> None:
    """What registration leaves in the blob store."""
    for content in contents:
        ws.blobs.add_bytes(content)
    ws.blobs.add_bytes(pair.config_blob())
    ws.blobs.add_manifest(pair.manifest())


def add(ws: Workspace, target: bytes, draft: bytes | None, *, at: str | None = None) -> PairVersion:
    """The next version of the line, with its files in the store."""
    pair = make_pair(target, draft)
    store_pair(ws, pair, target, *(() if draft is None else (draft,)))
    moment = at or lines.now()
    ws.registry.add_pair(pair, "{}", moment)
    return ws.registry.add_version(
        LINE, pair.digest, pair.target_digest, pair.decoding.method, moment, "alice"
    )


def new_line(ws: Workspace, policy: Path | str = "default") -> None:
    """The line with a policy, a slice and a profile."""
    lines.create(ws, LINE)
    ws.registry.save_slice("held-out", SLICE, 400, {"chat": 400}, SLICE, lines.now())
    profile = lines.save_profile(ws, LINE, PROFILE)
    lines.set_line(ws, LINE, policy=policy, slice_name="held-out", profile=profile, actor=ALICE)


def evidence(
    ws: Workspace,
    version: PairVersion,
    outcome: Outcome = Outcome.PASS,
    *,
    at: str | None = None,
    measured_at: str | None = None,
    **bound: str | None,
) -> str:
    """Store an evaluation of the line as it stands now; `bound` replaces parts of its binding."""
    head = ws.registry.head(LINE)
    assert head.policy_digest and head.slice_digest and head.profile_digest
    production = (
        None
        if head.production is None
        else ws.registry.version(VersionRef(line=LINE, selector=str(head.production)))
    )
    moment = at or lines.now()
    binding = replace(
        Binding(
            pair_digest=version.pair_digest,
            target_digest=version.target_digest,
            policy_digest=head.policy_digest,
            slice_digest=head.slice_digest,
            profile_digest=head.profile_digest,
            engine=PROFILE.engine,
            engine_version=PROFILE.engine_version,
            hardware_class=PROFILE.hardware_class,
            incumbent_digest=production.pair_digest if production else None,
        ),
        **bound,  # type: ignore[arg-type]
    )
    family = (version.pair_digest, binding.policy_digest, binding.slice_digest)
    attempt = ws.registry.start_attempt(LINE, version.number, *family, moment)
    evaluation = Evaluation(
        line=LINE,
        version=version.number,
        attempt=attempt,
        alpha=0.05 * 2.0**-attempt,
        binding=binding,
        measurements=MEASUREMENTS,
        provenance=Provenance(
            engine=EngineInfo(
                name=binding.engine,
                version=binding.engine_version,
                hardware_class=binding.hardware_class,
                device="cpu",
                dtype="float32",
                definition="pairgate.rounds.v1",
            ),
            pairgate_version="0.1.0",
            seed=1,
            command="pairgate evaluate",
            host="here",
            started_at=measured_at or moment,
            finished_at=moment,
        ),
    )
    verdict = Verdict(
        outcome=outcome, checks=CHECKS, policy_digest=binding.policy_digest, recommendation="go"
    )
    return ws.registry.save_evaluation(evaluation, verdict, moment, "/evaluations/x")


def put_in_production(ws: Workspace, target: bytes, draft: bytes | None) -> PairVersion:
    """Add, evaluate, promote."""
    version = add(ws, target, draft)
    evidence(ws, version)
    release.promote(ws, VersionRef.parse(str(version)), actor=ALICE)
    return version


ESTIMATE = Estimate(
    value=0.71, low=0.66, high=0.75, n=412, unit="requests", alpha=0.025, method="betting"
)
MEASUREMENTS = Measurements(
    definition="pairgate.rounds.v1",
    metrics=(
        Metric(name="token_acceptance.request_mean", arm=Arm.SPEC, scope=OVERALL, value=ESTIMATE),
        Metric(name="speedup", arm=Arm.SPEC, scope=OVERALL, value=Missing(reason="no blocks", n=2)),
    ),
    counts=(),
    break_even=((1, 0.41), (8, 0.66)),
)
CHECKS = (
    Check(
        rule="acceptance",
        scope=OVERALL,
        mode=Mode.GATE,
        outcome=Outcome.PASS,
        reason="0.71 [0.66, 0.75] >= 0.60 (n=412)",
        metric="token_acceptance.request_mean",
        observed=ESTIMATE,
        threshold=0.6,
    ),
    Check(
        rule="cache",
        scope=OVERALL,
        mode=Mode.ADVISE,
        outcome=Outcome.INCONCLUSIVE,
        reason="not measured",
        observed=Missing(reason="the engine has no prefix cache"),
    ),
)
