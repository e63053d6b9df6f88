"""`diff`: what changed between two versions, of one line or of two."""

from __future__ import annotations

import json
from pathlib import Path

from pairgate.app.diff import VersionDiff, diff
from pairgate.app.register import register
from pairgate.app.workspace import Workspace, now
from pairgate.domain.pair import VersionRef
from tests.registration.test_register_methods import run


def between(ws: Workspace, before: str, after: str) -> VersionDiff:
    return diff(ws, VersionRef.parse(before), VersionRef.parse(after))


def test_everything_that_changed_is_said(ws: Workspace, make_model, tokenizer_json) -> None:
    target, first, second = make_model("t"), make_model("d", seed=1), make_model("e", seed=2)
    for folder, template in ((first, "{{ a }}\n{{ b }}\n"), (second, "{{ a }}\n{{ c }}\nx\n")):
        (folder / "chat_template.jinja").write_text(template)
    spec = json.loads(tokenizer_json)
    spec["added_tokens"] += [
        {"id": 300 + i, "content": f"<|{i}|>", "special": True, "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False}
        for i in range(2)
    ]  # fmt: skip
    (second / "tokenizer.json").write_text(json.dumps(spec))
    config = json.loads((second / "config.json").read_text())
    config |= {"max_position_embeddings": 32, "rope_parameters": {"rope_theta": 5e5}}
    (second / "config.json").write_text(json.dumps(config))
    (second / "NOTICE").write_text("trained on more")
    register(ws, "chat", target=str(target), draft=str(first), k=3)
    register(ws, "chat", target=str(target), draft=str(second), k=5)
    found = between(ws, "chat@1", "chat@2")
    assert {(f.path, f.kind) for f in found.files} == {
        ("NOTICE", "added"),
        ("chat_template.jinja", "changed"),
        ("config.json", "changed"),
        ("model.safetensors", "changed"),
        ("tokenizer.json", "changed"),
    }
    assert {f.role for f in found.files} == {"draft"}
    assert [(d.part, d.before, d.after) for d in found.models] == [
        ("draft.max_position_embeddings", "64", "32")
    ]
    assert [(d.part, d.before, d.after) for d in found.configs] == [
        ("draft/config.json: max_position_embeddings", "64", "32"),
        ("draft/config.json: rope_parameters.rope_theta", "absent", "500000.0"),
    ]
    parts = {d.part: (d.before, d.after) for d in found.tokenizers}
    assert "draft tokenizer: 2 ids differ" in parts
    assert parts["draft tokenizer: id 300"] == ("no such id", "'<|0|>'")
    assert parts["draft tokenizer: added tokens"] == ("1", "3")
    assert parts["draft chat template: 2 lines differ, first at 2"] == ("{{ b }}", "{{ c }}")
    assert [(d.part, d.before, d.after) for d in found.decoding] == [
        ("decoding.num_speculative_tokens", "3", "5")
    ]
    assert "has not been evaluated" in found.evidence_note
    assert not found.same_pair


def test_the_same_pair_on_two_lines(ws: Workspace, make_model) -> None:
    ws.registry.create_line("code", now())
    target = str(make_model("t"))
    register(ws, "chat", target=target)
    register(ws, "code", target=target)
    found = between(ws, "chat@1", "code@1")
    assert found.same_pair
    assert "chat@1 and code@1 are the same pair" in run(ws, "diff", "chat@1", "code@1").stdout


def test_a_draft_that_came_or_went(ws: Workspace, make_model) -> None:
    target, draft = str(make_model("t")), str(make_model("d", seed=1))
    register(ws, "chat", target=target)
    register(ws, "chat", target=target, draft=draft)
    found = json.loads(run(ws, "diff", "chat@1", "chat@2", "--json").stdout)
    assert {(f["role"], f["kind"]) for f in found["files"]} == {("draft", "added")}
    assert {d["part"]: d["after"] for d in found["decoding"]} == {
        "decoding.method": "draft_model",
        "decoding.num_speculative_tokens": "4",
    }
    shown = run(ws, "diff", "chat@2", "chat@1").stdout
    assert {tuple(line.split()[:2]) for line in shown.splitlines()} >= {
        ("draft/model.safetensors", "removed"),
        ("decoding.method", "draft_model"),
    }


def test_a_file_that_is_gone_is_said_and_the_rest_is_shown(
    ws: Workspace, make_model, tmp_path: Path
) -> None:
    first, second = make_model("t"), make_model("u", hidden_act="gelu")
    register(ws, "chat", target=str(first))
    done = register(ws, "chat", target=str(second))
    entry = next(f for f in done.pair.target.files if f.path == "config.json")
    ws.blobs.path(entry.sha256).unlink()
    found = between(ws, "chat@1", "chat@2")
    assert [f.path for f in found.files] == ["config.json"]
    assert [d.before for d in found.configs] == ["not read"]
