"""Make the slices: held-out requests with their sampling parameters, sessions and arrival times."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, dataclass

import numpy as np
from common import (
    BASE_DOMAINS,
    DOMAINS,
    RELEASE_DOMAINS,
    Preset,
    Work,
    read_jsonl,
    write_jsonl,
    write_text_atomically,
)
from transformers import AutoTokenizer

SHINGLE = 8  # words
NEAR_DUPLICATE = 0.2  # share of a prompt's shingles that also stand in the training text
FEWEST_WORDS = 12  # a prompt shorter than this has too few shingles to judge
SHORTEST, LONGEST = 24, 200  # prompt tokens
REQUESTS_PER_SECOND = 2.0
SMOKE_REQUESTS = 12


@dataclass
class Counts:
    """What became of the candidate prompts of one domain."""

    candidates: int = 0
    too_short: int = 0
    address: int = 0  # holds an e-mail address: somebody's, and no use in a slice
    exact_copy: int = 0
    near_duplicate: int = 0
    repeated_prompt: int = 0
    kept: int = 0


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def shingles(text: str) -> np.ndarray:
    """Hashes of all runs of SHINGLE words (the built-in hash: only compared in this process)."""
    found = words(text)
    runs = zip(*(found[start:] for start in range(SHINGLE)), strict=False)
    return np.fromiter((hash(run) for run in runs), dtype=np.int64)


class TrainingText:
    """Answers how much of a prompt stands in the training text of any domain."""

    def __init__(self, work: Work) -> None:
        parts = [
            np.unique(np.concatenate([shingles(row["text"]) for row in rows]))
            for rows in (read_jsonl(work.train_text(domain)) for domain in DOMAINS)
        ]
        self.known = np.unique(np.concatenate(parts))

    def share(self, prompt: str) -> float:
        wanted = shingles(prompt)
        places = np.searchsorted(self.known, wanted).clip(max=len(self.known) - 1)
        return float((self.known[places] == wanted).mean())


class Prompts:
    """Draws windows from one domain's held-out files, none of which overlap."""

    def __init__(self, work: Work, domain: str, training: TrainingText, rng: random.Random) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(work.tokenizer)
        self.training = training
        self.rng = rng
        self.counts = Counts()
        self.seen: set[str] = set()
        texts = [row["text"] for row in read_jsonl(work.heldout_text(domain))]
        self.rng.shuffle(texts)
        self.texts = texts
        self.places = [0] * len(texts)  # where the next window of each file may begin
        self.turn = 0

    def next_file(self) -> int:
        """Files take turns, so that no long file fills the slice."""
        for _ in self.texts:
            self.turn += 1
            index = self.turn % len(self.texts)
            if self.places[index] < len(self.texts[index]) - 200:
                return index
        raise SystemExit("The held-out files are used up: raise heldout_chars.")

    def window(self, index: int) -> str:
        """The next window of a file: from the start of a line, of a random length in tokens."""
        text, place = self.texts[index], self.places[index]
        place += self.rng.randrange(0, 400)
        place = text.find("\n", place) + 1 or len(text)
        place += len(text[place:]) - len(text[place:].lstrip("\n"))
        length = round(np.exp(self.rng.uniform(np.log(SHORTEST), np.log(LONGEST))))
        piece = text[place : place + 8 * LONGEST]
        offsets = self.tokenizer(piece, return_offsets_mapping=True)["offset_mapping"]
        end = offsets[min(length, len(offsets)) - 1][1] if offsets else 0
        self.places[index] = place + max(end, 1)
        return piece[:end]

    def usable(self, prompt: str) -> bool:
        self.counts.candidates += 1
        tokens = len(self.tokenizer(prompt)["input_ids"])
        if len(words(prompt)) < FEWEST_WORDS or not SHORTEST <= tokens <= LONGEST:
            self.counts.too_short += 1
            return False
        if re.search(r"\S@\S", prompt):
            self.counts.address += 1
            return False
        share = self.training.share(prompt)
        normal = " ".join(words(prompt))
        if share == 1.0:
            self.counts.exact_copy += 1
        elif share > NEAR_DUPLICATE:
            self.counts.near_duplicate += 1
        elif normal in self.seen:
            self.counts.repeated_prompt += 1
        else:
            self.counts.kept += 1
            self.seen.add(normal)
            return True
        return False

    def draw(self, count: int) -> list[str]:
        """`count` prompts of one file, in the file's order."""
        while True:
            index = self.next_file()
            found: list[str] = []
            while len(found) < count and self.places[index] < len(self.texts[index]) - 200:
                prompt = self.window(index)
                if self.usable(prompt):
                    found.append(prompt)
            if len(found) == count:
                return found
            self.counts.kept -= len(found)  # a session that its file could not fill


