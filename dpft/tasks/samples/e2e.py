"""Generated restaurant descriptions in the file format of the E2E NLG challenge.

Everything here is made up: restaurants, landmarks and sentences. Only the format is the
challenge's. *Public* text (many wordings, many names) pretrains the bundled tiny model. *Private*
text (one house style with fixed habits, other restaurants, fewer values) is what the offline demo
fine-tunes on: a model that saw only the public part scores low on it, and gains even when its
gradients are noisy.
"""

import csv
import hashlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from dpft.tasks.samples.grammar import Words, article, generator, upper, vocabulary

Part = Literal["public", "private"]
Split = Literal["train", "dev", "test"]
Record = dict[str, str]  # attribute -> value, in the order of ATTRIBUTES

# Rows of each file, about four for a meaning representation where they are scored.
FILES: tuple[tuple[str, Split, int], ...] = (
    ("trainset.csv", "train", 4000),
    ("devset.csv", "dev", 300),
    ("testset_w_refs.csv", "test", 300),
)

_TEXT = vocabulary("e2e")
_PRESENCE: dict[str, float] = _TEXT["presence"]
ATTRIBUTES = ("name", *_PRESENCE)
VALUES: dict[Part, dict[str, Words]] = _TEXT["values"]
_PUBLIC: dict[str, Words] = _TEXT["public"]
_PRIVATE: dict[str, Words] = _TEXT["private"]
_HOUSE = _TEXT["house"]


def _gaps(value: str) -> dict[str, str]:
    food = value.lower() if value == "Fast food" else f"{value} food"
    return {"v": value, "a": article(value), "food": food}


def _wordings(kind: str, attribute: str, value: str) -> Words:
    table = _TEXT[kind][attribute]
    templates = [*table.get("any", []), *table.get(value, table.get("else", []))]
    return [template.format_map(_gaps(value)) for template in templates]


def _invented(rng: random.Random) -> str:
    syllables = rng.choices(_PUBLIC["syllable"], k=rng.choice((1, 1, 2)))
    return ("".join(syllables) + rng.choice(_PUBLIC["ending"])).capitalize()


def _public_name(rng: random.Random) -> str:
    first, noun, surname = (rng.choice(_PUBLIC[kind]) for kind in ("first", "noun", "surname"))
    # Invented and mixed names make the model copy from the prompt, not complete known words.
    return rng.choice(
        (
            f"The {first} {noun}",
            f"{first} {noun}",
            f"The {first} {noun} {_invented(rng)}",
            f"{first} {rng.choice(_PUBLIC['noun'])} and {noun}",
            f"{surname}'s",
            f"{surname} and {rng.choice(_PUBLIC['surname'])}",
            f"{surname} {noun}",
            f"Café {_invented(rng)}",
            f"{_invented(rng)} {noun}",
            f"{_invented(rng)} {_invented(rng)}",
        )
    )


def _public_near(rng: random.Random) -> str:
    stems = [rng.choice(_PUBLIC[kind]) for kind in ("first", "surname", "noun")]
    place = f"{rng.choice([*stems, _invented(rng)])} {rng.choice(_PUBLIC['landmark'])}"
    return rng.choice((place, place, place, f"the {place}", _public_name(rng)))


def _predicates(attribute: str, value: str) -> Words:
    if attribute in _TEXT["predicates"]:
        return _wordings("predicates", attribute, value)
    places = _wordings("place", attribute, value)
    return [f"is {word}{place}" for place in places for word in ("", "located ")]


def _public_sentence(facts: Sequence[tuple[str, str]], name: str, rng: random.Random) -> str:
    if len(facts) == 1 and rng.random() < 0.4:
        return rng.choice(_wordings("remarks", *facts[0]))
    predicates = [rng.choice(_predicates(*fact)) for fact in facts]
    subject = rng.choice(("It", "It", "It", "The place", "The venue", name, "This place"))
    return f"{subject} {rng.choice((' and ', ' and ', ', and it ')).join(predicates)}."


def _public_adjectives(record: Record, stated: set[str], rng: random.Random) -> Words:
    """Return adjectives for some facts, and add those facts to ``stated``."""
    adjectives = []
    for attribute, choices in _TEXT["adjectives"].items():
        choice = choices.get(record.get(attribute))
        if choice and rng.random() < 0.4:
            adjectives.append(rng.choice(choice))
            stated.add(attribute)
    return rng.sample(adjectives, len(adjectives))


