"""Serving profiles from what people have: a serving command, or a file.

A command is made canonical, so that two ways to write it have one digest: options by their long
names, sorted, values beside them. What pairgate knows is read out, what it does not know stays as
it is. The model and the speculative config leave the arguments, because the pair decides them.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pairgate.domain.freshness import major_minor
from pairgate.domain.profile import ServingProfile
from pairgate.errors import InvalidInput, NotFound

_SPECULATIVE = "--speculative-config"
# engine -> (short or older spelling -> the one that is kept)
_ALIASES: dict[str, dict[str, str]] = {
    "vllm": {
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-dp": "--data-parallel-size",
        "-q": "--quantization",
        "-sc": _SPECULATIVE,
    },
    "sglang": {
        "--tp": "--tensor-parallel-size",
        "--tp-size": "--tensor-parallel-size",
        "--pp-size": "--pipeline-parallel-size",
        "--dp": "--data-parallel-size",
        "--dp-size": "--data-parallel-size",
        "--model": "--model-path",
    },
    "llamacpp": {
        "-m": "--model",
        "-md": "--model-draft",
        "-np": "--parallel",
        "-c": "--ctx-size",
        "-ctk": "--cache-type-k",
        "-ctv": "--cache-type-v",
        "-ctkd": "--cache-type-k-draft",
        "-ctvd": "--cache-type-v-draft",
        "--draft": "--draft-max",
        "--draft-n": "--draft-max",
    },
    "trtllm": {"--tp_size": "--tensor-parallel-size", "--tp-size": "--tensor-parallel-size"},
}
_MODEL = ("--model", "--model-path", "--tokenizer", "--tokenizer-path", "--revision")
# Where it listens and who may ask: neither changes what is served, and a key is a secret.
_ELSEWHERE = ("--host", "--port", "--api-key", "--hf-token", "--ssl-keyfile", "--ssl-certfile")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
# field -> the options that say it
_LENGTH = ("--max-model-len", "--context-length", "--max-seq-len")
_SEQUENCES = ("--max-num-seqs", "--max-running-requests", "--parallel", "--max-batch-size")
_KV_DTYPE = ("--kv-cache-dtype", "--cache-type-k")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    name: str
    values: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        return (self.name, *self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """A serving command taken apart; `options` are sorted by name."""

    engine: str
    environment: tuple[str, ...]
    options: tuple[_Option, ...]

    def value(self, *names: str) -> str | None:
        """What was said last, as the engines have it."""
        found = [o for o in self.options if o.name in names and o.values]
        return found[-1].values[0] if found else None

    def has(self, name: str) -> bool:
        return any(o.name == name for o in self.options)

    def number(self, *names: str) -> int | None:
        text = self.value(*names)
        if text is not None and not (text.isascii() and text.isdigit()):
            raise InvalidInput(f"{names[0]} is {text!r}, not a whole number")
        return None if text is None else int(text)


def profile_from_command(
    command: str,
    name: str,
    *,
    engine_version: str,
    hardware_class: str,
    concurrencies: tuple[int, ...],
) -> ServingProfile:
    """The profile of a command such as `vllm serve MODEL -tp 8`.

    Raises `InvalidInput` for a command that cannot be read, or that names a file of settings.
    """
    read = _read(command)
    speculative = _speculative(read)
    kept = [o for o in read.options if not _left_out(o.name)]
    return ServingProfile(
        name=name,
        engine=read.engine,
        engine_version=engine_version,
        hardware_class=hardware_class,
        concurrencies=concurrencies,
        arguments=tuple(word for option in kept for word in option.words),
        tensor_parallel_size=read.number("--tensor-parallel-size") or 1,
        pipeline_parallel_size=read.number("--pipeline-parallel-size") or 1,
        quantization=read.value("--quantization"),
        kv_cache_dtype=read.value(*_KV_DTYPE) or "auto",
        prefix_caching=_prefix_caching(read, engine_version),
        max_model_len=read.number(*_LENGTH) or None,
        max_num_seqs=read.number(*_SEQUENCES) or None,
        speculative_config=speculative,
        environment=read.environment,
    )


def profile_from_file(path: Path, name: str) -> ServingProfile:
    """A TOML file whose keys are the fields of a serving profile, except the name."""
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFound(f"there is no profile file {path}") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    return _checked(str(path), {**given, "name": name})


def _read(command: str) -> _Command:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInput(f"the command cannot be read: {error}") from error
    environment = []
    while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
        setting = words.pop(0)
        if not _SECRET.search(setting.partition("=")[0]):
            environment.append(setting)
    if not words:
        raise InvalidInput("the serving command is empty")
    engine, rest = _engine(words)
    aliases = _ALIASES.get(engine, {})
    options = []
    for option in _options(rest):
        spelled, dot, part = option.name.partition(".")
        if engine == "vllm":  # its parser takes both
            spelled = spelled.replace("_", "-")
        name = f"{aliases.get(spelled, spelled)}{dot}{part}"
        options.append(_Option(name=name, values=option.values))
    read = _Command(
        engine=engine,
        environment=tuple(sorted(environment)),
        options=tuple(sorted(options, key=lambda o: o.name)),
    )
    if read.has("--config"):
        raise InvalidInput(
            f"the command reads settings from {read.value('--config')!r}, whose content would not "
            "be part of the profile",
            hint="write its settings out as options",
        )
    return read


def _engine(words: list[str]) -> tuple[str, list[str]]:
    """The engine's name and the words after the part that starts it, without the model."""
    head, rest = Path(words[0]).name, words[1:]
    if head.startswith("python") and rest[:1] == ["-m"] and len(rest) > 1:
        return rest[1].partition(".")[0], rest[2:]
    names = {"llama-server": "llamacpp", "trtllm-serve": "trtllm"}
    if rest[:1] == ["serve"]:
        rest = rest[1:]
    if rest and not rest[0].startswith("-"):
        rest = rest[1:]  # the model
    return names.get(head, head), rest


