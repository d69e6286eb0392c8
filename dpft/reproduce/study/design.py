"""Which contexts are rated, which replies are shown, by whom, and in which order."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpft.config.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dpft.tasks.objectives.base import Prediction

REFERENCE = "reference"
# No vowels, so that no code is a word; no digits, so that no spreadsheet takes one for a number.
_LETTERS = "bcdfghjkmnpqrstvwxz"
_CODE_LENGTH = 6


@dataclass(frozen=True)
class System:
    """What wrote one reply to every context: all instances of a split.

    ``about`` is said of it beside the results, such as labels and guarantee.
    """

    name: str
    predictions: Sequence[Prediction]
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """One reply to one context, under a code that tells nothing without the key.

    Attributes:
        entry: number of the context.
        systems: who wrote it; several, where their replies are the same.
    """

    code: str
    entry: int
    context: str
    reply: str
    systems: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """Everything that is shown, and to whom.

    Attributes:
        items: by code.
        raters: for each rater, the codes in the order shown; replies to a context lie together.
        systems: names of the systems, the reference last.
    """

    items: Mapping[str, Item]
    raters: tuple[tuple[str, ...], ...]
    systems: tuple[str, ...]
    about: Mapping[str, Mapping[str, Any]]
    seed: int


def design(
    systems: Sequence[System],
    *,
    items: int = 20,
    raters: int = 20,
    per_rater: int = 5,
    seed: int | None = None,
) -> Study:
    """Draw contexts, give replies their codes, and deal the contexts out to raters.

    A rater who is given a context sees every system's reply to it, so that each system is rated
    equally often by each rater on the same contexts. Contexts are given out equally often, up to
    one.

    Args:
        systems: at least one; the reference joins them.
        items: distinct contexts, drawn without replacement.
        raters: how many people.
        per_rater: contexts that each is given.
        seed: of every random choice, with the texts of all predictions; None: drawn and secret.
            Who knows it, and has the predictions, can make the key.

    Raises:
        ConfigError: for numbers that do not fit together, or names that clash.
        DataError: if the systems did not answer the same questions.
    """
    same_instances(systems)
    names = [*(system.name for system in systems), REFERENCE]
    clash = [name for name, count in Counter(names).items() if count > 1]
    if clash:
        raise ConfigError(
            f"two systems are called {clash[0]!r}; expected names of their own, and none called "
            f"{REFERENCE}: rename the run folder or file"
        )
    _check_numbers(len(systems[0].predictions), items, raters, per_rater)
    seed = secrets.randbits(128) if seed is None else seed
    rng = random.Random(f"dpft study {seed} {_digest(systems)}")
    drawn = rng.sample(range(len(systems[0].predictions)), items)
    codes = _codes(rng, items * len(names))
    by_entry = [_replies(systems, place, entry, rng, codes) for entry, place in enumerate(drawn, 1)]
    dealt = _deal(items, raters, per_rater, rng)
    orders = []
    for entries in dealt:
        order: list[str] = []
        for entry in entries:
            order += rng.sample([item.code for item in by_entry[entry]], len(by_entry[entry]))
        orders.append(tuple(order))
    return Study(
        {item.code: item for group in by_entry for item in group},
        tuple(orders),
        tuple(names),
        {system.name: system.about for system in systems},
        seed,
    )


def _digest(systems: Sequence[System]) -> str:
    """Of every text: from a form, which shows some of them, its codes cannot be drawn again."""
    texts = [[p.prediction for p in system.predictions] for system in systems]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def same_instances(systems: Sequence[System]) -> None:
    """Refuse systems that answered other questions than most of them.

    Raises:
        DataError: naming the system and the first line that differs.
    """
    if not systems:
        raise ConfigError("no runs given; type dpft study make RUN... --out FOLDER")
    asked = [[(p.source, p.references) for p in system.predictions] for system in systems]
    usual = max(range(len(systems)), key=lambda i: (asked.count(asked[i]), -i))
    common = asked[usual]
    for system, questions in zip(systems, asked, strict=True):
        if questions == common:
            continue
        against = systems[usual].name
        remedy = "decode all runs from the same split of the same data"
        if len(questions) != len(common):
            raise DataError(
                f"{system.name} has {len(questions)} predictions, {against} has {len(common)}; "
                f"expected the same instances: {remedy}"
            )
        line = next(i for i, pair in enumerate(questions) if pair != common[i])
        source = questions[line][0] != common[line][0]
        raise DataError(
            f"{system.name} answers other instances than {against}: line {line + 1} has "
            f"{'another source' if source else 'other references'}; expected the same instances in "
            f"the same order: {remedy}"
        )
    if not any(source.strip() for source, _ in common):
        raise DataError(
            f"the predictions of {systems[usual].name} have no source; expected the context that "
            "raters are to see: decode again with dpft decode"
        )


def _check_numbers(instances: int, items: int, raters: int, per_rater: int) -> None:
    for name, value in (("items", items), ("raters", raters), ("per-rater", per_rater)):
        if value < 1:
            raise ConfigError(f"--{name} is {value}; expected at least 1")
    if items > instances:
        raise ConfigError(
            f"--items is {items}, but the runs answer {instances} instances; expected at most as "
            "many"
        )
    if per_rater > items:
        raise ConfigError(
            f"--per-rater is {per_rater} for --items {items}; nobody rates a context twice: "
            "expected at most as many"
        )
    if raters * per_rater < items:
        raise ConfigError(
            f"{raters} raters with {per_rater} contexts each rate {raters * per_rater} of "
            f"{items} contexts; expected all: lower --items, or raise --raters or --per-rater"
        )


def _codes(rng: random.Random, count: int) -> list[str]:
    codes: dict[str, None] = {}
    while len(codes) < count:
        codes["".join(rng.choices(_LETTERS, k=_CODE_LENGTH))] = None
    return list(codes)


def _replies(
    systems: Sequence[System], place: int, entry: int, rng: random.Random, codes: list[str]
) -> list[Item]:
    """The replies to one context; equal ones are one item."""
    predictions = [system.predictions[place] for system in systems]
    texts = [(s.name, p.prediction) for s, p in zip(systems, predictions, strict=True)]
    texts.append((REFERENCE, rng.choice(predictions[0].references)))
    writers: dict[str, list[str]] = {}
    for name, text in texts:
        writers.setdefault(text.strip(), []).append(name)
    context = predictions[0].source.strip()
    return [
        Item(codes.pop(), entry, context, text, tuple(names)) for text, names in writers.items()
    ]


def _deal(items: int, raters: int, per_rater: int, rng: random.Random) -> list[list[int]]:
    """For each rater distinct contexts; of those given out least so far, any."""
    given = [0] * items
    dealt = []
    for _ in range(raters):
        order = sorted(rng.sample(range(items), items), key=lambda entry: given[entry])
        chosen = order[:per_rater]
        for entry in chosen:
            given[entry] += 1
        rng.shuffle(chosen)
        dealt.append(chosen)
    return dealt
