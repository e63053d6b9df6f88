"""A serving command as text: for a shell, an env file, a machine, a Helm chart.

Every text can be read by the program that it is for and by nobody else: shell text is quoted, YAML
scalars are written as JSON, which YAML contains.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from pairgate.errors import InvalidInput
from pairgate.render.serve import Serve, served_digest

FORMATS = ("args", "env", "json", "helm-values")


def formatted(serve: Serve, form: str) -> str:
    """The command in one of `FORMATS`, ending with a new line. Raises `InvalidInput`."""
    if form == "args":
        return _shell(serve)
    if form == "env":
        return _env(serve)
    if form == "json":
        return json.dumps(_document(serve), indent=2, ensure_ascii=False) + "\n"
    return "".join(f"{line}\n" for line in _helm(serve))


def _shell(serve: Serve) -> str:
    """The whole command, settings in front; files that it reads are written first."""
    parts = []
    for file in serve.files:
        parts.append(f"cat > {shlex.quote(file.name)} <<'END'\n{file.text}END\n")
    first = shlex.join([*serve.launch, *serve.model])
    settings = " ".join(_setting(s) for s in serve.environment)
    lines = [f"{settings} {first}" if settings else first, *map(shlex.join, serve.options)]
    return "".join(parts) + " \\\n  ".join(lines) + "\n"


def _env(serve: Serve) -> str:
    """For a unit file or `docker run --env-file`, whose values cannot hold a line end."""
    values = dict(s.partition("=")[::2] for s in serve.environment)
    values |= {
        "PAIRGATE_VERSION": serve.label,
        "PAIRGATE_PAIR_DIGEST": serve.pair_digest,
        "PAIRGATE_PROFILE": serve.profile,
        "PAIRGATE_SERVE_COMMAND": shlex.join(serve.launch),
        "PAIRGATE_SERVE_ARGS": shlex.join(serve.arguments),
    }
    if serve.files or any("\n" in v for v in values.values()):
        raise InvalidInput(
            "an env file cannot hold the files or line ends that this command needs",
            hint="use --format args or json",
        )
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _document(serve: Serve) -> dict[str, object]:
    return {
        "version": serve.label,
        "pair_digest": serve.pair_digest,
        "profile": serve.profile,
        "engine": serve.engine,
        "engine_version": serve.engine_version,
        "command": serve.launch,
        "args": serve.arguments,
        "env": dict(s.partition("=")[::2] for s in serve.environment),
        "files": {f.name: f.text for f in serve.files},
        "notes": serve.notes,
    }


def _helm(serve: Serve) -> Iterator[str]:
    """vLLM: values of the production-stack chart (servingEngineSpec.modelSpec). Others: the keys
    of a container, which most charts pass on."""
    yield f"# {serve.label} on {serve.profile}: {serve.pair_digest}"
    line = serve.label.partition("@")[0]
    if serve.engine == "vllm":
        yield from ("servingEngineSpec:", "  modelSpec:")
        yield f"    - name: {_scalar(line.replace('.', '-').replace('_', '-'))}"
        yield '      repository: "vllm/vllm-openai"'
        yield f"      tag: {_scalar('v' + serve.engine_version)}"
        yield f"      modelURL: {_scalar(serve.model[0])}"
        yield "      podAnnotations:"
        yield f"        pairgate/version: {_scalar(serve.label)}"
        yield f"        pairgate/pair: {_scalar(served_digest(serve.pair_digest))}"
        yield from _sequence("vllmConfig", None, "      ")
        yield from _sequence("extraArgs", [w for o in serve.options for w in o], "        ")
        yield from _settings(serve, "      ")
        return
    if serve.files:
        raise InvalidInput(
            "the command reads a file, which these values cannot hold",
            hint="use --format json and mount its `files`",
        )
    yield from _sequence("command", list(serve.launch), "")
    yield from _sequence("args", list(serve.arguments), "")
    yield from _settings(serve, "")


def _sequence(key: str, values: list[str] | None, indent: str) -> Iterator[str]:
    yield f"{indent}{key}:"
    for value in values or ():
        yield f"{indent}  - {_scalar(value)}"


def _settings(serve: Serve, indent: str) -> Iterator[str]:
    if serve.environment:
        yield f"{indent}env:"
    for setting in serve.environment:
        name, _, value = setting.partition("=")
        yield f"{indent}  - name: {_scalar(name)}"
        yield f"{indent}    value: {_scalar(value)}"


def _scalar(text: str) -> str:
    return json.dumps(text)


def _setting(text: str) -> str:
    name, _, value = text.partition("=")
    return f"{name}={shlex.quote(value)}"