def _options(words: list[str]) -> Iterator[_Option]:
    """`--name value …` and `--name=value`; a word that belongs to no option is refused."""
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        if not _is_option(words[at]):
            raise InvalidInput(
                f"{words[at]!r} belongs to no option of the serving command",
                hint="write the model right after `serve`, and options as --name VALUE",
            )
        at += 1
        values = [value] if equals else []
        while not equals and at < len(words) and not _is_option(words[at]):
            values.append(words[at])
            at += 1
        yield _Option(name=name, values=tuple(values))


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-")[:1].isdigit() and word != "-"


def _left_out(name: str) -> bool:
    return name in (*_MODEL, *_ELSEWHERE, _SPECULATIVE) or _is_speculative(name)


def _is_speculative(name: str) -> bool:
    return name.startswith(("--speculative", "--draft", "--model-draft", "--spec-"))


def _speculative(read: _Command) -> str | None:
    """vLLM's JSON as it stands; its dotted options, or another engine's own, as JSON."""
    text = read.value(_SPECULATIVE)
    if text is not None:
        return text
    said = {o.name: list(o.values) for o in read.options if _is_speculative(o.name)}
    values: dict[str, Any] = {
        name.removeprefix(f"{_SPECULATIVE}.").lstrip("-"): (
            _value(words[0]) if len(words) == 1 else (words or True)
        )
        for name, words in said.items()
    }
    return json.dumps(values, sort_keys=True) if values else None


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def _prefix_caching(read: _Command, engine_version: str) -> bool:
    """What the command says, else the engine's default."""
    if read.engine == "sglang":
        return not read.has("--disable-radix-cache")
    if read.engine != "vllm":
        return False
    if read.has("--no-enable-prefix-caching"):
        return False
    if read.has("--enable-prefix-caching"):
        return read.value("--enable-prefix-caching") not in ("false", "False")
    parts = major_minor(engine_version).split(".")
    # On by default since vLLM's V1 engine, the default one from 0.8 on.
    return len(parts) == 2 and tuple(map(int, parts)) >= (0, 8)


def _checked(where: str, given: dict[str, Any]) -> ServingProfile:
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
