"""From a parsed table to a Policy, strictly, with the file's line in every message."""

from __future__ import annotations

import difflib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from pairgate.domain.policy import (
    AcceptanceRule,
    ApprovalSettings,
    FallbackSettings,
    Policy,
    ReplaySettings,
    Rule,
)
from pairgate.errors import PolicyError
from pairgate.policyfile.lines import line_of

RULE_TYPES: dict[str, type[Rule]] = {rule.name: rule for rule in get_args(Rule)}
TABLES: dict[str, type] = {
    "replay": ReplaySettings,
    "fallback": FallbackSettings,
    "approvals": ApprovalSettings,
}
SETTINGS = tuple(f.name for f in fields(Policy) if f.name not in ("rules", *TABLES))

_Share = Annotated[float, Strict(), Field(ge=0.0, le=1.0)]
_Ratio = Annotated[float, Strict(), Field(gt=0.0)]
_Count = Annotated[int, Strict(), Field(ge=0)]
_Positive = Annotated[int, Strict(), Field(ge=1)]
_OrBreakEven = Literal["break-even"]
_Concurrency = Annotated[int, Field(ge=1)]  # keys of a table are text


def _pairs(value: Any) -> Any:
    """A table as sorted pairs; stored policies hold the pairs themselves."""
    return sorted(value.items()) if isinstance(value, dict) else value


_A_RATE = {"type": "number", "exclusiveMinimum": 0.0, "maximum": 64.0}


def _table_of(value: dict[str, Any], keys: str = "") -> dict[str, Any]:
    """JSON Schema of a table with free keys, which the dataclass holds as pairs."""
    if not keys:
        return {"type": "object", "additionalProperties": value}
    return {"type": "object", "patternProperties": {keys: value}, "additionalProperties": False}


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
    "level": Literal["F1", "F2", "F3"],
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
    "domains": Annotated[
        tuple[
            tuple[
                Annotated[str, Strict()],
                Annotated[float, Strict(), Field(gt=0.0, le=64.0)] | _OrBreakEven,
            ],
            ...,
        ],
        BeforeValidator(_pairs),
        WithJsonSchema(_table_of({"anyOf": [_A_RATE, {"const": "break-even"}]})),
    ],
    "at": Annotated[
        tuple[tuple[_Concurrency, _Ratio], ...],
        BeforeValidator(_pairs),
        WithJsonSchema(
            _table_of({"type": "number", "exclusiveMinimum": 0.0}, keys="^[1-9][0-9]*$")
        ),
    ],
}


class Source:
    """One file while it is read: knows where a key stands, for the messages."""

    def __init__(self, *, text: str, name: str, data: dict[str, Any]) -> None:
        self.text, self.name, self.data = text, name, data

    def policy(self) -> Policy:
        self._known(self.data, (*SETTINGS, "rules", *TABLES), ())
        rules = self._table(self.data.get("rules"), ("rules",))
        self._known(rules, tuple(RULE_TYPES), ("rules",))
        acceptance = rules.get("acceptance")
        if isinstance(acceptance, dict) and "threshold" in acceptance and "rate" not in acceptance:
            self._fail(
                ("rules", "acceptance", "threshold"),
                "a threshold without the rate that it is about",
                hint='add rate = "token_acceptance", "acceptance_rate" or "acceptance_length"',
            )
        settings = {k: v for k, v in self.data.items() if k in SETTINGS}
        settings.setdefault("name", Path(self.name).stem)
        values = self._read(Policy, settings, (), only=SETTINGS)
        built = tuple(
            self._read(kind, self._table(rules[name], ("rules", name)), ("rules", name))
            for name, kind in RULE_TYPES.items()
            if name in rules
        )
        tables = {
            name: self._read(kind, self._table(self.data.get(name), (name,)), (name,))
            for name, kind in TABLES.items()
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
            model = model_of(kind, known).model_validate(table)
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
        self._number_fits(rule, ("rules", "acceptance", "threshold"), rule.threshold)
        for domain, threshold in rule.domains:
            at = ("rules", "acceptance", "domains", domain)
            self._number_fits(rule, at, threshold)
            if domain in rule.other:
                self._fail(at, f"domain {domain!r} is only shown (other), and has a threshold")

    def _number_fits(self, rule: AcceptanceRule, at: tuple[str, ...], value: float | str) -> None:
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


def model_of(kind: type, names: tuple[str, ...] = ()) -> type[BaseModel]:
    """A strict pydantic model with fields (all, or `names`) and defaults of a domain dataclass."""
    hints = get_type_hints(kind)
    definitions: dict[str, Any] = {}
    for field in fields(kind):
        if not names or field.name in names:
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
