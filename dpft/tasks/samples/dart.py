"""Generated triples with sentences in the JSON form of DART.

Everything here is made up; only the form is the published one. An entry is about a bridge, a song,
a player or a ship. Its triples are a small tree: facts about the thing, and often one fact about
what the first of them names (the river under the bridge, the town of the club).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.tasks.triples import Triple, write_json

TRAIN_RECORDS = 1500
EVALUATION_ENTRIES = 150
# So that a record fits the task's length with the bundled model's tokenizer.
MOST_FACTS = 3
Entry = tuple[tuple[Triple, ...], tuple[str, ...]]


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split(", "))


_FIRST = _split(
    "Copper, Willow, Silver, Maple, Stone, Amber, Winter, Summer, Golden, Quiet, Morning, Northern,"
    " Crimson, Hidden, Misty, Western"
)
_LAST = _split("Anchor, Lantern, Heron, Orchard, Mill, Garden, Arrow, Castle, Meadow, Harbour, Fox")
_TOWNS = _split(
    "Oakford, Brookton, Millhaven, Ashbury, Redport, Kingsdale, Elmworth, Fairbridge, Stanmoor"
)
_RIVERS = _split("River Alder, River Brent, River Coral, River Dove, River Ember, River Fern")
_PEOPLE = _split(
    "Anna Harper, Paul Fletcher, Rosa Porter, Simon Baxter, Clara Hudson, Victor Lambert, "
    "Helen Sharpe, Oliver Tanner, Emma Weaver, Martin Reeves"
)
_CLUBS = _split("Redport Rovers, Ashbury United, Elmworth Town, Oakford Athletic, Stanmoor City")
_LANGUAGES = _split("English, French, Spanish, Italian, Greek, Welsh")
_POSITIONS = _split("goalkeeper, defender, midfielder, striker")
_LABELS = _split("Blue Kite Records, Tall Tree Music, Night Owl Sound, Paper Moon Music")


@dataclass(frozen=True)
class _Fact:
    """A relation, what it may name, and ways to say it of the subject."""

    relation: str
    values: Sequence[str]
    phrases: tuple[str, ...]


def _numbers(low: int, high: int, step: int = 1) -> tuple[str, ...]:
    return tuple(map(str, range(low, high, step)))


# For each kind: its word, names, facts, and the fact that may follow about the first one's value.
_KINDS: tuple[tuple[str, Sequence[str], tuple[_Fact, ...], _Fact], ...] = (
    (
        "bridge",
        [f"{first} {last}" for first in _FIRST for last in _LAST],
        (
            _Fact("CROSSES", _RIVERS, ("crosses the {}", "leads over the {}")),
            _Fact("BUILT_IN", _numbers(1850, 1990), ("was built in {}", "dates from {}")),
            _Fact("LENGTH_(M)", _numbers(40, 400, 10), ("is {} metres long", "measures {} metres")),
            _Fact("DESIGNER", _PEOPLE, ("was designed by {}", "is a work of {}")),
        ),
        _Fact("FLOWS_THROUGH", _TOWNS, ("flows through {}", "runs through {}")),
    ),
    (
        "song",
        [f"{first} {last}" for first in _FIRST for last in _LAST],
        (
            _Fact("RECORD_LABEL", _LABELS, ("was released by {}", "came out on {}")),
            _Fact("ARTIST", _PEOPLE, ("is sung by {}", "is a song by {}")),
            _Fact("YEAR", _numbers(1960, 2020), ("is from {}", "was first heard in {}")),
            _Fact("LANGUAGE", _LANGUAGES, ("is in {}", "has words in {}")),
        ),
        _Fact("HEADQUARTERS", _TOWNS, ("is based in {}", "has its offices in {}")),
    ),
    (
        "player",
        _PEOPLE,
        (
            _Fact("CLUB", _CLUBS, ("plays for {}", "is with {}")),
            _Fact("POSITION", _POSITIONS, ("is a {}", "plays as a {}")),
            _Fact("SHIRT_NUMBER", _numbers(1, 40), ("wears number {}", "has number {}")),
            _Fact("BIRTH_PLACE", _TOWNS, ("was born in {}", "comes from {}")),
        ),
        _Fact("FOUNDED", _numbers(1880, 1980), ("was founded in {}", "has existed since {}")),
    ),
    (
        "ship",
        [f"{first} {last}" for first in _FIRST for last in _LAST],
        (
            _Fact("HOME_PORT", _TOWNS, ("sails from {}", "has its home port in {}")),
            _Fact("CAPTAIN", _PEOPLE, ("is led by captain {}", "has {} as captain")),
            _Fact("LAUNCHED", _numbers(1900, 2010), ("was launched in {}", "first sailed in {}")),
            _Fact("CREW", _numbers(10, 200, 5), ("has a crew of {}", "carries {} sailors")),
        ),
        _Fact("COUNTRY", ("Norland", "Estria", "Valmora"), ("is in {}", "lies in {}")),
    ),
)


def _entry(rng: random.Random) -> Entry:
    kind, names, facts, about_first = rng.choice(_KINDS)
    name = rng.choice(names)
    chosen = sorted(rng.sample(range(len(facts)), rng.randint(1, MOST_FACTS)))
    triples = [(name, facts[i].relation, rng.choice(facts[i].values)) for i in chosen]
    phrases = [facts[i].phrases for i in chosen]
    further: Triple | None = None
    if chosen[0] == 0 and len(chosen) < MOST_FACTS and rng.random() < 0.6:
        further = (triples[0][2], about_first.relation, rng.choice(about_first.values))
    subject = name if kind == "player" else f"The {kind} {name}"

    def sentence() -> str:
        parts = [
            rng.choice(ways).format(triple[2])
            for ways, triple in zip(phrases, triples, strict=True)
        ]
        *before, last = parts
        text = f"{subject} {', '.join(before)} and {last}." if before else f"{subject} {last}."
        if further is not None:
            said = rng.choice(about_first.phrases).format(further[2])
            article = "The " if further[0].startswith("River") else ""
            text += f" {article}{further[0]} {said}."
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
    """Write ``dart-v1.1.1-full-{train,dev,test}.json``.

    Args:
        folder: where to; made if absent, files of these names are replaced.
        seed: see `generate`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split, entries in generate(seed).items():
        write_json(folder / f"dart-v1.1.1-full-{split}.json", entries, source="generated")
