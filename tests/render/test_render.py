"""`render`: the words that serving takes, for every engine and format."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from pairgate.app.workspace import Workspace
from pairgate.domain.pair import VersionRef
from pairgate.domain.records import Reference
from pairgate.render.serve import pair_named_by

Run = Callable[..., Result]
MODELS = Path(__file__).resolve().parents[2] / "pipelines" / "demo_pair" / "models"
COMMANDS = {
    "vllm": "VLLM_CPU_KVCACHE_SPACE=2 vllm serve m -tp 1 --max-num-seqs 8 --enforce-eager "
    "--max-model-len 448 --reasoning-parser 'a b'",
    "sglang": "python -m sglang.launch_server --model-path m --tp 2 --mem-fraction-static 0.8",
    "llamacpp": "llama-server -m m.gguf -np 4 -c 1792",
    "trtllm": "trtllm-serve m --tp_size 2 --max_batch_size 8",
}


@pytest.fixture
def served(line: Run) -> Run:
    for engine, command in COMMANDS.items():
        where = ("--engine-version", "0.32.0", "--hardware-class", "h100x1", "--concurrency", "1,8")
        line("profile", "set", "line", engine, "--from-command", command, *where)
    return line


def document(run: Run, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("render", "line@1", "--format", "json", *words).stdout)
    return found


def after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_vllm_gets_the_pair_and_the_profile(served: Run) -> None:
    found = document(served, "--engine", "vllm", "--models-dir", "/srv/it's here")
    words = found["args"]
    assert found["command"] == ["vllm", "serve"] and words[0] == "/srv/it's here/target"
    at = words.index("--served-model-name")
    name = words[at + 2]
    assert words[at + 1] == "line" and pair_named_by(name) == found["pair_digest"]
    assert json.loads(after(words, "--speculative-config")) == {
        "method": "draft_model",
        "model": "/srv/it's here/draft",
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
    }
    assert after(words, "--max-model-len") == "448" and words.count("--max-num-seqs") == 1
    assert found["env"] == {"VLLM_CPU_KVCACHE_SPACE": "2"}


def test_the_shell_text_is_the_same_words(served: Run) -> None:
    where = ("--engine", "vllm", "--models-dir", "/srv/it's here")
    found = document(served, *where)
    text = served("render", "line@1", *where).stdout
    words = shlex.split(text.replace("\\\n", " "))
    assert words == ["VLLM_CPU_KVCACHE_SPACE=2", *found["command"], *found["args"]]
    env = served("render", "line@1", "--format", "env", *where).stdout
    values = dict(row.partition("=")[::2] for row in env.splitlines())
    assert shlex.split(values["PAIRGATE_SERVE_ARGS"]) == found["args"]


def test_helm_values_hold_the_same_words(served: Run) -> None:
    where = ("--engine", "vllm", "--models-dir", "/models")
    values = yaml.safe_load(served("render", "line@1", "--format", "helm-values", *where).stdout)
    (spec,) = values["servingEngineSpec"]["modelSpec"]
    assert [spec["modelURL"], *spec["vllmConfig"]["extraArgs"]] == document(served, *where)["args"]
    assert (spec["name"], spec["tag"]) == ("line", "v0.32.0")
    assert spec["env"] == [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "2"}]
    where = ("--engine", "sglang", "--models-dir", "/models")
    values = yaml.safe_load(served("render", "line@1", "--format", "helm-values", *where).stdout)
    assert values["args"] == document(served, *where)["args"]


def test_the_other_engines_use_their_own_words(served: Run) -> None:
    sglang = document(served, "--engine", "sglang", "--models-dir", "/m")["args"]
    assert after(sglang, "--speculative-algorithm") == "STANDALONE"
    assert after(sglang, "--speculative-num-steps") == "4"
    assert after(sglang, "--speculative-num-draft-tokens") == "5"
    assert after(sglang, "--weight-version").startswith("sha256-")
    assert after(sglang, "--tensor-parallel-size") == "2"
    llama = document(served, "--engine", "llamacpp", "--models-dir", "/m")
    assert after(llama["args"], "--model-draft") == "/m/draft.gguf"
    assert after(llama["args"], "--draft-max") == "4" and "GGUF" in llama["notes"][0]
    trt = document(served, "--engine", "trtllm", "--models-dir", "/m")
    file = yaml.safe_load(trt["files"][after(trt["args"], "--extra_llm_api_options")])
    assert file["speculative_config"] == {
        "decoding_type": "DraftTarget",
        "max_draft_len": 4,
        "speculative_model_dir": "/m/draft",
    }
    assert after(trt["args"], "--tp_size") == "2" and "--tensor-parallel-size" not in trt["args"]


def test_a_pulled_folder_is_named_by_its_version(served: Run, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    served("pull", "line@1", "--to", str(folder))
    found = document(served, "--engine", "vllm", "--models-dir", str(folder))
    assert Path(found["args"][0]) == folder.resolve() / "target"
    assert Path(found["args"][0], "config.json").is_file()


def test_what_cannot_be_rendered_says_why(served: Run, tmp_path: Path) -> None:
    stored = served("render", "line@1", "--engine", "vllm", code=2).exception
    assert "--models-dir" in str(stored)
    own = served("render", "line@1", "--models-dir", "/m", code=2).exception
    assert "native" in str(own) and "vllm" in str(own)
    folder = tmp_path / "other"
    served("register", "line", "--target", str(MODELS / "target-base"), "--method", "none")
    served("pull", "line@2", "--to", str(folder))
    words = ("--engine", "vllm", "--models-dir", str(folder))
    assert "another pair" in str(served("render", "line@1", *words, code=15).exception)


def test_a_version_without_a_draft_has_no_speculative_config(served: Run) -> None:
    served("register", "line", "--target", str(MODELS / "target-base"), "--method", "none")
    words = ("--engine", "vllm", "--models-dir", "/m", "--format", "json")
    assert "--speculative-config" not in served("render", "line@2", *words).stdout


def test_referenced_weights_are_streamed_from_where_they_are(served: Run, own_home: Path) -> None:
    ws = Workspace.open(home=str(own_home))
    pair = ws.registry.pair(ws.registry.version(VersionRef.parse("line@1")).pair_digest)
    roots = {"target": "hf://acme/model@abc123", "draft": "s3://bucket/draft"}
    ws.registry.save_references(
        [
            Reference(
                digest=f.sha256, uri=f"{roots[m.role]}/{f.path}", size=f.size,
                version_id="1", hashed_by="read once", recorded_at="2026-01-01T00:00:00Z",
            )
            for m in pair.models
            for f in m.files
            if f.path.endswith(".safetensors")
        ]
    )  # fmt: skip
    ws.close()
    words = document(served, "--engine", "vllm")["args"]
    assert words[0] == "acme/model" and after(words, "--revision") == "abc123"
    assert json.loads(after(words, "--speculative-config"))["model"] == "s3://bucket/draft"
