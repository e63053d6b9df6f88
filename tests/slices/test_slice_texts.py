"""A slice on disk gives back exactly the requests that were put in."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairgate.domain.traffic import Request, TrafficSlice
from pairgate.errors import IntegrityError
from pairgate.traffic.importing import ReadOptions, read_logs, settle
from pairgate.traffic.report import Tally
from pairgate.traffic.texts import SliceTexts

TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
CHATS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXT}),
    min_size=1,
    max_size=3,
)
EXTRAS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0.01, 1),
        "top_k": st.integers(-1, 50),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "max_tokens": st.integers(1, 4096),
        "stop": TEXT | st.lists(TEXT, max_size=3),
        "logit_bias": st.dictionaries(st.text("0123456789", min_size=1), st.floats(-9, 9)),
        "tools": st.lists(st.dictionaries(TEXT, TEXT), max_size=1),
        "metadata": st.dictionaries(TEXT, TEXT, max_size=2),
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """A body as some client may write it: any spacing, escapes or none."""
    prompt = draw(
        st.fixed_dictionaries({"messages": CHATS})
        | st.fixed_dictionaries({"prompt": TEXT | st.lists(st.integers(0, 2**31 - 1), min_size=1)})
    )
    return json.dumps(
        prompt | draw(EXTRAS),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 0, 2])),
        separators=draw(st.sampled_from([(",", ":"), (" ,  ", ":\t")])),
    )


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    record: dict[str, Any] = {"body": draw(bodies())}
    optional = {"id": TEXT, "domain": TEXT, "session": TEXT, "arrival_s": st.floats(0, 1e12)}
    return record | draw(st.fixed_dictionaries({}, optional=optional))


def stored_log(path: Path, items: list[dict[str, Any]]) -> tuple[Request, ...]:
    """Requests of a log whose bodies are JSON strings, which keep any spacing."""
    path.write_text("\n".join(json.dumps(item) for item in items))
    options = ReadOptions(keep_duplicates=True, default_max_tokens=77)
    return settle(read_logs([str(path)], options, Tally()))


@given(st.lists(records(), min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_requests_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, items: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("slice")
    requests = stored_log(folder / "log.jsonl", items)
    seen = {r.id: r for r in requests}
    for item in items:  # the first of an id is kept, and its body to the letter
        if (first := seen.get(item.get("id", ""))) is not None:
            assert first.body in [x["body"] for x in items if x.get("id") == first.id]
    texts = SliceTexts(folder / "slices")
    traffic = TrafficSlice(name="s", requests=requests)
    texts.write(traffic.digest, requests)
    loaded = texts.read(traffic.digest)
    assert loaded == requests
    assert TrafficSlice(name="s", requests=loaded).digest == traffic.digest


@given(st.lists(records(), min_size=1, max_size=3, unique_by=lambda r: r.get("id")))
@settings(max_examples=50, deadline=None)
def test_a_stored_slice_is_a_log_of_itself(
    tmp_path_factory: pytest.TempPathFactory, items: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("slice")
    requests = stored_log(folder / "log.jsonl", items)
    texts = SliceTexts(folder / "slices")
    texts.write("sha256:abc", requests)
    options = ReadOptions(keep_duplicates=True)
    again = settle(read_logs([str(texts.path("sha256:abc"))], options, Tally()))
    assert again == requests


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    requests = stored_log(tmp_path / "log.jsonl", [{"body": '{"prompt": "a"}'}])
    texts = SliceTexts(tmp_path / "slices")
    texts.write("sha256:abc", requests)
    assert stat.S_IMODE(texts.path("sha256:abc").stat().st_mode) == 0o600
    assert stat.S_IMODE(texts.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("line", ["{", '{"id": 5}', "[]", '{"prompt": "x"}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    requests = stored_log(tmp_path / "log.jsonl", [{"body": '{"prompt": "a"}'}])
    texts = SliceTexts(tmp_path / "slices")
    texts.write("sha256:abc", requests)
    path = texts.path("sha256:abc")
    path.write_text(path.read_text() + line)
    with pytest.raises(IntegrityError, match="line 2 is damaged"):
        texts.read("sha256:abc")
