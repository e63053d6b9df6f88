"""The rules after the evidence: promote, rollback, withdraw, reinstate, disable, enable."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pairgate.app import approvals, lines, release
from pairgate.app.workspace import Workspace
from pairgate.domain.approvals import approved
from pairgate.domain.canonical import sha256_digest
from pairgate.domain.freshness import ReleaseRules
from pairgate.domain.pair import Method, PairVersion, VersionRef
from pairgate.domain.records import UNVERIFIED_TAG, Approval
from pairgate.domain.release import Kind, fold
from pairgate.domain.verdict import Outcome
from pairgate.errors import (
    Conflict,
    EvidenceMissing,
    EvidenceStale,
    IntegrityError,
    InvalidInput,
    NotFound,
    Refused,
    Unavailable,
)
from pairgate.policyfile import preset_text
from tests.release.story import ALICE, BOB, LINE, PROFILE, SLICE, add, evidence, put_in_production


def ref(version: PairVersion | str) -> VersionRef:
    return VersionRef.parse(str(version))


def days_ago(days: float) -> str:
    moment = datetime.now(UTC) - timedelta(days=days)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


# --- promote --------------------------------------------------------------------------------


def test_the_first_promotion_has_no_incumbent(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    digest = evidence(ws, version)
    moved = release.promote(ws, ref(version), actor=ALICE)
    assert (moved.head.production, moved.head.previous) == (1, None)
    assert moved.decision is not None
    assert moved.decision.incumbent_digest is None
    assert moved.decision.evaluation_digest == digest
    assert moved.head.hash == moved.decision.hash
    assert ws.registry.version(ref("code@production")).state == "production"


def test_the_replaced_version_becomes_previous(released: Workspace) -> None:
    head = released.registry.head(LINE)
    assert (head.production, head.previous) == (3, 2)
    assert [v.state for v in released.registry.versions(LINE)] == [
        "ready",
        "previous",
        "production",
    ]


def test_without_evidence_it_is_refused(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    with pytest.raises(EvidenceMissing, match="has not been evaluated"):
        release.promote(ws, ref(version), actor=ALICE)
    assert ws.registry.head(LINE).production is None


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.ERROR])
def test_only_a_pass_is_enough(ws: Workspace, outcome: Outcome) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version, outcome)
    with pytest.raises(EvidenceMissing, match=f"says {outcome}"):
        release.promote(ws, ref(version), actor=ALICE)


def test_a_later_fail_contradicts_a_pass_and_an_inconclusive_does_not(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version)
    evidence(ws, version, Outcome.FAIL)
    with pytest.raises(EvidenceMissing, match="failed later in attempt 2"):
        release.promote(ws, ref(version), actor=ALICE)
    evidence(ws, version)
    evidence(ws, version, Outcome.INCONCLUSIVE)
    assert release.promote(ws, ref(version), actor=ALICE).head.production == 1


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        ({"incumbent_digest": sha256_digest(b"other")}, "but production is nothing"),
        ({"engine": "vllm"}, "ran on the engine vllm, the profile names native"),
        ({"engine_version": "1.3.0"}, "ran on native 1.3.0, the profile names 1.2.3"),
        ({"hardware_class": "aarch64"}, "ran on aarch64, the profile names x86_64-avx512"),
    ],
)
def test_stale_evidence_names_the_part(ws: Workspace, bound: dict[str, str], says: str) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version, **bound)
    with pytest.raises(EvidenceStale, match=says):
        release.promote(ws, ref(version), actor=ALICE)


def test_another_patch_version_of_the_engine_is_a_warning(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version, engine_version="1.2.9")
    moved = release.promote(ws, ref(version), actor=ALICE)
    assert moved.decision is not None
    assert "1.2.9" in moved.decision.warnings[0]


def test_strict_takes_another_patch_version_for_stale(ws: Workspace) -> None:
    lines.set_line(ws, LINE, policy="strict", actor=ALICE)
    version = add(ws, b"base", b"draft")
    evidence(ws, version, engine_version="1.2.9")
    with pytest.raises(EvidenceStale, match=r"1\.2\.9"):
        release.promote(ws, ref(version), actor=ALICE)


def test_evidence_that_is_too_old_is_stale(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version, at=days_ago(13.9))
    assert release.usable_evidence(ws, ref(version)) is not None
    other = add(ws, b"base", b"draft-2")
    evidence(ws, other, at=days_ago(14.1))
    with pytest.raises(EvidenceStale, match="days old, over 14 days"):
        release.promote(ws, ref(other), actor=ALICE)


def test_judging_old_traces_again_does_not_make_them_young(released: Workspace) -> None:
    version = add(released, b"tuned", b"draft-3")
    evidence(released, version, measured_at=days_ago(15))
    with pytest.raises(EvidenceStale, match="days old"):
        release.promote(released, ref(version), actor=ALICE)
    before = released.registry.decisions(LINE)[-1].at
    release.rollback(released, LINE, actor=ALICE)
    evidence(released, released.registry.version(ref("code@3")), measured_at=before)
    with pytest.raises(Refused, match="was withdrawn"):
        release.promote(released, ref("code@3"), actor=ALICE)


def test_a_tag_without_an_author_counts_only_where_the_policy_says_so() -> None:
    tag = Approval(
        evaluation_digest="sha256:e",
        line=LINE,
        version=1,
        name="review",
        actor="somebody",
        identity_source=UNVERIFIED_TAG,
        created_at=days_ago(0),
    )
    counting = ReleaseRules(
        approvals_required=1, approvals_distinct=False, approvals_count_tags=True
    )
    approved([tag], counting, ALICE, label="code@1")
    for rules in (
        replace(counting, approvals_count_tags=False),
        replace(counting, approvals_distinct=True),
    ):
        with pytest.raises(Refused, match="0 of 1"):
            approved([tag], rules, ALICE, label="code@1")


def test_the_line_may_move_on_under_the_evidence(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version)
    lines.set_line(ws, LINE, policy="exploratory", actor=ALICE)
    with pytest.raises(EvidenceStale, match="another policy"):
        release.promote(ws, ref(version), actor=ALICE)
    lines.set_line(ws, LINE, policy="default", actor=ALICE)
    newer = sha256_digest(b"newer")
    ws.registry.save_slice("newer", newer, 10, {"chat": 10}, newer, lines.now())
    lines.set_line(ws, LINE, slice_name="newer", actor=ALICE)
    with pytest.raises(EvidenceStale, match="another slice"):
        release.promote(ws, ref(version), actor=ALICE)


def test_evidence_against_another_incumbent_names_both(ws: Workspace) -> None:
    first, second = add(ws, b"base", b"draft-1"), add(ws, b"base", b"draft-2")
    evidence(ws, first)
    evidence(ws, second)
    release.promote(ws, ref(first), actor=ALICE)
    with pytest.raises(EvidenceStale) as caught:
        release.promote(ws, ref(second), actor=ALICE)
    assert "compared with nothing, but production is code@1" in caught.value.message
    assert first.pair_digest in caught.value.message


def test_a_changed_profile_is_stale_unless_only_the_patch_changed(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version)
    patch = lines.save_profile(ws, LINE, replace(PROFILE, engine_version="1.2.4"))
    lines.set_line(ws, LINE, profile=patch, actor=ALICE)
    assert release.usable_evidence(ws, ref(version)) is not None
    other = lines.save_profile(ws, LINE, replace(PROFILE, concurrencies=(64,)))
    lines.set_line(ws, LINE, profile=other, actor=ALICE)
    with pytest.raises(EvidenceStale, match="another profile"):
        release.promote(ws, ref(version), actor=ALICE)


def test_the_same_promotion_twice_is_already_so(ws: Workspace) -> None:
    version = put_in_production(ws, b"base", b"draft")
    again = release.promote(ws, ref(version), expect_current="none", actor=ALICE)
    assert again.already
    assert len(ws.registry.decisions(LINE)) == 2


@pytest.mark.parametrize("expected", ["none", "2", "code@2", "sha256:" + "0" * 64])
def test_expect_current_is_compare_and_swap(ws: Workspace, expected: str) -> None:
    put_in_production(ws, b"base", b"draft-1")
    version = add(ws, b"base", b"draft-2")
    evidence(ws, version)
    with pytest.raises(Conflict, match="production of line code is code@1"):
        release.promote(ws, ref(version), expect_current=expected, actor=ALICE)
    assert ws.registry.head(LINE).production == 1


def test_expect_current_takes_number_name_and_digest(ws: Workspace) -> None:
    first = put_in_production(ws, b"base", b"draft-1")
    for n, expected in enumerate(["1", "code@2", "sha256:"], 2):
        version = add(ws, b"base", b"draft-%d" % n)
        evidence(ws, version)
        if expected == "sha256:":
            expected = ws.registry.version(ref("code@production")).pair_digest[:20]
        moved = release.promote(ws, ref(version), expect_current=expected, actor=ALICE)
        assert moved.head.production == n
    assert first.number == 1


def test_override_needs_a_reason_and_keeps_it(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    failed = evidence(ws, version, Outcome.FAIL)
    with pytest.raises(InvalidInput, match="needs a reason"):
        release.promote(ws, ref(version), override="  ", actor=ALICE)
    moved = release.promote(ws, ref(version), override="incident 4711", actor=ALICE)
    assert moved.decision is not None
    assert moved.decision.override
    assert "incident 4711" in moved.decision.reason
    assert moved.decision.evaluation_digest == failed


def test_missing_and_cut_files_stop_even_an_override(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version)
    path = ws.blobs.path(sha256_digest(b"draft"))
    os.chmod(path, 0o644)
    path.write_bytes(b"dra")
    with pytest.raises(IntegrityError, match="missing"):
        release.promote(ws, ref(version), override="now", actor=ALICE)
    path.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        release.promote(ws, ref(version), actor=ALICE)


def test_promote_needs_a_young_verification_without_problems(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft", at=days_ago(31))
    evidence(ws, version)
    with pytest.raises(EvidenceStale, match="last hashed 31"):
        release.promote(ws, ref(version), actor=ALICE)
    ws.registry.record_verification(version.pair_digest, lines.now(), "blob x differs")
    with pytest.raises(IntegrityError, match="blob x differs"):
        release.promote(ws, ref(version), override="now", actor=ALICE)
    ws.registry.record_verification(version.pair_digest, lines.now())
    assert release.promote(ws, ref(version), actor=ALICE).head.production == 1


def test_a_promotion_needs_the_store(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version)
    with pytest.raises(Unavailable):
        release.promote(ws, ref(version), actor=ALICE, presence=unreachable)


def unreachable(ws: Workspace, pair: object) -> tuple[str, ...]:
    raise Unavailable("the bucket does not answer")


def test_a_request_id_makes_retries_safe(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    evidence(ws, version)
    first = release.promote(ws, ref(version), request_id="ci-1", actor=ALICE)
    again = release.promote(ws, ref(version), request_id="ci-1", actor=ALICE)
    assert again.already
    assert again.decision == first.decision
    other = add(ws, b"base", b"draft-2")
    with pytest.raises(Conflict, match="was used for promote code@1"):
        release.promote(ws, ref(other), request_id="ci-1", actor=ALICE)


# --- approvals ------------------------------------------------------------------------------


def test_approvals_bind_to_the_evaluation_and_differ_from_the_promoter(
    ws: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(preset_text("exploratory") + "\n[approvals]\nrequired = 1\n")
    lines.set_line(ws, LINE, policy=path, actor=ALICE)
    version = add(ws, b"base", b"draft")
    with pytest.raises(EvidenceMissing):
        approvals.approve(ws, ref(version), "safety", actor=BOB)
    evidence(ws, version)
    approvals.approve(ws, ref(version), "safety", actor=ALICE)
    with pytest.raises(Refused, match="0 of 1 approvals"):
        release.promote(ws, ref(version), actor=ALICE)
    approvals.approve(ws, ref(version), "safety", actor=BOB)
    evidence(ws, version)  # a newer PASS that nobody has agreed to
    with pytest.raises(Refused, match="0 of 1 approvals"):
        release.promote(ws, ref(version), actor=ALICE)
    approvals.approve(ws, ref(version), "safety", actor=BOB)
    assert release.promote(ws, ref(version), actor=ALICE).head.production == 1


# --- rollback -------------------------------------------------------------------------------


def test_rollback_withdraws_and_a_second_one_is_refused(released: Workspace) -> None:
    moved = release.rollback(released, LINE, reason="paged", request_id="night", actor=ALICE)
    assert (moved.head.production, moved.head.previous) == (2, None)
    assert moved.head.withdrawn == {3}
    assert 3 in moved.head.protected
    with pytest.raises(Refused, match="nothing to roll back to") as caught:
        release.rollback(released, LINE, actor=ALICE)
    assert "code@1" in (caught.value.hint or "")
    again = release.rollback(released, LINE, request_id="night", actor=ALICE)
    assert again.already
    assert released.registry.head(LINE).production == 2


def test_rollback_to_a_version_that_was_production(released: Workspace) -> None:
    add(released, b"never", b"draft")
    with pytest.raises(Refused, match="never in production"):
        release.rollback(released, LINE, to=ref("code@4"), actor=ALICE)
    with pytest.raises(NotFound):
        release.rollback(released, LINE, to=ref("code@9"), actor=ALICE)
    moved = release.rollback(released, LINE, to=ref("code@1"), actor=ALICE)
    assert (moved.head.production, moved.head.previous) == (1, None)
    assert moved.head.withdrawn == {3}
    assert release.rollback(released, LINE, to=ref("code@1"), actor=ALICE).already
    with pytest.raises(Refused, match="was withdrawn"):
        release.rollback(released, LINE, to=ref("code@3"), actor=ALICE)


def test_rollback_with_nothing_behind_changes_nothing(ws: Workspace) -> None:
    with pytest.raises(Refused, match="no production version"):
        release.rollback(ws, LINE, actor=ALICE)
    put_in_production(ws, b"base", b"draft")
    with pytest.raises(Refused, match="nothing to roll back to"):
        release.rollback(ws, LINE, actor=ALICE)
    assert ws.registry.head(LINE).production == 1


def test_rollback_says_whether_the_target_changes(ws: Workspace) -> None:
    put_in_production(ws, b"base", b"draft-1")
    put_in_production(ws, b"tuned", b"draft-1")
    plan = release.plan_rollback(ws, LINE)
    assert plan is not None
    assert plan.changes_target
    with pytest.raises(Refused, match="would change the target") as caught:
        release.rollback(ws, LINE, keep_target=True, actor=ALICE)
    assert "pairgate disable" in (caught.value.hint or "")
    put_in_production(ws, b"tuned", b"draft-2")
    moved = release.rollback(ws, LINE, keep_target=True, actor=ALICE)
    assert moved.head.production == 2


def test_rollback_from_the_wrong_version_is_a_conflict(released: Workspace) -> None:
    with pytest.raises(Conflict):
        release.rollback(released, LINE, expect_current="2", actor=ALICE)
    assert release.rollback(released, LINE, expect_current="3", actor=ALICE).head.production == 2


def test_rollback_with_a_missing_blob_is_refused_and_without_a_store_is_warned_of(
    released: Workspace, tmp_path: Path
) -> None:
    blob = released.blobs.path(sha256_digest(b"draft-1"))
    kept = blob.rename(tmp_path / "kept")
    with pytest.raises(IntegrityError, match="missing"):
        release.rollback(released, LINE, actor=ALICE)
    assert released.registry.head(LINE).production == 3
    kept.rename(blob)
    (released.home / "store").rename(tmp_path / "unmounted")
    moved = release.rollback(released, LINE, actor=ALICE)
    assert moved.decision is not None
    assert "could not be checked" in moved.decision.warnings[0]


def test_a_withdrawn_version_returns_only_with_reinstate_or_a_new_pass(released: Workspace) -> None:
    release.rollback(released, LINE, reason="slow at night", actor=ALICE)
    with pytest.raises(Refused, match="was withdrawn: slow at night"):
        release.promote(released, ref("code@3"), actor=ALICE)
    with pytest.raises(Refused, match="was withdrawn"):
        release.promote(released, ref("code@3"), override="I know better", actor=ALICE)
    moved = release.promote(released, ref("code@3"), reinstate="the network", actor=ALICE)
    assert moved.decision is not None
    assert moved.decision.reinstate
    assert (moved.head.production, moved.head.withdrawn) == (3, frozenset())
    release.rollback(released, LINE, actor=ALICE)
    evidence(released, released.registry.version(ref("code@3")))
    assert release.promote(released, ref("code@3"), actor=ALICE).head.production == 3


def test_reinstating_needs_evidence_that_still_holds(released: Workspace) -> None:
    release.rollback(released, LINE, to=ref("code@1"), actor=ALICE)  # v3 was compared with v2
    with pytest.raises(EvidenceStale, match="but production is code@1"):
        release.promote(released, ref("code@3"), reinstate="false alarm", actor=ALICE)


def test_an_engine_upgrade_is_promoted_and_rolled_back_with_its_profile(ws: Workspace) -> None:
    version = put_in_production(ws, b"base", b"draft")
    before = ws.registry.head(LINE).profile_digest
    newer = replace(PROFILE, engine_version="2.0.0")
    lines.set_line(ws, LINE, profile=lines.save_profile(ws, LINE, newer), actor=ALICE)
    with pytest.raises(EvidenceStale, match=r"the profile names 2\.0\.0"):
        release.promote(ws, ref(version), actor=ALICE)
    evidence(ws, version, engine_version="2.0.0")
    moved = release.promote(ws, ref(version), actor=ALICE)
    assert not moved.already
    assert (moved.head.production, moved.head.previous) == (1, 1)
    assert moved.head.profile_digest == newer.digest
    back = release.rollback(ws, LINE, actor=ALICE)
    assert back.head.profile_digest == before
    assert back.head.withdrawn == frozenset()


# --- disable and enable ---------------------------------------------------------------------


def blob_names(ws: Workspace) -> set[str]:
    return {p.name for p in (ws.home / "store" / "blobs" / "sha256").iterdir()}


def test_disable_serves_the_target_alone_and_copies_nothing(released: Workspace) -> None:
    before = blob_names(released)
    with pytest.raises(InvalidInput, match="needs a reason"):
        release.disable(released, LINE, " ", actor=ALICE)
    moved = release.disable(released, LINE, "slow", actor=ALICE)
    alone = released.registry.version(ref("code@production"))
    assert (moved.head.production, moved.head.disabled, moved.head.previous) == (4, 3, 2)
    assert alone.method is Method.NONE
    assert alone.target_digest == released.registry.version(ref("code@3")).target_digest
    new = blob_names(released) - before
    assert len(new) == 2  # config and manifest
    assert release.disable(released, LINE, "again", actor=ALICE).already


def test_enable_undoes_it_while_nothing_changed(released: Workspace) -> None:
    release.disable(released, LINE, "slow", actor=ALICE)
    moved = release.enable(released, LINE, actor=ALICE)
    assert (moved.head.production, moved.head.disabled, moved.head.previous) == (3, None, 2)
    assert release.enable(released, LINE, actor=ALICE).already
    release.disable(released, LINE, "slow", actor=ALICE)
    assert len(released.registry.versions(LINE)) == 4  # the target alone is made once
    evidence(released, released.registry.version(ref("code@3")), Outcome.FAIL)
    with pytest.raises(Refused, match="failed an evaluation"):
        release.enable(released, LINE, actor=ALICE)


def test_enable_after_a_changed_profile_is_refused(released: Workspace) -> None:
    release.disable(released, LINE, "slow", actor=ALICE)
    newer = lines.save_profile(released, LINE, replace(PROFILE, engine_version="2.0.0"))
    lines.set_line(released, LINE, profile=newer, actor=ALICE)
    with pytest.raises(Refused, match="profile"):
        release.enable(released, LINE, actor=ALICE)


def test_rollback_while_disabled_withdraws_both(released: Workspace) -> None:
    release.disable(released, LINE, "slow", actor=ALICE)
    with pytest.raises(Refused, match="is the version that is disabled"):
        release.rollback(released, LINE, to=ref("code@3"), actor=ALICE)
    moved = release.rollback(released, LINE, actor=ALICE)
    assert (moved.head.production, moved.head.disabled) == (2, None)
    assert moved.head.withdrawn == {3, 4}
    # The target alone may be served again: that is not what failed.
    again = release.disable(released, LINE, "slow again", actor=ALICE)
    assert (again.head.production, again.head.withdrawn) == (4, {3})


def test_nothing_to_disable_or_enable(ws: Workspace) -> None:
    with pytest.raises(Refused, match="no production"):
        release.disable(ws, LINE, "slow", actor=ALICE)
    put_in_production(ws, b"base", None)
    assert release.disable(ws, LINE, "slow", actor=ALICE).already
    with pytest.raises(Refused, match="no disabled draft"):
        release.enable(ws, LINE, actor=ALICE)


# --- pins, settings, the log ----------------------------------------------------------------


def test_pins_are_decisions(ws: Workspace) -> None:
    version = add(ws, b"base", b"draft")
    assert release.pin(ws, ref(version), reason="audit", actor=ALICE).head.pinned == {1}
    assert release.pin(ws, ref(version), actor=ALICE).already
    assert release.pin(ws, ref(version), pinned=False, actor=ALICE).head.pinned == frozenset()


def test_setting_the_same_again_writes_nothing(ws: Workspace) -> None:
    done = lines.set_line(ws, LINE, policy="default", slice_name=SLICE, actor=ALICE)
    assert done.decision is None
    assert [d.kind for d in ws.registry.decisions(LINE)] == [Kind.SET]


@pytest.mark.parametrize(
    "move",
    [
        lambda ws: release.rollback(ws, LINE, actor=ALICE),
        lambda ws: release.disable(ws, LINE, "slow", actor=ALICE),
        lambda ws: release.pin(ws, ref("code@1"), actor=ALICE),
    ],
)
def test_the_stored_head_is_the_fold(
    released: Workspace, move: Callable[[Workspace], object]
) -> None:
    move(released)
    assert fold(LINE, released.registry.decisions(LINE)) == released.registry.head(LINE)
