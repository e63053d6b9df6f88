"""The native engine on real folders: safetensors, tokenizer, memory, and a whole replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import build

from pairgate.domain.evidence import MemoryUse
from pairgate.domain.pair import Architecture, DecodingConfig, FileEntry, Method, ModelRef, Pair
from pairgate.domain.recorded import ReplayPlan
from pairgate.domain.trace import Arm, Finish, TraceBatch
from pairgate.domain.traffic import Request, Sampling, TrafficSlice
from pairgate.engines.hardware import cpu_hardware_class
from pairgate.engines.native import NativeEngine
from pairgate.errors import InvalidInput, Refused, Unavailable
from pairgate.ports import EngineLimits, GenerateOptions, MaterialisedPair
from pairgate.replay import replay

LIMITS = EngineLimits(max_model_len=64, max_concurrency=4, seed=1)


def save_tokenizer(folder: Path, *, template: str | None = None) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:94]
    vocab = {c: i for i, c in enumerate(["<eos>", "<unk>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")
    fast.chat_template = template
    fast.save_pretrained(folder)


def make_pair(root: Path, **decoding: Any) -> MaterialisedPair:
    architecture = Architecture(
        model_type="llama", class_name="LlamaForCausalLM", n_parameters=1, vocab_size=96,
        max_position_embeddings=128, hidden_size=32, n_layers=2, n_heads=4, n_kv_heads=2,
        head_dim=8, dtype="float32",
    )  # fmt: skip
    files = (FileEntry(path="config.json", size=1, sha256="sha256:" + "0" * 64),)
    target = ModelRef(role="target", files=files, architecture=architecture)
    config = {"method": Method.DRAFT_MODEL, "num_speculative_tokens": 3} | decoding
    pair = Pair(
        target=target,
        draft=replace(target, role="draft"),
        decoding=DecodingConfig(**config),
    )
    return MaterialisedPair(pair=pair, target_dir=root / "target", draft_dir=root / "draft")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pair")
    build(seed=1, eos_token_id=0).save_pretrained(root / "target")
    build(seed=2, eos_token_id=0).save_pretrained(root / "draft")
    save_tokenizer(root / "target")
    return root


@pytest.fixture
def engine(folders: Path) -> Iterator[NativeEngine]:
    engine = NativeEngine("cpu")
    engine.start(make_pair(folders), LIMITS)
    yield engine
    engine.close()


def text_request(i: int, text: str | None, **fields: Any) -> Request:
    given = {"max_tokens": 10, "sampling": Sampling(temperature=0.0, seed=i), "text": text}
    return Request(id=f"t{i}", domain="tests", body="{}", **(given | fields))


def test_text_tokens_and_chat(engine: NativeEngine, folders: Path, tmp_path: Path) -> None:
    chat = '[{"role": "user", "content": "ab"}]'
    requests = [
        text_request(0, "abc"),
        text_request(1, None, token_ids=(5, 6, 7)),
        text_request(2, None, messages=chat),
        text_request(3, ""),
    ]
    assert engine.prompt_tokens(requests[0]) == 3
    options = GenerateOptions(with_draft=True, concurrency=2, seed=3)
    traces = sorted(engine.generate(enumerate(requests), options), key=lambda t: t.index)
    assert [t.ok for t in traces] == [True, True, False, False]
    assert "no chat template" in traces[2].error
    assert "no tokens" in traces[3].error

    (tmp_path / "target").mkdir()
    for file in (folders / "target").iterdir():
        (tmp_path / "target" / file.name).symlink_to(file)
    template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    (tmp_path / "target" / "chat_template.jinja").write_text(template, encoding="utf-8")
    other = replace(make_pair(folders), target_dir=tmp_path / "target")
    engine.start(other, LIMITS)
    assert engine.prompt_tokens(requests[2]) == 3


def test_describe_and_limits(engine: NativeEngine, folders: Path) -> None:
    info = engine.describe()
    assert (info.name, info.dtype, info.definition) == ("native", "float32", "pairgate.rounds.v1")
    assert info.hardware_class == cpu_hardware_class()
    assert {"torch", "transformers"} <= {name for name, _ in info.packages}
    with pytest.raises(InvalidInput, match="exceeds the target's 128 positions"):
        engine.start(make_pair(folders), replace(LIMITS, max_model_len=129))
    engine.close()
    with pytest.raises(Unavailable):
        engine.describe()


def test_what_cannot_run_is_refused(folders: Path, tmp_path: Path) -> None:
    engine = NativeEngine("cpu")
    pair = make_pair(folders)
    ngram = replace(
        pair.pair,
        draft=None,
        decoding=DecodingConfig(method=Method.NGRAM, num_speculative_tokens=3),
    )
    with pytest.raises(Refused, match="ngram"):
        engine.start(MaterialisedPair(pair=ngram, target_dir=folders, draft_dir=None), LIMITS)
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}', encoding="utf-8")
    with pytest.raises(Refused, match="cannot load the target"):
        engine.start(replace(pair, target_dir=tmp_path), LIMITS)


def test_stress_reaches_the_worst_case(engine: NativeEngine) -> None:
    for with_draft in (False, True):
        use = engine.stress(3, with_draft=with_draft)
        assert isinstance(use, MemoryUse)
        assert use.worst_case_reached
        assert use.kv_target_bytes >= 3 * 64 * 2 * 2 * 2 * 8 * 4
        assert (use.kv_draft_bytes > 0) == (use.weights_draft_bytes > 0) == with_draft
        assert use.peak_bytes > use.weights_target_bytes + use.kv_target_bytes
        assert use.budget_bytes > 0 and use.predicted_bytes > 0


def test_bfloat16_is_a_decoding_setting(folders: Path) -> None:
    engine = NativeEngine("cpu")
    engine.start(make_pair(folders, compute_dtype="bfloat16"), LIMITS)
    assert engine.describe().dtype == "bfloat16"
    traces = list(
        engine.generate(
            [(0, text_request(0, "abc"))], GenerateOptions(with_draft=True, concurrency=1, seed=0)
        )
    )
    assert traces[0].ok
    engine.close()


class Sink:
    def __init__(self) -> None:
        self.blocks: dict[str, TraceBatch] = {}

    def load(self, key: str) -> TraceBatch | None:
        return self.blocks.get(key)

    def save(self, key: str, batch: TraceBatch) -> None:
        self.blocks[key] = batch


def test_a_whole_replay(folders: Path) -> None:
    requests = tuple(
        text_request(
            i,
            "abcdefgh"[: 1 + i % 8],
            max_tokens=6 + i % 5,
            sampling=Sampling(temperature=0.0 if i % 2 else 1.0),
            stop=("zz",) if i % 3 == 0 else (),
        )
        for i in range(12)
    )
    plan = ReplayPlan(
        seed=1, acceptance_concurrency=4, speed_concurrencies=(1, 4), acceptance_block=8,
        min_blocks=2, max_blocks=2, requests_per_block=4,
    )  # fmt: skip
    recorded = replay(
        NativeEngine("cpu"),
        make_pair(folders),
        TrafficSlice(name="s", requests=requests),
        plan,
        Sink(),
    )
    assert recorded.max_model_len == 8 + 10 + 3 + 1
    assert all(b.ok for b in recorded.boundary), [b for b in recorded.boundary if not b.ok]
    assert len(recorded.acceptance) == 12 and recorded.acceptance.ok.all()
    assert len(recorded.speed) == 2 * 2 * 2
    greedy = {}
    for batch in (recorded.acceptance, *recorded.speed, *recorded.control):
        for trace in batch.rows():
            assert trace.finish in (Finish.LENGTH, Finish.EOS, Finish.STOP)
            if trace.temperature == 0:
                tokens = greedy.setdefault(trace.index, trace.tokens)
                np.testing.assert_array_equal(tokens, trace.tokens)  # both arms, every batch size
    assert {m.arm for m in recorded.memory} == {Arm.SPEC, Arm.TARGET}
    assert recorded.notes == ()
