"""Policy files: TOML or YAML text -> Policy, strictly.

A typo must not switch a rule off, so every unknown key, wrong type, empty rule list and threshold
without the rate that it is about is a `PolicyError` with file, line and the nearest valid key.
The file's shape is that of the domain types: settings at the top, one table per rule under
`rules`, and the tables `replay`, `fallback` and `approvals`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import MISSING, asdict, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, create_model

from pairgate.domain.canonical import canonical_json
from pairgate.domain.policy import (
    AcceptanceRule,
    ApprovalSettings,
    FallbackSettings,
    Policy,
    ReplaySettings,
    Rule,
)
from pairgate.errors import MissingExtra, NotFound, PolicyError

PRESETS = ("default", "strict", "exploratory")
RULE_TYPES: dict[str, type[Rule]] = {rule.name: rule for rule in get_args(Rule)}
_TABLES: dict[str, type] = {
    "replay": ReplaySettings,
    "fallback": FallbackSettings,
    "approvals": ApprovalSettings,
}
_SETTINGS = tuple(f.name for f in fields(Policy) if f.name not in ("rules", *_TABLES))

_Share = Annotated[float, Strict(), Field(ge=0.0, le=1.0)]
_Ratio = Annotated[float, Strict(), Field(gt=0.0)]
_Count = Annotated[int, Strict(), Field(ge=0)]
_Positive = Annotated[int, Strict(), Field(ge=1)]
_OrBreakEven = Literal["break-even"]
# Narrower types than the dataclass says, by field name; the others follow the annotation.
_NARROW: dict[str, Any] = {
    "threshold": Annotated[float, Strict(), Field(gt=0.0, le=64.0)] | _OrBreakEven,
    "floor": _Share,
    "advise_threshold": Annotated[float, Strict(), Field(gt=0.0, le=64.0)] | None,
    "margin": Annotated[float, Strict(), Field(ge=0.0, lt=1.0)],
    "max_share": _Share,
    "max_drop": _Share,
    "max_failed_share": _Share,
    "min_ratio": _Ratio,
    "max_ttft_ratio": _Ratio,
    "max_tpot_ratio": _Ratio,
    "max_abs_z": _Ratio,
    "z": _Ratio,
    "max_age_days": _Ratio,
    "verify_max_age_days": _Ratio,
    "min_level": Literal["F1", "F2", "F3"],
    "min_tokens": _Count,
    "warmup_requests": _Count,
    "required": _Count,
    "window": _Positive,
    "minimum": _Positive,
    "min_blocks": _Positive,
    "max_blocks": _Positive,
    "requests_per_block": _Positive | None,
    "acceptance_concurrency": _Positive | None,
    "budget_bytes": _Positive | None,
    "concurrencies": tuple[_Positive, ...] | None,
    "speed_concurrencies": tuple[_Positive, ...] | None,
    "advise_at": tuple[_Positive, ...],
}


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
    return _Source(text=text, name=name, data=_parse(text, name, suffix)).policy()


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
        import json

        return json.loads(text)
    if suffix in (".yaml", ".yml"):
        return _yaml(text)
    return None


def _yaml(text: str) -> Any:
    """YAML without duplicate keys, which the format forbids and PyYAML lets through."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("pyyaml", "all") from None

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


