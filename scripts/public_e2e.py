"""The public text that the bundled tiny model is pretrained on: restaurants in the form of E2E.

Everything is made up, with many wordings and many names; ``dpft.tasks.e2e`` has
other ones.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import yaml

from dpft.tasks import e2e
from dpft.tasks.e2e import Record, Split, gaps_of
from dpft.tasks.samples import Words, article, upper

_TEXT = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_WORDS: dict[str, Words] = _TEXT["words"]
ORDINARY: Words = _TEXT["ordinary"].split()


class _Gaps(dict[str, str]):
    """Words for the gaps of a name; others than the given ones are drawn at every gap."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__({kind: rng.choice(_WORDS[kind]) for kind in ("first", "noun", "surname")})
        self.rng = rng

    def __missing__(self, key: str) -> str:
        return _invented(self.rng) if key == "new" else self.rng.choice(_WORDS[key[1:]])


def _invented(rng: random.Random) -> str:
    syllables = rng.choices(_WORDS["syllable"], k=rng.choice((1, 1, 2)))
    return ("".join(syllables) + rng.choice(_WORDS["ending"])).capitalize()


def _name(rng: random.Random) -> str:
    gaps, names = _Gaps(rng), cast(Words, _TEXT["names"])
    return rng.choice([name.format_map(gaps) for name in names])


def _near(rng: random.Random) -> str:
    stems = [rng.choice(_WORDS[kind]) for kind in ("first", "surname", "noun")]
    place = f"{rng.choice([*stems, _invented(rng)])} {rng.choice(_WORDS['landmark'])}"
    return rng.choice((place, place, place, f"the {place}", _name(rng)))


def _wordings(kind: str, attribute: str, value: str) -> Words:
    table = _TEXT[kind][attribute]
    templates = [*table.get("any", []), *table.get(value, table.get("else", []))]
    return [template.format_map(gaps_of(value)) for template in templates]


def _predicates(attribute: str, value: str) -> Words:
    if attribute in _TEXT["predicates"]:
        return _wordings("predicates", attribute, value)
    places = _wordings("place", attribute, value)
    return [f"is {word}{place}" for place in places for word in ("", "located ")]


def _sentence(facts: Sequence[tuple[str, str]], name: str, rng: random.Random) -> str:
    if len(facts) == 1 and rng.random() < 0.4:
        return rng.choice(_wordings("remarks", *facts[0]))
    predicates = [rng.choice(_predicates(*fact)) for fact in facts]
    subject = rng.choice(("It", "It", "It", "The place", "The venue", name, "This place"))
    return f"{subject} {rng.choice((' and ', ' and ', ', and it ')).join(predicates)}."


def _adjectives(record: Record, stated: set[str], rng: random.Random) -> Words:
    """Return adjectives for some facts, and add those facts to ``stated``."""
    adjectives = []
    for attribute, choices in _TEXT["adjectives"].items():
        choice = choices.get(record.get(attribute))
        if choice and rng.random() < 0.4:
            adjectives.append(rng.choice(choice))
            stated.add(attribute)
    return rng.sample(adjectives, len(adjectives))


def _reference(record: Record, rng: random.Random) -> str:
    name = record["name"]
    stated = {a for a in record if a in ("food", "area", "near") and rng.random() < 0.6}
    adjectives = _adjectives(record, stated, rng)
    noun = record.get("eatType") or rng.choice(("place", "venue", "establishment", "place to eat"))
    tail = ""
    if "food" in stated:
        if record["food"] != "Fast food" and rng.random() < 0.5:
            noun = f"{record['food']} {noun}"
        else:
            verb = rng.choice(("serving", "that serves", "offering", "which provides", "with"))
            tail = f" {verb} {gaps_of(record['food'])['food']}"
    what = article(" ".join((*adjectives, noun)))
    where = [
        rng.choice(_wordings("place", attribute, record[attribute]))
        for attribute in ("area", "near")
        if attribute in stated
    ]
    place = rng.choice((" ", ", ")).join(rng.sample(where, len(where)))
    gaps = {"name": name, "what": what, "What": upper(what), "tail": tail, "place": place}
    gaps |= {"at": place and f" {place}", "comma": tail and ",", "Place": place and upper(place)}
    openings = [*_TEXT["openings"], *(_TEXT["openings_with_place"] if place else ())]
    sentences = [rng.choice(openings).format_map(gaps)]
    rest = [(a, v) for a, v in record.items() if a in _TEXT["remarks"] and a not in stated]
    rng.shuffle(rest)
    while rest:
        take = rng.choice((1, 2))
        sentences.append(_sentence(rest[:take], name, rng))
        rest = rest[take:]
    return " ".join(sentences)


def _record(rng: random.Random) -> Record:
    chosen = e2e.attributes(rng)
    record = {"name": _name(rng)}
    for attribute in chosen:
        near = attribute == "near"
        record[attribute] = _near(rng) if near else rng.choice(_TEXT["values"][attribute])
    return record


def generate(split: Split, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return ``count`` pairs (mr, ref) of the public part."""
    return e2e.generate(
        split, count, seed, part="public", record=_record, reference=_reference,
        fewest=1 if split == "train" else 3,
    )  # fmt: skip
