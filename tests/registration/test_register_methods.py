"""Every method from its files to a version, on checkpoints with public names and keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pairgate.app import lines, release
from pairgate.app.evaluate import evaluate
from pairgate.app.register import register
from pairgate.app.workspace import Workspace
from pairgate.cli import cli
from pairgate.domain.canonical import sha256_digest
from pairgate.domain.pair import Method, VersionRef
from pairgate.domain.profile import ServingProfile
from pairgate.domain.release import Actor
from pairgate.errors import InvalidInput, PairgateError, Refused
from tests.compat import checkpoints as c

ALICE = Actor(name="alice", source="os-user")
NATIVE = ServingProfile(
    name="native-cpu",
    engine="native",
    engine_version="0.1.0",
    hardware_class="x86_64",
    concurrencies=(1,),
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRGATE_DELIVERY", "off")
    monkeypatch.setenv("PAIRGATE_MLFLOW", "off")


@pytest.fixture
def target(tmp_path: Path, tokenizer_json: str) -> Path:
    return c.write_model(tmp_path / "target", c.TARGET, c.trunk(), tokenizer_json)


def run(ws: Workspace, *arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["--home", str(ws.home), *arguments])
    if isinstance(result.exception, PairgateError):
        result.exit_code = result.exception.exit_code
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_speculators_checkpoint_fills_in_target_method_and_length(
    ws: Workspace, tmp_path: Path, target: Path
) -> None:
    config = c.eagle3_speculator(str(target))
    head = c.write_model(tmp_path / "head", config, c.eagle3_tensors())
    done = run(ws, "register", "chat", "--draft", str(head), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["decoding"]["method"], found["decoding"]["num_speculative_tokens"]) == (
        "eagle3",
        5,
    )
    assert not [w for w in found["warnings"] if "trained for" in w]
    pair = ws.registry.pair(found["pair_digest"])
    assert {f.path for f in pair.target.files} >= {"config.json", "tokenizer.json"}
    assert pair.draft is not None and pair.draft.tokenizer_digest is None


def test_without_a_target_the_draft_must_name_one(ws: Workspace, tmp_path: Path) -> None:
    head = c.write_model(tmp_path / "head", c.DFLASH, c.dflash_tensors())
    with pytest.raises(InvalidInput, match="does not name its target"):
        register(ws, "chat", draft=str(head))
    assert run(ws, "register", "chat").exit_code == 2


def test_a_dflash_head_proposes_its_block(ws: Workspace, tmp_path: Path, target: Path) -> None:
    head = c.write_model(tmp_path / "head", c.DFLASH, c.dflash_tensors())
    done = register(ws, "chat", target=str(target), draft=str(head))
    assert done.pair.decoding.method is Method.DFLASH
    assert done.pair.decoding.num_speculative_tokens == 7
    with pytest.raises(InvalidInput, match="a head of the method dflash by its own config"):
        register(ws, "chat", target=str(target), draft=str(head), method=Method.EAGLE3)


def test_a_head_with_a_tokenizer_of_another_model_is_flagged(
    ws: Workspace, tmp_path: Path, target: Path, tokenizer_json: str
) -> None:
    spec = json.loads(tokenizer_json)
    vocab = spec["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    for text, n_flags in ((tokenizer_json, 0), (json.dumps(spec), 1)):
        head = c.write_model(tmp_path / "head", c.DFLASH, c.dflash_tensors(), text)
        done = register(ws, "chat", target=str(target), draft=str(head))
        assert len([w for w in done.warnings if "another tokenizer" in w]) == n_flags


def mtp_target(folder: Path, tokenizer_json: str, *, trunk: int, head: int) -> str:
    tensors = c.trunk(seed=trunk) | c.deepseek_mtp(seed=head)
    return str(c.write_model(folder, c.DEEPSEEK, tensors, tokenizer_json))


def test_an_mtp_head_that_was_not_trained_with_its_target_is_stale(
    ws: Workspace, tmp_path: Path, tokenizer_json: str
) -> None:
    def stale(name: str, *, trunk: int, head: int, k: int = 1) -> list[str]:
        source = mtp_target(tmp_path / name, tokenizer_json, trunk=trunk, head=head)
        done = register(ws, "chat", target=source, method=Method.MTP, k=k)
        assert done.pair.draft is None
        return [w for w in done.warnings if w.startswith("stale head")]

    assert stale("base", trunk=0, head=90) == []
    assert stale("again", trunk=0, head=90, k=2) == []  # another K is no other target
    (said,) = stale("tuned", trunk=7, head=90)
    assert "byte for byte those of chat@2" in said
    assert stale("trained", trunk=8, head=91) == []


@pytest.mark.parametrize("method", ["ngram", "none"])
def test_methods_without_files_store_the_target_alone(
    ws: Workspace, target: Path, method: str
) -> None:
    done = run(ws, "register", "chat", "--target", str(target), "--method", method, "--json")
    pair = ws.registry.pair(json.loads(done.stdout)["pair_digest"])
    assert [m.role for m in pair.models] == ["target"]
    assert pair.decoding.num_speculative_tokens == (4 if method == "ngram" else 0)


def test_the_speculative_config_is_kept_as_it_was_written(
    ws: Workspace, tmp_path: Path, target: Path
) -> None:
    text = '{ "method" : "ngram",\n "num_speculative_tokens": 3, "prompt_lookup_max": 5 }\n'
    (tmp_path / "spec.json").write_text(text)
    said = f"@{tmp_path / 'spec.json'}"
    done = run(ws, "register", "chat", "--target", str(target), "--speculative-config", said)
    assert "method    ngram, K = 3" in done.stdout
    version = ws.registry.version(VersionRef.parse("chat@1"))
    assert ws.registry.pair(version.pair_digest).decoding.speculative_config == text


def test_kv_dtypes_come_from_the_option_or_the_serving_command(ws: Workspace, target: Path) -> None:
    served = ServingProfile(
        name="h100",
        engine="vllm",
        engine_version="0.14.0",
        hardware_class="h100x8",
        concurrencies=(1,),
        kv_cache_dtype="fp8",
    )
    lines.set_line(ws, "chat", profile=lines.save_profile(ws, "chat", served), actor=ALICE)
    given = ("register", "chat", "--target", str(target), "--method", "ngram")
    assert "KV cache fp8 / auto" in run(ws, *given).stdout
    said = run(ws, *given, "--kv-dtype-target", "bfloat16", "--kv-dtype-draft", "fp8")
    assert "KV cache bfloat16 / fp8" in said.stdout
    assert len(ws.registry.versions("chat")) == 2


def set_up(ws: Workspace) -> None:
    digest = sha256_digest(b"slice")
    ws.registry.save_slice("held-out", digest, 400, {"chat": 400}, digest, lines.now())
    profile = lines.save_profile(ws, "chat", NATIVE)
    lines.set_line(ws, "chat", policy="default", slice_name="held-out", profile=profile)


def test_the_native_engine_refuses_before_anything_is_replayed(
    ws: Workspace, tmp_path: Path, tokenizer_json: str
) -> None:
    set_up(ws)
    source = mtp_target(tmp_path / "t", tokenizer_json, trunk=0, head=90)
    register(ws, "chat", target=source, method=Method.MTP)
    refused = run(ws, "evaluate", "chat@1")
    assert refused.exit_code == 15
    assert "method mtp, which the native engine does not run; vllm, sglang, trtllm can" in str(
        refused.exception
    )
    assert not ws.evaluations_dir.exists()
    with pytest.raises(Refused):
        evaluate(ws, VersionRef.parse("chat@1"))


def test_disable_leaves_a_head_out_and_enable_brings_it_back(
    ws: Workspace, tmp_path: Path, target: Path, tokenizer_json: str
) -> None:
    set_up(ws)
    mtp = mtp_target(tmp_path / "mtp", tokenizer_json, trunk=0, head=90)
    head = c.write_model(tmp_path / "h", c.eagle3_speculator("a/b"), c.eagle3_tensors())
    for number, version in enumerate(
        (
            register(ws, "chat", target=mtp, method=Method.MTP).version,
            register(ws, "chat", target=str(target), draft=str(head)).version,
            register(ws, "chat", target=str(target), method=Method.NGRAM).version,
        )
    ):
        ref = VersionRef.parse(str(version))
        release.promote(ws, ref, override="no such engine here", actor=ALICE)
        off = release.disable(ws, "chat", "slow", actor=ALICE)
        alone = ws.registry.version(VersionRef.parse("chat@production"))
        assert (alone.method, alone.target_digest) == (Method.NONE, version.target_digest)
        assert off.head.disabled == version.number
        assert release.enable(ws, "chat", actor=ALICE).head.production == version.number
        # eagle3 and ngram share their target, so they share its version without a draft.
        assert len(ws.registry.versions("chat")) == 3 + min(number + 1, 2)
