"""Which engine can run which method, so that nobody waits for an evaluation to find out.

Sources: vllm/config/speculative.py (vLLM 0.11 on), SGLang's and TensorRT-LLM's pages on
speculative decoding, llama.cpp's docs/speculative.md.
"""

from __future__ import annotations

from pairgate.domain.pair import Method
from pairgate.errors import Refused

_ALL = frozenset(Method)
RUNS: dict[str, frozenset[Method]] = {
    "native": frozenset({Method.DRAFT_MODEL, Method.NONE}),
    "vllm": _ALL,
    "sglang": _ALL,
    "trtllm": _ALL - {Method.DFLASH},
    "llamacpp": frozenset({Method.DRAFT_MODEL, Method.EAGLE3, Method.NGRAM, Method.NONE}),
}


def engines_for(method: Method) -> tuple[str, ...]:
    """The serving engines that run this method."""
    return tuple(name for name, methods in RUNS.items() if name != "native" and method in methods)


def require_engine(engine: str, method: Method, *, line: str, label: str) -> None:
    """Raises `Refused` when `engine` is known not to run the method, naming those that do."""
    if method in RUNS.get(engine, _ALL):
        return
    able = engines_for(method)
    raise Refused(
        f"{label} uses the method {method}, which the {engine} engine does not run; "
        f"{', '.join(able)} can",
        hint="evaluate it on a profile of one of them: pairgate profile set "
        f"{line} NAME --from-command '{_COMMANDS[able[0]]} …', then evaluate with --profile NAME",
    )


_COMMANDS = {
    "vllm": "vllm serve MODEL",
    "sglang": "python -m sglang.launch_server",
    "trtllm": "trtllm-serve MODEL",
    "llamacpp": "llama-server",
}
