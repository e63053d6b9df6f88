"""Policy files: TOML or YAML text -> Policy, strictly.

A typo must not switch a rule off, so every unknown key, wrong type, empty rule list and threshold
without the rate that it is about is a `PolicyError` with file, line and the nearest valid key.
The file's shape is that of the domain types: settings at the top, one table per rule under
`rules`, and the tables `replay`, `fallback` and `approvals`.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from pairgate.domain.canonical import canonical_json
from pairgate.domain.policy import Policy
from pairgate.errors import MissingExtra, NotFound, PolicyError
from pairgate.policyfile.explain import explained
from pairgate.policyfile.reading import RULE_TYPES, Source
from pairgate.policyfile.schema import schema_text

__all__ = [
    "PRESETS",
    "RULE_TYPES",
    "explained",
    "load_policy",
    "loads_policy",
    "policy_document",
    "policy_from_document",
    "preset",
    "preset_text",
    "schema_text",
]

PRESETS = ("default", "strict", "exploratory")


def preset(name: str) -> Policy:
    """One of the policies that come with pairgate: default, strict or exploratory."""
    return loads_policy(preset_text(name), name=f"{name}.toml", suffix=".toml")


def preset_text(name: str) -> str:
    """The commented file of a preset. Raises `NotFound` with the names there are."""
    if name not in PRESETS:
        raise NotFound(f"there is no preset {name!r}", hint=f"presets: {', '.join(PRESETS)}")
    return (resources.files("pairgate") / "policies" / f"{name}.toml").read_text("utf-8")


def load_policy(path: Path) -> Policy:
    """Read a policy file; `.toml`, `.yaml` or `.yml`. Raises `PolicyError`, `NotFound`."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise NotFound(
            f"there is no policy file {path}",
            hint=f"or name a preset: {', '.join(PRESETS)}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    return loads_policy(text, name=str(path), suffix=path.suffix)


def loads_policy(text: str, *, name: str, suffix: str) -> Policy:
    """Parse policy text; `name` is what errors call it, `suffix` (`.toml`, …) its language."""
    return Source(text=text, name=name, data=_parse(text, name, suffix)).policy()


def policy_document(policy: Policy) -> str:
    """The whole policy as canonical JSON, advisory rules included."""
    document = {key: value for key, value in asdict(policy).items() if key != "rules"}
    document["rules"] = {rule.name: asdict(rule) for rule in policy.rules}
    return canonical_json(document).decode("utf-8")


def policy_from_document(text: str) -> Policy:
    """The policy of a stored document."""
    return loads_policy(text, name="stored policy", suffix=".json")


def _parse(text: str, name: str, suffix: str) -> dict[str, Any]:
    try:
        data = _parsed(text, suffix)
    except (ValueError, RecursionError) as error:  # TOML and JSON errors are ValueErrors
        raise PolicyError(f"{name}: {error}") from error
    if data is None:
        raise PolicyError(f"{name}: unknown kind of file {suffix!r}", hint="use .toml or .yaml")
    if not isinstance(data, dict):
        raise PolicyError(f"{name}: a policy is a table of settings, not {type(data).__name__}")
    return data


def _parsed(text: str, suffix: str) -> Any:
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text)
    if suffix in (".yaml", ".yml"):
        return _yaml(text)
    return None


def _yaml(text: str) -> Any:
    """YAML without duplicate keys, which the format forbids and PyYAML lets through."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("pyyaml", "yaml") from None

    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value]
        twice = next((k for k in keys if keys.count(k) > 1), None)
        if twice is not None:
            raise ValueError(f"line {node.start_mark.line + 1}: {twice!r} is given twice")
        loader.flatten_mapping(node)
        found: dict[Any, Any] = loader.construct_mapping(node, deep=True)
        return found

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
