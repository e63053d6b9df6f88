"""The published JSON Schema is the generated one, and says what the loader says."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from click.testing import CliRunner

from pairgate.cli import cli
from pairgate.errors import PolicyError
from pairgate.policyfile import (
    PRESETS,
    loads_policy,
    policy_document,
    preset,
    preset_text,
    schema_text,
)
from pairgate.policyfile.schema import policy_schema, published_schema

jsonschema = pytest.importorskip("jsonschema", reason="the extra [dev] has jsonschema")


@pytest.fixture(scope="module")
def schema() -> Any:
    jsonschema.Draft202012Validator.check_schema(policy_schema())
    return jsonschema.Draft202012Validator(json.loads(published_schema()))


def test_the_published_file_is_generated() -> None:
    """Write it anew with `pairgate policy schema > pairgate/policies/policy.schema.json`."""
    assert published_schema() == schema_text()
    assert CliRunner().invoke(cli, ["policy", "schema"]).output == schema_text()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_fit_it(schema: Any, name: str) -> None:
    schema.validate(tomllib.loads(preset_text(name)))


RATE = {"rate": "token_acceptance"}


@pytest.mark.parametrize(
    ("document", "valid"),
    [
        ({"rules": {"speedup": {}}}, True),
        ({"rules": {"speedup": {"at": {"1": 1.3, "64": 0.95}}}}, True),
        ({"rules": {"speedup": {"concurrencies": [1, 8], "advise_at": [8]}}}, True),
        ({"rules": {"acceptance": RATE | {"threshold": 0.6, "domains": {"sql": 0.5}}}}, True),
        ({"rules": {"acceptance": RATE | {"threshold": "break-even"}}}, True),
        ({"rules": {"acceptance": RATE | {"domains": {"sql": "break-even"}}}}, True),
        ({"rules": {"acceptance": {"rate": "acceptance_length", "threshold": 2.5}}}, True),
        ({"rules": {"memory": {"budget_bytes": 10}}, "fallback": {"floor": "break-even"}}, True),
        ({}, False),
        ({"rules": {}}, False),
        ({"rules": {"acceptence": {}}}, False),
        ({"rules": {"speedup": {"min_ration": 1}}}, False),
        ({"rules": {"speedup": {"min_ratio": "1.0"}}}, False),
        ({"rules": {"speedup": {"min_ratio": True}}}, False),
        ({"rules": {"speedup": {"mode": "gates"}}}, False),
        ({"rules": {"speedup": {"concurrencies": [0]}}}, False),
        ({"rules": {"speedup": {"at": {"eight": 1.0}}}}, False),
        ({"rules": {"fidelity": {"min_level": "F4"}}}, False),
        ({"rules": {"acceptance": {"threshold": 0.6}}}, False),
        ({"rules": {"acceptance": RATE | {"threshold": 2.0}}}, False),
        ({"rules": {"acceptance": {"rate": "acceptance_length", "threshold": 0.6}}}, False),
        ({"rules": {"acceptance": RATE | {"domains": {"sql": "cheap"}}}}, False),
        ({"rules": {"bimodality": {"floor": "break-even"}}}, False),
        ({"rules": {"speedup": {}}, "alpha": 0.5}, False),
        ({"rules": {"speedup": {}}, "aplha": 0.1}, False),
        ({"rules": {"speedup": {}}, "replay": {"min_blocks": 0}}, False),
        ({"rules": {"speedup": {}}, "approvals": {"required": -1}}, False),
    ],
)
def test_it_agrees_with_the_loader(schema: Any, document: dict[str, Any], valid: bool) -> None:
    assert schema.is_valid(document) is valid
    text = json.dumps(document)
    if valid:
        loads_policy(text, name="p", suffix=".json")
    else:
        with pytest.raises(PolicyError):
            loads_policy(text, name="p", suffix=".json")


def test_every_key_of_a_stored_policy_is_in_it() -> None:
    """A stored document holds tables as pairs; its keys are those of the schema."""
    stored, known = json.loads(policy_document(preset("default"))), policy_schema()["properties"]
    assert stored.keys() == known.keys()
    for name, rule in stored["rules"].items():
        assert rule.keys() == known["rules"]["properties"][name]["properties"].keys()
