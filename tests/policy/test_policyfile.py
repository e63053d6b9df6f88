"""Policy files load strictly; every mistake names its place and the nearest valid key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pairgate.cli import cli
from pairgate.domain.policy import AcceptanceRule, Mode, SpeedupRule
from pairgate.errors import NotFound, PolicyError
from pairgate.policyfile import (
    PRESETS,
    RULE_TYPES,
    explained,
    load_policy,
    loads_policy,
    policy_document,
    policy_from_document,
    preset,
    preset_text,
)


def _toml(text: str):
    return loads_policy(text, name="p.toml", suffix=".toml")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_load_with_every_rule_and_survive_storage(name: str) -> None:
    policy = preset(name)
    assert policy.name == name
    assert {r.name for r in policy.rules} == set(RULE_TYPES)
    assert policy_from_document(policy_document(policy)) == policy
    assert policy_from_document(policy_document(policy)).digest == policy.digest


def test_the_default_gates_what_it_should() -> None:
    modes = {r.name: r.mode for r in preset("default").rules}
    assert [n for n, m in modes.items() if m is Mode.ADVISE] == ["bimodality", "fallback"]
    acceptance = preset("default").rules[0]
    assert isinstance(acceptance, AcceptanceRule)
    assert (acceptance.threshold, acceptance.advise_threshold) == ("break-even", 0.6)
    strict = {r.name for r in preset("strict").rules if r.mode is Mode.ADVISE}
    assert strict == {"bimodality"}


def test_unknown_presets_name_the_known() -> None:
    with pytest.raises(NotFound, match="default, strict, exploratory"):
        preset("lenient")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alpha = 0.05", "no rules"),
        ("[rules]", "no rules"),
        (
            "\n[rules.acceptence]",
            r":2: \[rules\] unknown rule 'acceptence'\ndid you mean 'acceptance'",
        ),
        (
            "[rules.speedup]\n\nmin_ration = 1",
            r":3: \[rules.speedup\] .*'min_ration'\ndid you mean 'min_r",
        ),
        ("aplha = 0.1\n[rules.speedup]", r"p\.toml:1: unknown key 'aplha'\ndid you mean 'alpha'"),
        ("[rules.speedup]\n[reply]\n", r"p\.toml:2: unknown key 'reply'\ndid you mean 'replay'"),
        ("[rules.acceptance]\nthreshold = 0.6", r"p\.toml:2: .*threshold without the rate"),
        ("[rules.speedup]\nmin_ratio = true", "valid number"),
        ("[rules.speedup]\nmin_ratio = nan", "finite"),
        ('[rules.speedup]\nmin_ratio = "1.0"', "valid number"),
        ('[rules.speedup]\nmode = "gates"', "'gate' or 'advise'"),
        ("[rules.speedup]\nconcurrencies = [0]", "greater than or equal to 1"),
        ('[rules.fidelity]\nmin_level = "F4"', "'F1', 'F2' or 'F3'"),
        ('[rules.bimodality]\nmode = "gate"\nfloor = "break-even"', "valid number"),
        ('[rules.acceptance]\nrate = "token_acceptance"\nthreshold = 2.0', "is a share"),
        ('[rules.acceptance]\nrate = "acceptance_length"\nthreshold = 0.6', "emits 1 token"),
        ('[rules.speedup]\nmode = "advise"', "only advises"),
        ("[rules.speedup]\n[replay]\nmin_blocks = 10", "over max_blocks"),
        ("[rules.speedup]\n[fallback]\nminimum = 200", "over the window"),
        ("alpha = 0.5\n[rules.speedup]", "alpha 0.5"),
        ("rules = 3", "a table is expected"),
        ("[rules.speedup", "at the end of a table"),
        ("[rules.speedup]\n[rules.speedup]", "twice|declare|exist"),
    ],
)
def test_mistakes_are_errors(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        _toml(text)


def test_yaml_and_json_say_the_same_as_toml() -> None:
    toml = _toml('name = "x"\n[rules.speedup]\nmin_ratio = 1.1\n')
    yaml = loads_policy(
        "name: x\nrules:\n  speedup:\n    min_ratio: 1.1\n", name="p", suffix=".yaml"
    )
    text = json.dumps({"name": "x", "rules": {"speedup": {"min_ratio": 1.1}}})
    assert toml == yaml == loads_policy(text, name="p", suffix=".json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules:\n  speedup:\n    min_ration: 1\n", r"p\.yaml:3: .*min_ration"),
        ("rules:\n  speedup: {}\n  speedup: {}\n", "given twice"),
        ("- 1\n", "not list"),
        ("rules: [", "p.yaml"),
        ("rules: !!python/object:os.system {}\n", "p.yaml"),
    ],
)
def test_yaml_mistakes(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        loads_policy(text, name="p.yaml", suffix=".yaml")


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    file.write_text("\ufeff[rules.speedup]\n", "utf-8")  # editors on Windows write the mark
    assert load_policy(file).name == "release"
    with pytest.raises(NotFound, match="no policy file"):
        load_policy(tmp_path / "absent.toml")
    (tmp_path / "p.ini").write_text("[rules.speedup]")
    with pytest.raises(PolicyError, match="unknown kind of file"):
        load_policy(tmp_path / "p.ini")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="UTF-8"):
        load_policy(tmp_path / "bytes.toml")


def test_the_digest_ignores_what_does_not_decide() -> None:
    first = _toml("[rules.speedup]\n[rules.memory]\n# a comment\n")
    second = _toml(
        'name = "other"\n[rules.memory]\n[rules.speedup]\n[rules.fallback]\nmode = "advise"\n'
    )
    assert first.digest == second.digest
    assert first.digest != _toml("[rules.speedup]\nmin_ratio = 1.1\n[rules.memory]\n").digest
    gate = AcceptanceRule(threshold=0.6, advise_threshold=0.6)
    shown = replace(first, rules=(gate, SpeedupRule()))
    hidden = replace(first, rules=(replace(gate, advise_threshold=None), SpeedupRule()))
    assert shown.digest == hidden.digest


def test_every_rule_is_explained() -> None:
    for name in PRESETS:
        policy = preset(name)
        sentences = explained(policy)
        for rule in policy.rules:
            assert sum(s.startswith(f"{rule.mode}s {rule.name}:") for s in sentences) == 1


def test_commands(tmp_path: Path) -> None:
    run = CliRunner()
    file = tmp_path / "p.toml"
    file.write_text("[rules.speedup]\n")
    ok = run.invoke(cli, ["policy", "check", str(file), "--json"])
    assert json.loads(ok.output)["gates"] == ["speedup"]
    assert "ok: policy p" in run.invoke(cli, ["policy", "check", str(file)]).output
    file.write_text("[rules.speedup]\nmin_ration = 1\n")
    assert isinstance(run.invoke(cli, ["policy", "check", str(file)]).exception, PolicyError)
    said = run.invoke(cli, ["policy", "explain", "strict"])
    assert "gates acceptance" in said.output
    assert json.loads(run.invoke(cli, ["policy", "explain", "default", "--json"]).output)["digest"]
    assert run.invoke(cli, ["policy", "explain", "default", "--source"]).output == preset_text(
        "default"
    )


def test_domains_and_concurrencies_are_tables_and_survive_being_stored() -> None:
    text = """
