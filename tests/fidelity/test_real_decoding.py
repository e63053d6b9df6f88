"""F3 on real decoding of the demo pair: the decoder that ships passes, wrong ones are caught.

Each wrong decoder runs for the tokens that it takes to catch it. False alarms: every claim here
rests on |z| > 3.48 (0.0005 two-sided each), with fixed seeds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from decoders import BROKEN, LOSSLESS, DemoPair, Run, demo_pair, found_in

from pairgate.domain.evidence import LawTests
from pairgate.engines.native.laws import DraftLaw

pytestmark = pytest.mark.slow

MAX_ABS_Z = 3.48


@pytest.fixture(scope="module")
def pair() -> Iterator[DemoPair]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield demo_pair()
    torch.set_num_threads(threads)


def _alarms(found: LawTests) -> dict[str, float]:
    return {s.name: s.z for s in found.scores if abs(s.z) > MAX_ABS_Z}


def test_the_decoder_that_ships_keeps_the_law_over_20_000_tokens(pair: DemoPair) -> None:
    """With the sampling parameters of the traffic: temperatures, top-p, top-k."""
    found = found_in(pair, Run(n_tokens=20_500, sampling=None), DraftLaw())
    assert found.n_tokens + found.n_certain >= 20_000
    assert _alarms(found) == {}
    assert found.n_violations == 0
    assert found.n_excused <= 2
    assert {s.name for s in found.scores} == {
        "surprisal",
        "draft score",
        "token-id order",
        "white-box acceptance",
    }
    assert found.surprisal is not None and found.draft_score is not None
    assert max(np.abs([found.surprisal.low, found.surprisal.high])) < 0.05
    assert max(np.abs([found.draft_score.low, found.draft_score.high])) < 0.01


def test_the_target_alone_keeps_its_own_law(pair: DemoPair) -> None:
    found = found_in(pair, Run(n_tokens=3_000, sampling=None, with_draft=False), DraftLaw())
    assert _alarms(found) == {}
    assert found.n_violations == 0


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_wrong_decoder_is_caught(
    pair: DemoPair, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, broken = BROKEN[name]
    broken(monkeypatch)
    found = found_in(pair, run, DraftLaw())
    assert found.n_violations > 0 or _alarms(found)


@pytest.mark.parametrize("name", list(LOSSLESS))
def test_a_lossless_variant_is_not_flagged(
    pair: DemoPair, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, law, changed = LOSSLESS[name]
    changed(monkeypatch)
    found = found_in(pair, run, law)
    assert found.n_violations == 0
    assert _alarms(found) == {}