class _Source:
    """One file while it is read: knows where a key stands, for the messages."""

    def __init__(self, *, text: str, name: str, data: dict[str, Any]) -> None:
        self.text, self.name, self.data = text, name, data

    def policy(self) -> Policy:
        self._known(self.data, (*_SETTINGS, "rules", *_TABLES), ())
        rules = self._table(self.data.get("rules"), ("rules",))
        self._known(rules, tuple(RULE_TYPES), ("rules",))
        acceptance = rules.get("acceptance")
        if isinstance(acceptance, dict) and "threshold" in acceptance and "rate" not in acceptance:
            self._fail(
                ("rules", "acceptance", "threshold"),
                "a threshold without the rate that it is about",
                hint='add rate = "token_acceptance", "acceptance_rate" or "acceptance_length"',
            )
        settings = {k: v for k, v in self.data.items() if k in _SETTINGS}
        settings.setdefault("name", Path(self.name).stem)
        values = self._read(Policy, settings, (), only=_SETTINGS)
        built = tuple(
            self._read(kind, self._table(rules[name], ("rules", name)), ("rules", name))
            for name, kind in RULE_TYPES.items()
            if name in rules
        )
        tables = {
            name: self._read(kind, self._table(self.data.get(name), (name,)), (name,))
            for name, kind in _TABLES.items()
        }
        self._consistent(built, tables["replay"], tables["fallback"])
        try:
            return Policy(rules=built, **values, **tables)
        except PolicyError as error:
            raise PolicyError(f"{self.name}: {error.message}", hint=error.hint) from error

    def _table(self, value: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._fail(path, f"a table is expected here, not {value!r}")
        return dict(value)

    def _known(self, table: dict[str, Any], known: tuple[str, ...], path: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                self._unknown(str(key), known, path)

    def _unknown(self, key: str, known: tuple[str, ...], path: tuple[str, ...]) -> None:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"valid here: {', '.join(known)}"
        self._fail((*path, key), f"unknown {'rule' if path == ('rules',) else 'key'} {key!r}", hint)

    def _read(
        self, kind: type, table: dict[str, Any], path: tuple[str, ...], only: tuple[str, ...] = ()
    ) -> Any:
        """The dataclass `kind` from a table (with `only`, the values of those fields)."""
        known = only or tuple(f.name for f in fields(kind))
        self._known(table, known, path)
        try:
            model = _model(kind, known).model_validate(table)
        except ValidationError as error:
            first = error.errors()[0]
            where = str(first["loc"][0]) if first["loc"] else ""
            self._fail((*path, where), f"{where} = {table.get(where)!r}: {first['msg']}")
        values = {name: getattr(model, name) for name in known}
        return values if only else kind(**values)

    def _consistent(
        self, rules: tuple[Any, ...], replay: ReplaySettings, fallback: FallbackSettings
    ) -> None:
        for rule in rules:
            if isinstance(rule, AcceptanceRule):
                self._threshold_fits(rule)
        if replay.min_blocks > replay.max_blocks:
            self._fail(
                ("replay", "min_blocks"),
                f"min_blocks {replay.min_blocks} is over max_blocks {replay.max_blocks}",
            )
        if fallback.minimum > fallback.window:
            self._fail(
                ("fallback", "minimum"),
                f"minimum {fallback.minimum} is over the window of {fallback.window} tokens",
            )

    def _threshold_fits(self, rule: AcceptanceRule) -> None:
        at, value = ("rules", "acceptance", "threshold"), rule.threshold
        if isinstance(value, str):
            return
        if rule.rate == "acceptance_length" and value < 1.0:
            self._fail(at, f"an acceptance length of {value} is impossible: a round emits 1 token")
        if rule.rate != "acceptance_length" and value > 1.0:
            self._fail(
                at,
                f"{rule.rate} is a share; {value} is over 1",
                hint='tokens per round are rate = "acceptance_length"',
            )

    def _fail(self, path: tuple[str, ...], message: str, hint: str | None = None) -> Any:
        line = line_of(self.text, path)
        where = self.name if line is None else f"{self.name}:{line}"
        section = ".".join(path[:-1])
        raise PolicyError(f"{where}: {f'[{section}] ' if section else ''}{message}", hint=hint)


def _model(kind: type, names: tuple[str, ...]) -> type[BaseModel]:
    """A strict pydantic model with the fields and defaults of a domain dataclass."""
    hints = get_type_hints(kind)
    definitions: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in names:
            hint = _NARROW.get(field.name, _strict(hints[field.name]))
            if kind is FallbackSettings and field.name == "floor":
                hint = hint | _OrBreakEven
            default = ... if field.default is MISSING else field.default
            definitions[field.name] = (hint, default)
    return create_model(
        kind.__name__,
        __config__=ConfigDict(extra="forbid", allow_inf_nan=False, use_enum_values=False),
        **definitions,
    )


def _strict(hint: Any) -> Any:
    """Numbers and booleans are not read from strings, nor numbers from booleans."""
    if hint in (int, float, bool, str):
        return Annotated[hint, Strict()]
    return tuple[Annotated[str, Strict()], ...] if hint == tuple[str, ...] else hint


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """1-based line of a key in TOML or YAML text, or of its table; None when it is not found.

    Good enough for a message: keys in multi-line strings could fool it.
    """
    return _toml_line(text, path) or _yaml_line(text, path)


def _toml_line(text: str, path: tuple[str, ...]) -> int | None:
    table: tuple[str, ...] = ()
    best: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$", line)
        if header:
            table = tuple(part.strip(" \"'") for part in header[1].split("."))
            if table == path:
                return number
            if path[: len(table)] == table:
                best = number
            continue
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if key:
            found = (*table, *(part.strip("\"'") for part in key[1].split(".")))
            if found == path:
                return number
            if path[: len(found)] == found:
                best = number
    return best


def _yaml_line(text: str, path: tuple[str, ...]) -> int | None:
    stack: list[tuple[int, str]] = []
    best: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        key = re.match(r"(\s*)([\w\"'-]+)\s*:", line)
        if not key:
            continue
        depth = len(key[1])
        stack = [entry for entry in stack if entry[0] < depth]
        stack.append((depth, key[2].strip("\"'")))
        found = tuple(name for _, name in stack)
        if found == path:
            return number
        if path[: len(found)] == found:
            best = number
    return best