[rules.acceptance]
rate = "token_acceptance"
threshold = 0.6
domains = { sql = 0.5, chat = "break-even" }
[rules.speedup]
at = { 1 = 1.3, 64 = 0.95 }
"""
    policy = loads_policy(text, name="p.toml", suffix=".toml")
    acceptance, speedup = policy.rules
    assert isinstance(acceptance, AcceptanceRule)
    assert isinstance(speedup, SpeedupRule)
    assert acceptance.domains == (("chat", "break-even"), ("sql", 0.5))
    assert (speedup.ratio_at(1), speedup.ratio_at(8), speedup.ratio_at(64)) == (1.3, 1.0, 0.95)
    again = policy_from_document(policy_document(policy))
    assert again == policy
    assert again.digest == policy.digest
    plain = loads_policy(text.replace('domains = { sql = 0.5, chat = "break-even" }', ""),
                         name="p.toml", suffix=".toml")  # fmt: skip
    assert plain.digest != policy.digest
    sentences = " ".join(explained(policy))
    assert "in sql at least 0.5" in sentences
    assert "over 1.3 at 1" in sentences


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("domains = { sql = 1.5 }", "is a share"),
        ('domains = { sql = "cheap" }', "domains"),
        ('domains = { sql = 0.5 }\nother = ["sql"]', "only shown"),
    ],
)
def test_a_wrong_threshold_of_a_domain_is_refused(line: str, complaint: str) -> None:
    text = f'[rules.acceptance]\nrate = "token_acceptance"\nthreshold = 0.6\n{line}\n'
    with pytest.raises(PolicyError, match=complaint):
        loads_policy(text, name="p.toml", suffix=".toml")
