"""From a version and a profile to what serving takes: the command of each engine, four formats.

serve      the parts of a serving command, whatever the engine
engines    version + profile -> `Serve` for vLLM, SGLang, llama.cpp and TensorRT-LLM
formats    `Serve` -> shell text, an env file, JSON, Helm values
"""

from __future__ import annotations

from pairgate.render.engines import serve_command
from pairgate.render.formats import FORMATS, formatted
from pairgate.render.serve import Places, Serve

__all__ = ["FORMATS", "Places", "Serve", "formatted", "serve_command"]