def _public_reference(record: Record, rng: random.Random) -> str:
    name = record["name"]
    stated = {a for a in record if a in ("food", "area", "near") and rng.random() < 0.6}
    adjectives = _public_adjectives(record, stated, rng)
    noun = record.get("eatType") or rng.choice(("place", "venue", "establishment", "place to eat"))
    tail = ""
    if "food" in stated:
        if record["food"] != "Fast food" and rng.random() < 0.5:
            noun = f"{record['food']} {noun}"
        else:
            verb = rng.choice(("serving", "that serves", "offering", "which provides", "with"))
            tail = f" {verb} {_gaps(record['food'])['food']}"
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
        sentences.append(_public_sentence(rest[:take], name, rng))
        rest = rest[take:]
    return " ".join(sentences)


def _pick(rng: random.Random, wordings: Words, gaps: dict[str, Any]) -> str:
    """Return one of up to five wordings, the earlier ones more often."""
    weights = (5, 4, 3, 2, 2)[: len(wordings)]
    return rng.choices(wordings, weights=weights)[0].format_map(gaps)


def _private_opening(record: Record, rng: random.Random) -> str:
    area, near = record.get("area"), record.get("near")
    past = f"just past {near}" if near else ""
    gaps = {
        **record,
        "what": f", {article(record['eatType'])} we like" if "eatType" in record else "",
        "way": f"{'along' if area in ('riverside', 'harbour') else 'through'} the {area}",
        "past": past,
        "Past": past and upper(past),
        "_past": past and f" {past}",
        "past_": past and f"{past} ",
        "comma_past": past and f", {past}",
        "past_comma": past and f"{past}, ",
    }
    where = "area" if area else "near" if near else "nowhere"
    return _pick(rng, _HOUSE["opening"][where], gaps)


def _private_reference(record: Record, rng: random.Random) -> str:
    middle = [
        _pick(rng, wordings, _gaps(record[attribute]))
        for attribute, wordings in _HOUSE["middle"].items()
        if attribute in record
    ]
    if rng.random() < 0.4:
        middle.reverse()
    ending = _HOUSE["family"].get(record.get("familyFriendly"))
    family = [_pick(rng, ending, {})] if ending else []
    opening = _private_opening(record, rng)
    return " ".join((opening, *middle, *family, _pick(rng, _HOUSE["goodbye"], {})))


def split_of(mr: str) -> Split:
    """Return the split of a meaning representation, which follows from its text alone."""
    bucket = hashlib.sha256(mr.encode()).digest()[0]
    return "train" if bucket < 192 else "dev" if bucket < 224 else "test"


def _record(part: Part, rng: random.Random) -> Record:
    chosen: list[str] = []
    while len(chosen) < 2:  # the challenge's shortest meaning representations have three attributes
        chosen = [a for a, p in _PRESENCE.items() if rng.random() < p]
    if part == "private":  # the house is brief: most rows then fit the task's 100 tokens
        kept = rng.sample(chosen, min(5, len(chosen)))
        chosen = [a for a in chosen if a in kept]
    record = {"name": _public_name(rng) if part == "public" else rng.choice(_PRIVATE["name"])}
    for attribute in chosen:
        if attribute == "near":
            record["near"] = _public_near(rng) if part == "public" else rng.choice(_PRIVATE["near"])
        else:
            record[attribute] = rng.choice(VALUES[part][attribute])
    return record


def generate(part: Part, split: Split, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return ``count`` pairs (mr, ref), such as ("name[Fig Fiddle], area[harbour]", "Stroll ...").

    Rows of one meaning representation are consecutive in dev and test, as in the official files,
    where such a run is one instance with several references; in train they are shuffled. Splits
    share no meaning representation, parts share no restaurant.
    """
    rng = generator("e2e-sample-1", part, split, seed)
    realise = _public_reference if part == "public" else _private_reference
    rows: list[tuple[str, str]] = []
    seen: set[str] = set()
    while len(rows) < count:
        record = _record(part, rng)
        mr = ", ".join(f"{attribute}[{value}]" for attribute, value in record.items())
        if mr in seen or split_of(mr) != split:
            continue
        seen.add(mr)
        wanted = rng.randint(1, 3) if part == "public" and split == "train" else rng.randint(3, 5)
        references: dict[str, None] = {}  # a dict keeps the order of first appearance
        for _ in range(4 * wanted):
            references[realise(record, rng)] = None
            if len(references) == wanted:
                break
        rows.extend((mr, reference) for reference in references)
    rows = rows[:count]
    if split == "train":
        rng.shuffle(rows)
    return rows


def write_csvs(folder: Path, seed: int = 0) -> None:
    """Write the private part as the official files are."""
    for file_name, split, count in FILES:
        write_csv(folder / file_name, generate("private", split, count, seed))


def write_csv(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write pairs (mr, ref) as the official files are: UTF-8 with the columns mr and ref."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("mr", "ref"), *rows])
