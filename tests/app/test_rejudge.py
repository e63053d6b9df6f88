"""Judging again may change thresholds, never what ran."""

from __future__ import annotations

from dataclasses import replace

from pairgate.app.rejudge import _what_ran
from pairgate.domain.policy import FallbackSettings
from pairgate.policyfile import preset


def test_thresholds_do_not_count_but_what_ran_does() -> None:
    policy = preset("default")
    stricter = replace(policy, alpha=0.01, rules=policy.rules[:1])
    lenient = replace(policy, replay=replace(policy.replay, max_failed_share=0.5))
    assert _what_ran(policy) == _what_ran(stricter) == _what_ran(lenient)
    for other in (
        replace(policy, seed=policy.seed + 1),
        replace(policy, fallback=FallbackSettings(floor=0.1)),
        replace(policy, replay=replace(policy.replay, max_blocks=policy.replay.max_blocks + 3)),
    ):
        assert _what_ran(policy) != _what_ran(other)
