"""The JSON Schema of a policy file, from the models that read it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from pairgate.domain.policy import Policy
from pairgate.policyfile.reading import RULE_TYPES, SETTINGS, TABLES, model_of

SCHEMA_FILE = "policy.schema.json"
_MOST_TOKENS_PER_ROUND = 64.0


def policy_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) for editors and for policies that other programs write.

    What it cannot say (minima under maxima, a domain that is shown and has a threshold) is checked
    by `load_policy` alone.
    """
    definitions: dict[str, Any] = {}
    rules = {name: _table(kind, definitions) for name, kind in RULE_TYPES.items()}
    rules["acceptance"] |= _rate_and_threshold()
    properties = _properties(Policy, SETTINGS, definitions)
    properties["alpha"] |= {"exclusiveMinimum": 0.0, "maximum": 0.2}
    properties["rules"] = {
        "type": "object",
        "description": "One table per rule; at least one of them gates.",
        "properties": rules,
        "additionalProperties": False,
        "minProperties": 1,
    }
    properties |= {name: _table(kind, definitions) for name, kind in TABLES.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pairgate policy",
        "description": "What a pair must show before it may go to production (docs/policy.md).",
        "type": "object",
        "properties": properties,
        "required": ["rules"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as it is published beside the presets."""
    return json.dumps(policy_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def published_schema() -> str:
    """The file that comes with pairgate."""
    return (resources.files("pairgate") / "policies" / SCHEMA_FILE).read_text("utf-8")


def _table(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """One table: every key of the dataclass is optional, and no other is allowed."""
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": _properties(kind, (), definitions),
        "additionalProperties": False,
    }


def _properties(kind: type, names: tuple[str, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    schema = model_of(kind, names).model_json_schema()
    definitions |= schema.pop("$defs", {})
    found: dict[str, Any] = schema["properties"]
    for value in found.values():
        value.pop("title", None)  # the key again, in capitals
    return found


def _rate_and_threshold() -> dict[str, Any]:
    """A threshold needs the rate that it is about; a share is at most 1, a round emits one token
    at least."""

    def within(low: float, high: float) -> dict[str, Any]:
        # Of "break-even" the limits of a number say nothing.
        return {"properties": {"threshold": {"minimum": low, "maximum": high}}}

    by_length = {
        "properties": {"rate": {"const": "acceptance_length"}},
        "required": ["rate"],
    }
    return {
        "dependentRequired": {"threshold": ["rate"]},
        "if": by_length,
        "then": within(1.0, _MOST_TOKENS_PER_ROUND),
        "else": within(0.0, 1.0),
    }
