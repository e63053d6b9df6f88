"""What is stored comes back as it was, and with the digest that it had."""

from __future__ import annotations

from typing import Any

import pytest

from pairgate.domain.pair import Pair
from pairgate.domain.policy import Policy
from pairgate.domain.profile import ServingProfile
from pairgate.domain.verdict import Outcome, Verdict
from pairgate.errors import IntegrityError
from pairgate.policyfile import preset
from pairgate.store.codec import dump_json, load_json
from tests.release.story import CHECKS, MEASUREMENTS, PROFILE, make_pair

VERDICT = Verdict(outcome=Outcome.PASS, checks=CHECKS, policy_digest="sha256:p", warnings=("é",))


@pytest.mark.parametrize(
    "value",
    [
        make_pair(b"t", b"d"),
        make_pair(b"t", None),
        PROFILE,
        VERDICT,
        MEASUREMENTS,
        preset("default"),
        preset("strict"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_round_trip(value: Any) -> None:
    text = dump_json(value)
    back = load_json(type(value), text)
    assert back == value
    assert dump_json(back) == text
    if isinstance(value, Pair | Policy | ServingProfile):
        assert back.digest == value.digest


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"name": "x"}',
        dump_json(PROFILE).replace('"engine":"native"', '"engine":5'),
        dump_json(PROFILE).replace('"engine":"native"', '"engine":null'),
        dump_json(PROFILE).replace('"concurrencies":[1,8]', '"concurrencies":8'),
        dump_json(PROFILE).replace('{"', '{"unknown":1,"', 1),
    ],
)
def test_another_text_is_an_integrity_error(text: str) -> None:
    with pytest.raises(IntegrityError):
        load_json(ServingProfile, text)
