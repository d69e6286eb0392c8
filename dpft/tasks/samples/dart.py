"""Generated triples with sentences in the JSON form of DART.

Everything here is made up; only the form is the published one. An entry is about a bridge, a song,
a player or a ship. Its triples are a small tree: facts about the thing, and often one fact about
what the first of them names (the river under the bridge, the town of the club).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from dpft.tasks.samples.grammar import Words, vocabulary
from dpft.tasks.triples import Triple, write_json

TRAIN_RECORDS = 1500
EVALUATION_ENTRIES = 150
# So that a record fits the task's length with the bundled model's tokenizer.
MOST_FACTS = 3
Entry = tuple[tuple[Triple, ...], tuple[str, ...]]


_TEXT = vocabulary("dart")


def _values(values: str | list[int]) -> Sequence[str]:
    """A list by its name, or the numbers of a range."""
    listed: Words = _TEXT[values] if isinstance(values, str) else [*map(str, range(*values))]
    return listed


def _names(kind: str) -> Words:
    if kind == "player":
        return list(_values("people"))
    return [f"{first} {last}" for first in _TEXT["first"] for last in _TEXT["last"]]


def _entry(rng: random.Random) -> Entry:
    kind = rng.choice(list(_TEXT["kinds"]))
    facts, about_first = _TEXT["kinds"][kind]["facts"], _TEXT["kinds"][kind]["about_first"]
    name = rng.choice(_names(kind))
    chosen = sorted(rng.sample(range(len(facts)), rng.randint(1, MOST_FACTS)))
    triples = [
        (name, facts[i]["relation"], rng.choice(_values(facts[i]["values"]))) for i in chosen
    ]
    phrases = [facts[i]["phrases"] for i in chosen]
    further: Triple | None = None
    if chosen[0] == 0 and len(chosen) < MOST_FACTS and rng.random() < 0.6:
        values = _values(about_first["values"])
        further = (triples[0][2], about_first["relation"], rng.choice(values))
    subject = name if kind == "player" else f"The {kind} {name}"

    def sentence() -> str:
        parts = [
            rng.choice(ways).format(triple[2])
            for ways, triple in zip(phrases, triples, strict=True)
        ]
        *before, last = parts
        text = f"{subject} {', '.join(before)} and {last}." if before else f"{subject} {last}."
        if further is not None:
            clause = rng.choice(about_first["phrases"]).format(further[2])
            article = "The " if further[0].startswith("River") else ""
            text += f" {article}{further[0]} {clause}."
        return text

    wanted = rng.randint(1, 3)
    references = dict.fromkeys(sentence() for _ in range(4 * wanted))
    whole = (*triples, further) if further is not None else tuple(triples)
    return whole, tuple(references)[:wanted]


def generate(seed: int = 0) -> dict[str, list[Entry]]:
    """Triple sets with references, by split; no triple set comes twice.

    Args:
        seed: another one gives other entries, the same on every machine.
    """
    rng = random.Random(f"dart sample 1 {seed}")
    seen: set[tuple[Triple, ...]] = set()
    splits: dict[str, list[Entry]] = {"dev": [], "test": [], "train": []}
    for split, entries in splits.items():
        records = 0
        while records < TRAIN_RECORDS if split == "train" else len(entries) < EVALUATION_ENTRIES:
            triples, references = _entry(rng)
            if triples in seen:
                continue
            seen.add(triples)
            if split == "train":
                references = references[: TRAIN_RECORDS - records]
            records += len(references)
            entries.append((triples, references))
    return splits


def write_files(folder: Path, seed: int = 0) -> None:
    """Write ``dart-v1.1.1-full-{train,dev,test}.json``."""
    for split, entries in generate(seed).items():
        write_json(folder / f"dart-v1.1.1-full-{split}.json", entries, source="generated")
