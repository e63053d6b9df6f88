"""Lines and what they are judged by: policy, slice and serving profile."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairgate import promote as rules
from pairgate.app.actor import current_actor
from pairgate.app.workspace import now
from pairgate.domain.profile import ServingProfile
from pairgate.domain.situation import Ask, Situation
from pairgate.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pairgate.app.workspace import Workspace
    from pairgate.domain.policy import Policy
    from pairgate.domain.records import ProfileRow
    from pairgate.domain.release import Actor, Decision, Head
    from pairgate.store.sql import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSet:
    """The line after `set_line`; `decision` is None when it was so already."""

    head: Head
    decision: Decision | None


def create(ws: Workspace, name: str) -> Head:
    """A line without decisions; raises `Conflict` when it exists."""
    return ws.registry.create_line(name, now())


def set_line(
    ws: Workspace,
    line: str,
    *,
    policy: Policy | Path | str | None = None,
    slice_name: str | None = None,
    profile: str | None = None,
    reason: str = "",
    actor: Actor | None = None,
) -> LineSet:
    """What the line is judged by from now on, as a decision; None keeps what is set.

    `policy` is one that is loaded, a file or a preset, `slice_name` a name or a digest, `profile`
    NAME or NAME@N. Raises `NotFound`, `PolicyError`.
    """
    ws.registry.head(line)
    policy_digest = None if policy is None else save_policy(ws, read_policy(policy))
    slice_digest = None if slice_name is None else ws.registry.slice_(slice_name).digest
    profile_digest = None if profile is None else find_profile(ws, line, profile).digest
    ask = Ask(by=actor or current_actor(ws), at=now(), reason=reason)

    def body(transaction: Transaction) -> LineSet:
        situation = Situation(head=transaction.head, decisions=(), versions=())
        decision = rules.setting(
            situation,
            ask,
            policy_digest=policy_digest,
            slice_digest=slice_digest,
            profile_digest=profile_digest,
        )
        if decision is not None:
            decision = transaction.append(decision)
        return LineSet(head=transaction.head, decision=decision)

    return ws.registry.decide(line, body)


def read_policy(source: Policy | Path | str) -> Policy:
    """A policy as it is, a preset's name, else a file."""
    from pairgate.domain.policy import Policy
    from pairgate.policyfile import PRESETS, load_policy, preset

    if isinstance(source, Policy):
        return source
    if isinstance(source, str) and source in PRESETS:
        return preset(source)
    return load_policy(Path(source))


def save_policy(ws: Workspace, policy: Policy) -> str:
    """Store the whole policy; returns its digest."""
    from pairgate.policyfile import policy_document

    ws.registry.save_policy(policy.digest, policy.name, policy_document(policy), now())
    return policy.digest


def save_profile(ws: Workspace, line: str, profile: ServingProfile) -> str:
    """Store a profile on the line; returns `NAME@N`, with the same N for the same content."""
    number = ws.registry.save_profile(line, profile, now())
    return f"{profile.name}@{number}"


def find_profile(ws: Workspace, line: str, text: str) -> ProfileRow:
    """NAME is the newest of that name, NAME@N one of them. Raises `NotFound`."""
    name, _, number = text.partition("@")
    rows = ws.registry.profiles(line)
    found = [r for r in rows if r.name == name and number in ("", str(r.number))]
    if not found:
        known = ", ".join(str(r) for r in rows) or "none yet"
        raise NotFound(f"line {line} has no profile {text!r}", hint=f"profiles: {known}")
    return found[-1]


def profile_from_file(path: Path, name: str) -> ServingProfile:
    """A TOML file whose keys are the fields of a serving profile, except the name."""
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFound(f"there is no profile file {path}") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    return _checked_profile(str(path), {**given, "name": name})


def profile_from_command(
    command: str,
    name: str,
    *,
    engine_version: str,
    hardware_class: str,
    concurrencies: tuple[int, ...],
) -> ServingProfile:
    """The profile of a serving command such as `vllm serve MODEL -tp 8`.

    The arguments are kept verbatim; those that a profile names are read out of them.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInput(f"the command cannot be read: {error}") from error
    if not words:
        raise InvalidInput("the serving command is empty")
    engine = Path(words[0]).name
    arguments = tuple(words[2:] if words[1:2] == ["serve"] else words[1:])
    options = _options(arguments)
    profile = ServingProfile(
        name=name,
        engine=engine,
        engine_version=engine_version,
        hardware_class=hardware_class,
        concurrencies=concurrencies,
        arguments=arguments,
        quantization=options.get("--quantization", options.get("-q")),
        kv_cache_dtype=options.get("--kv-cache-dtype", "auto"),
        prefix_caching="--enable-prefix-caching" in arguments,
    )
    return replace(
        profile,
        tensor_parallel_size=_number(options, 1, "--tensor-parallel-size", "-tp"),
        pipeline_parallel_size=_number(options, 1, "--pipeline-parallel-size", "-pp"),
        max_model_len=_number(options, 0, "--max-model-len") or None,
    )


def _options(arguments: tuple[str, ...]) -> dict[str, str]:
    """`--name value` and `--name=value`."""
    options: dict[str, str] = {}
    for i, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if equals and option.startswith("-"):
            options[option] = value
        elif word.startswith("-") and i + 1 < len(arguments):
            options[word] = arguments[i + 1]
    return options


def _number(options: dict[str, str], default: int, *names: str) -> int:
    for name in names:
        if name in options:
            text = options[name]
            if not (text.isascii() and text.isdigit()):
                raise InvalidInput(f"{name} is {text!r}, not a whole number")
            return int(text)
    return default


def _checked_profile(where: str, given: dict[str, Any]) -> ServingProfile:
    from pydantic import TypeAdapter, ValidationError

    known = [f.name for f in fields(ServingProfile)]
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise InvalidInput(
            f"{where}: unknown key {unknown[0]!r}", hint=f"keys of a profile: {', '.join(known)}"
        )
    try:
        return TypeAdapter(ServingProfile).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{where}: {key}: {first['msg']}") from error
