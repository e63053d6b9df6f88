"""Which requests are drawn, and which of them a model has read before."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairgate.domain.traffic import Request
from pairgate.errors import InvalidInput
from pairgate.traffic.body import parse_request
from pairgate.traffic.importing import Found
from pairgate.traffic.leaks import find_leaks
from pairgate.traffic.report import Place, Tally
from pairgate.traffic.sampling import SampleSize, allotment, sample


def request(id: str, prompt: str = "x", domain: str = "a") -> Request:
    body = json.dumps({"prompt": prompt})
    return parse_request(id=id, domain=domain, body=body, default_max_tokens=8)


def found(domains: list[str], tally: Tally) -> list[Found]:
    items = []
    for i, domain in enumerate(domains):
        tally.n_read += 1
        tally.usable[domain] += 1
        place = Place(source="log", line=i + 1)
        items.append(
            Found(ordinal=i, place=place, request=request(f"r{i}", domain=domain), epoch_s=None)
        )
    return items


DOMAINS = ["a"] * 700 + ["b"] * 250 + ["c"] * 50


def test_equal_sample_takes_what_a_small_domain_has() -> None:
    tally = Tally()
    drawn = sample(found(DOMAINS, tally), SampleSize(per_domain=100), 0, tally)
    assert Counter(d.request.domain for d in drawn) == {"a": 100, "b": 100, "c": 50}
    report = tally.report((), len(drawn))
    assert [(x.reason, x.n, x.fault) for x in report.left_out] == [("not sampled", 750, False)]
    assert report.n_read == report.n_kept + 750


def test_proportional_sample() -> None:
    tally = Tally()
    drawn = sample(found(DOMAINS, tally), SampleSize(total=100), 0, tally)
    assert Counter(d.request.domain for d in drawn) == {"a": 70, "b": 25, "c": 5}
    assert tally.report((), 100).left_out[0].n == 900


def test_the_seed_decides_and_the_order_does_not() -> None:
    size = SampleSize(per_domain=40)
    items = found(DOMAINS, Tally())
    shuffled = items[:]
    random.Random(1).shuffle(shuffled)
    drawn = [{d.request.id for d in sample(x, size, 7, Tally())} for x in (items, shuffled)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != {d.request.id for d in sample(items, size, 8, Tally())}


def test_every_request_is_drawn_equally_often() -> None:
    items = found(["a"] * 40, Tally())
    counts = Counter(
        d.request.id
        for seed in range(400)
        for d in sample(items, SampleSize(total=10), seed, _tally_of(40))
    )
    # Binomial(400, 1/4) each: sd 8.7; five of them is a false alarm in 1e5 at 40 ids.
    assert len(counts) == 40
    assert all(abs(n - 100) < 44 for n in counts.values())


def _tally_of(n: int) -> Tally:
    tally = Tally()
    tally.usable["a"] = n
    return tally


@given(st.dictionaries(st.text(), st.integers(1, 10**6), min_size=1), st.integers(1, 10**6))
def test_seats_add_up_and_stay_within_one_of_their_share(
    counts: dict[str, int], total: int
) -> None:
    seats = allotment(counts, total)
    whole = sum(counts.values())
    assert sum(seats.values()) == min(total, whole)
    for name, n in counts.items():
        assert seats[name] <= n
        assert abs(seats[name] - min(total, whole) * n / whole) < 1


def test_wrong_sizes_and_too_many_domains_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not both"):
        SampleSize(per_domain=1, total=1)
    with pytest.raises(InvalidInput, match="at least 1"):
        SampleSize(total=0)
    items = found([f"user-{i}" for i in range(1100)], Tally())
    with pytest.raises(InvalidInput, match="more than 1000 domains"):
        sample(items, SampleSize(total=5), 0, Tally())


def text(rng: random.Random, n: int) -> list[str]:
    return [f"w{rng.randrange(5000)}" for _ in range(n)]


@pytest.mark.parametrize("form", ["plain", "jsonl", "chat"])
def test_copies_and_near_copies_are_found_wherever_they_stand(tmp_path: Path, form: str) -> None:
    pytest.importorskip("datasketch")
    rng = random.Random(3)
    training = text(rng, 40_000)
    requests = []
    for i in range(60):
        n, at = rng.randrange(14, 200), rng.randrange(39_000)
        words = training[at : at + n] if i < 40 else text(rng, n)
        if 20 <= i < 40 and n > 40:  # one word in thirty is another
            words = [w if j % 30 != 15 else "other" for j, w in enumerate(words)]
        requests.append(request(f"id {i}", " ".join(words).upper()))
    requests.append(request("short", "too few words"))
    docs = [" ".join(training[i : i + 500]) for i in range(0, len(training), 500)]
    path = tmp_path / "train.txt"
    if form == "plain":
        path.write_text("\n".join(docs))
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps({"text": d, "source": "w1 w2"}) for d in docs))
    else:
        chats = ({"messages": [{"role": "user", "content": d}]} for d in docs)
        path.write_text("\n".join(map(json.dumps, chats)))
    report = find_leaks(requests, [path])
    assert (report.n_checked, report.n_too_short) == (60, 1)
    leaked = {leak.request_id for leak in report.leaks}
    assert {f"id {i}" for i in range(20)} <= leaked
    assert sum(f"id {i}" in leaked for i in range(20, 40)) >= 18
    assert not any(f"id {i}" in leaked for i in range(40, 60))
    if form == "plain":
        assert report.n_training_words == 40_000


def test_a_shared_system_prompt_is_no_leak(tmp_path: Path) -> None:
    pytest.importorskip("datasketch")
    rng = random.Random(0)
    system, question = " ".join(text(rng, 100)), " ".join(text(rng, 60))
    (tmp_path / "t.txt").write_text(system)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    chat = parse_request(
        id="a", domain="d", body=json.dumps({"messages": messages}), default_max_tokens=1
    )
    assert find_leaks([chat], [tmp_path / "t.txt"]).leaks == ()
    with pytest.raises(InvalidInput, match="no such file"):
        find_leaks([chat], [tmp_path / "none.txt"])