def body(prompt: str, greedy: bool, preset: Preset, rng: random.Random) -> dict:
    """An OpenAI completions body. Greedy requests are short, sampled ones have full length."""
    request = {"prompt": prompt, "seed": rng.randrange(1, 2**31)}
    if greedy:
        return request | {"max_tokens": rng.choice((16, 24, 32, 48, 64)), "temperature": 0.0}
    request |= {"max_tokens": preset.new_tokens, "temperature": rng.choice((0.7, 0.8, 0.9, 1.0))}
    truncation = rng.random()
    if truncation < 0.25:
        request["top_p"] = rng.choice((0.9, 0.95))
    elif truncation < 0.4:
        request["top_k"] = rng.choice((20, 50))
    return request


def domain_requests(work: Work, preset: Preset, domain: str, training: TrainingText) -> tuple:
    rng = random.Random(f"slice {domain}")
    prompts = Prompts(work, domain, training, rng)
    kinds = [True, False] * (preset.requests // 2)  # greedy or sampled, half each
    rng.shuffle(kinds)
    rows: list[dict] = []
    sessions = 0
    while len(rows) < preset.requests:
        # About half of the requests belong to a session of two or three.
        turns = min(rng.choice((1, 1, 1, 1, 1, 2, 3)), preset.requests - len(rows))
        session = None
        if turns > 1:
            sessions += 1
            session = f"{domain}-session-{sessions:02d}"
        for prompt in prompts.draw(turns):
            request = body(prompt, kinds[len(rows)], preset, rng)
            name = f"{domain}-{len(rows) + 1:03d}"
            rows.append({"id": name, "domain": domain, "session": session, "body": request})
    return rows, prompts.counts


def with_arrivals(rows: list[dict], seed: str) -> list[dict]:
    """Mix the domains and give Poisson arrivals; the turns of a session stay in their order."""
    rng = random.Random(seed)
    slots = [row["domain"] for row in rows]
    rng.shuffle(slots)
    queues = {domain: [row for row in rows if row["domain"] == domain] for domain in set(slots)}
    now = 0.0
    mixed = []
    for domain in slots:
        row = queues[domain].pop(0)
        now += rng.expovariate(REQUESTS_PER_SECOND)
        keys = ("id", "domain", "session")
        timing = {"arrival_s": round(now, 3)}
        mixed.append({key: row[key] for key in keys} | timing | {"body": row["body"]})
    return mixed


def smoke(by_domain: dict[str, list[dict]]) -> list[dict]:
    """A dozen requests of `base` with at most 24 new tokens, for a check in seconds."""
    rows = []
    each = SMOKE_REQUESTS // len(BASE_DOMAINS)
    for domain in BASE_DOMAINS:
        for row in by_domain[domain][:each]:
            short = row["body"] | {"max_tokens": min(24, row["body"]["max_tokens"])}
            rows.append(row | {"session": None, "body": short})
    return rows


def build(work: Work, preset: Preset) -> None:
    if work.slice("smoke").exists():
        return
    training = TrainingText(work)
    by_domain, counts = {}, {}
    for domain in DOMAINS:
        by_domain[domain], domain_counts = domain_requests(work, preset, domain, training)
        counts[domain] = asdict(domain_counts)
        print(domain, counts[domain], flush=True)
    base = [row for domain in BASE_DOMAINS for row in by_domain[domain]]
    release = [row for domain in RELEASE_DOMAINS for row in by_domain[domain]]
    write_jsonl(work.slice("base"), with_arrivals(base, "base"))
    write_jsonl(work.slice("release"), with_arrivals(release, "release"))
    report = {"training_shingles": len(training.known), "prompts": counts}
    counts_path = work.ship / "slices" / "held-out.json"
    write_text_atomically(counts_path, json.dumps(report, indent=2) + "\n")
    write_jsonl(work.slice("smoke"), with_arrivals(smoke(by_domain), "smoke"))
