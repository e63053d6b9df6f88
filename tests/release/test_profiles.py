"""Several profiles: each needs a PASS, and version and profiles move together, back as well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pairgate.app import lines, release
from pairgate.app.gate import valid_evidence
from pairgate.app.inspect import line_statuses, newest_evidence
from pairgate.app.outbox import deliver
from pairgate.app.setting import line_setting
from pairgate.app.workspace import Workspace
from pairgate.domain.pair import PairVersion, VersionRef
from pairgate.domain.profile import ServingProfile
from pairgate.domain.release import fold
from pairgate.domain.verdict import Outcome
from pairgate.errors import EvidenceMissing, EvidenceStale, InvalidInput, NotFound, Refused
from pairgate.policyfile import preset_text
from tests.release.story import ALICE, LINE, PROFILE, add, evidence, put_in_production
from tests.release.test_release_commands import run

A100 = replace(
    PROFILE, name="a100", engine="vllm", engine_version="0.14.0", hardware_class="a100x8"
)


def ref(version: PairVersion | str) -> VersionRef:
    return VersionRef.parse(str(version))


def on(profile: ServingProfile) -> Mapping[str, str]:
    """The binding of an evaluation that ran on it."""
    return {
        "profile_digest": profile.digest,
        "engine": profile.engine,
        "engine_version": profile.engine_version,
        "hardware_class": profile.hardware_class,
    }


@pytest.fixture
def two(ws: Workspace, tmp_path: Path) -> Workspace:
    """The line under a policy that wants a PASS on its own profile and on a100."""
    path = tmp_path / "policy.toml"
    path.write_text('profiles = ["native-cpu", "a100"]\n' + preset_text("default"))
    lines.save_profile(ws, LINE, A100)
    lines.set_line(ws, LINE, policy=path, actor=ALICE)
    return ws


def test_each_profile_needs_a_pass_of_its_own(two: Workspace) -> None:
    version = add(two, b"base", b"draft")
    evidence(two, version)
    with pytest.raises(EvidenceMissing, match="code@1 on a100 has not been evaluated") as found:
        release.promote(two, ref(version), actor=ALICE)
    assert found.value.hint == "run: pairgate evaluate code@1 --profile a100"
    evidence(two, version, Outcome.FAIL, **on(A100))
    with pytest.raises(EvidenceMissing, match="code@1 on a100 has no PASS"):
        release.promote(two, ref(version), actor=ALICE)
    passed = evidence(two, version, **on(A100))
    moved = release.promote(two, ref(version), actor=ALICE)
    assert moved.decision is not None
    assert moved.decision.profile_digest == PROFILE.digest
    assert moved.decision.profiles == (A100.digest,)
    assert moved.decision.evaluation_digest != passed
    assert fold(LINE, two.registry.decisions(LINE)) == two.registry.head(LINE)
    assert release.promote(two, ref(version), actor=ALICE).already


def test_a_pass_on_another_profile_does_not_count_for_the_lines_own(two: Workspace) -> None:
    version = add(two, b"base", b"draft")
    evidence(two, version, **on(A100))
    with pytest.raises(EvidenceStale, match="ran on the engine vllm, the profile names native"):
        release.promote(two, ref(version), actor=ALICE)


def test_gate_asks_for_one_profile_at_a_time(two: Workspace) -> None:
    version = add(two, b"base", b"draft")
    own = evidence(two, version)
    found = valid_evidence(two, ref(version))
    assert found is not None and found.digest == own
    assert valid_evidence(two, ref(version), "a100") is None
    other = evidence(two, version, **on(A100))
    release.promote(two, ref(version), actor=ALICE)
    # What put it into production is reused, on either profile.
    for name, digest in ((None, own), ("a100", other)):
        found = valid_evidence(two, ref(version), name)
        assert found is not None and found.digest == digest


def test_judging_again_takes_the_evidence_of_the_profile_that_is_named(two: Workspace) -> None:
    version = add(two, b"base", b"draft")
    with pytest.raises(EvidenceMissing, match=r"(?m)code@1 has not been evaluated$"):
        newest_evidence(two, version)
    own = evidence(two, version)
    with pytest.raises(EvidenceMissing, match="code@1 has not been evaluated on a100"):
        newest_evidence(two, version, "a100")
    other = evidence(two, version, **on(A100))
    assert newest_evidence(two, version).digest == other
    assert newest_evidence(two, version, "a100").digest == other
    assert newest_evidence(two, version, "native-cpu").digest == own


def test_rollback_moves_all_profiles_back(two: Workspace) -> None:
    first, second = add(two, b"base", b"draft-1"), add(two, b"base", b"draft-2")
    for binding in ({}, on(A100)):
        evidence(two, first, **binding)
    release.promote(two, ref(first), actor=ALICE)
    newer = replace(A100, engine_version="0.15.0")
    lines.save_profile(two, LINE, newer)
    # A newer version of a profile counts once the line is set to it, not before.
    assert release.promote(two, ref(first), actor=ALICE).already
    lines.set_line(two, LINE, profile=("native-cpu", "a100"), actor=ALICE)
    evidence(two, second)
    evidence(two, second, **on(A100))
    with pytest.raises(EvidenceStale, match=r"on a100 .* 0\.14\.0, the profile names 0\.15\.0"):
        release.promote(two, ref(second), actor=ALICE)
    evidence(two, second, **on(newer))
    release.promote(two, ref(second), actor=ALICE)
    assert two.registry.head(LINE).profiles == (newer.digest,)
    plan = release.plan_rollback(two, LINE)
    assert plan is not None
    assert (plan.profiles_change, plan.profiles) == (True, ("native-cpu@1", "a100@1"))
    head = release.rollback(two, LINE, actor=ALICE).head
    assert (head.production, head.profiles) == (1, (A100.digest,))
    assert fold(LINE, two.registry.decisions(LINE)) == head


def test_the_version_in_production_on_a_further_profile_is_a_release(ws: Workspace) -> None:
    version = put_in_production(ws, b"base", b"draft")
    lines.save_profile(ws, LINE, A100)
    lines.set_line(ws, LINE, profile=("native-cpu", "a100"), actor=ALICE)
    with pytest.raises(EvidenceStale, match="compared with nothing"):
        release.promote(ws, ref(version), actor=ALICE)
    evidence(ws, version)
    evidence(ws, version, **on(A100))
    moved = release.promote(ws, ref(version), actor=ALICE)
    assert not moved.already
    assert (moved.head.production, moved.head.previous) == (1, 1)
    assert moved.head.profiles == (A100.digest,)
    back = release.rollback(ws, LINE, actor=ALICE)
    assert (back.head.production, back.head.profiles) == (1, ())


def test_a_profile_that_the_policy_wants_and_the_line_lacks_stops_no_rollback(
    released: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('profiles = ["tpu"]\n' + preset_text("default"))
    lines.set_line(released, LINE, policy=path, actor=ALICE)
    version = add(released, b"tuned", b"draft-9")
    with pytest.raises(NotFound, match="the policy wants a PASS on the profile 'tpu'"):
        release.promote(released, ref(version), actor=ALICE)
    assert release.rollback(released, LINE, actor=ALICE).head.production == 2


def test_a_profile_that_decodes_otherwise_is_refused_and_an_override_says_so(
    ws: Workspace,
) -> None:
    version = add(ws, b"base", b"draft")  # draft_model, K = 4
    text = '{"method": "draft_model", "num_speculative_tokens": 7}'
    other = replace(PROFILE, speculative_config=text)
    lines.set_line(ws, LINE, profile=lines.save_profile(ws, LINE, other), actor=ALICE)
    evidence(ws, version)
    with pytest.raises(Refused, match="its draft length is 7, the pair's 4"):
        release.promote(ws, ref(version), actor=ALICE)
    moved = release.promote(ws, ref(version), override="we know", actor=ALICE)
    assert moved.decision is not None
    assert "its draft length is 7" in moved.decision.warnings[-1]


def test_enable_is_refused_when_what_it_stood_on_changed(released: Workspace) -> None:
    release.disable(released, LINE, "slow", actor=ALICE)
    lines.set_line(released, LINE, policy="strict", actor=ALICE)
    with pytest.raises(Refused, match="the policy of line code changed since the disabling"):
        release.enable(released, LINE, actor=ALICE)


def test_a_name_is_the_version_that_the_line_is_set_to(two: Workspace) -> None:
    lines.set_line(two, LINE, profile=("native-cpu", "a100@1"), actor=ALICE)
    lines.save_profile(two, LINE, replace(A100, engine_version="0.15.0"))
    assert line_setting(two, LINE, "a100").profile == A100
    assert line_setting(two, LINE, "a100@2").profile.engine_version == "0.15.0"
    assert line_setting(two, LINE).profile == PROFILE
    with pytest.raises(NotFound, match="no profile 'h100'"):
        line_setting(two, LINE, "h100")
    with pytest.raises(InvalidInput, match="one version of a profile at a time"):
        lines.set_line(two, LINE, profile=("a100@1", "a100@2"), actor=ALICE)


def test_status_history_and_the_pointer_file_name_them(
    two: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = add(two, b"base", b"draft")
    for binding in ({}, on(A100)):
        evidence(two, version, **binding)
    release.promote(two, ref(version), actor=ALICE)
    assert "  on native-cpu@1, a100@1\n" in run(two, "status", LINE).stdout
    assert "native-cpu@1, a100@1" in run(two, "history", LINE).stdout
    monkeypatch.setenv("PAIRGATE_POINTER_DIR", str(tmp_path / "pointers"))
    opened = Workspace.open(home=str(two.home), database_url=two.database_url)
    deliver(opened)
    opened.close()
    pointer = json.loads((tmp_path / "pointers" / f"{LINE}.json").read_text())
    assert pointer["profiles"] == [
        {"profile": "native-cpu@1", "digest": PROFILE.digest},
        {"profile": "a100@1", "digest": A100.digest},
    ]
    lines.set_line(two, LINE, profile="a100", actor=ALICE)
    (status,) = line_statuses(two, LINE)
    assert status.profiles == ("a100@1",)
    assert status.serving_profiles == ("native-cpu@1", "a100@1")
    assert "! production came with native-cpu@1, a100@1" in run(two, "status", LINE).stdout


def test_the_commands(two: Workspace) -> None:
    done = run(two, "line", "set", LINE, "--profile", "native-cpu", "--profile", "a100")
    assert f"profile   {A100.digest}  a100@1\n" in done.stdout
    listed = run(two, "profile", "list", LINE).stdout.splitlines()
    assert [row.split()[:2] for row in listed[1:]] == [["+", "a100@1"], ["*", "native-cpu@1"]]
    assert run(two, "profile", "set", LINE, "a@1", "--from-command", "vllm serve m",
               "--engine-version", "1", "--hardware-class", "x",
               "--concurrency", "1").exit_code == 2  # fmt: skip
    add(two, b"base", b"draft")
    assert run(two, "evaluate", "code@1", "--profile", "tpu").exit_code == 2


def test_diff_shows_evidence_and_profiles(ws: Workspace) -> None:
    first, second = add(ws, b"base", b"draft-1"), add(ws, b"base", b"draft-2")
    lines.save_profile(ws, LINE, A100)
    evidence(ws, first)
    evidence(ws, second, Outcome.FAIL, **on(A100))
    found = json.loads(run(ws, "diff", "code@1", "code@2", "--json").stdout)
    said = {d["part"]: (d["before"], d["after"]) for d in found["evidence"] + found["profiles"]}
    assert said["verdict"] == ("PASS", "FAIL")
    assert said["engine"] == ("native 1.2.3", "vllm 0.14.0")
    assert said["profile.name"] == ("native-cpu@1", "a100@1")
    assert found["comparison"]["caveat"].startswith("not like for like: engine")
    shown = run(ws, "diff", "code@1", "code@2").stdout
    assert "token_acceptance.request_mean (overall, spec)" in shown
