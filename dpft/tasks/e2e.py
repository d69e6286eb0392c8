"""E2E NLG (Novikova et al. 2017): a meaning representation in, a restaurant sentence out.

Restaurants, landmarks and sentences of the generated sample are made up, in one house style with
fixed habits; only the format is the challenge's. The bundled tiny model is pretrained on other text
in the same format (``scripts/public_e2e.py``): it scores low here, and gains even when its
gradients are noisy.
"""

import csv
import hashlib
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from dpft.config.errors import DataError
from dpft.tasks.objectives.objective import Instance, Prediction, texts
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.samples import Words, article, generator, upper, vocabulary
from dpft.tasks.sources import CONVERTED, SAME_SPLITS, Dataset, Form, Hub, one_by_one, well_formed
from dpft.tasks.table_files import read_separated
from dpft.tasks.task import Generation

Split = Literal["train", "dev", "test"]
Record = dict[str, str]  # attribute -> value, in the order of the attributes

# Rows of each file, about four for a meaning representation where they are scored.
FILES: tuple[tuple[str, Split, int], ...] = (
    ("trainset.csv", "train", 4000),
    ("devset.csv", "dev", 300),
    ("testset_w_refs.csv", "test", 300),
)

_TEXT = vocabulary("e2e")
_PRESENCE: dict[str, float] = _TEXT["presence"]
_HOUSE = _TEXT["house"]


def gaps_of(value: str) -> dict[str, str]:
    """Return what fills the gaps of a wording about a value."""
    food = value.lower() if value == "Fast food" else f"{value} food"
    return {"v": value, "a": article(value), "food": food}


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
        _pick(rng, wordings, gaps_of(record[attribute]))
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


def attributes(rng: random.Random) -> list[str]:
    """Return attributes other than the name, at least two as in the challenge."""
    chosen: list[str] = []
    while len(chosen) < 2:
        chosen = [a for a, p in _PRESENCE.items() if rng.random() < p]
    return chosen


def _private_record(rng: random.Random) -> Record:
    chosen = attributes(rng)
    # The house is brief: most rows then fit the task's 100 tokens.
    kept = rng.sample(chosen, min(5, len(chosen)))
    words = {**_TEXT["private"], **_TEXT["values"]}
    return {a: rng.choice(words[a]) for a in ("name", *(a for a in chosen if a in kept))}


def generate(
    split: Split,
    count: int,
    seed: int = 0,
    *,
    part: str = "private",
    record: Callable[[random.Random], Record] = _private_record,
    reference: Callable[[Record, random.Random], str] = _private_reference,
    fewest: int = 3,
) -> list[tuple[str, str]]:
    """Return ``count`` pairs (mr, ref), such as ("name[Fig Fiddle], area[harbour]", "Stroll ...").

    Rows of one meaning representation, ``fewest`` or up to two more, are consecutive in dev and
    test, as in the official files; in train they are shuffled. Splits share no meaning
    representation.
    """
    rng = generator("e2e-sample-1", part, split, seed)
    rows: list[tuple[str, str]] = []
    seen: set[str] = set()
    while len(rows) < count:
        facts = record(rng)
        mr = ", ".join(f"{attribute}[{value}]" for attribute, value in facts.items())
        if mr in seen or split_of(mr) != split:
            continue
        seen.add(mr)
        wanted = rng.randint(fewest, fewest + 2)
        references: dict[str, None] = {}  # a dict keeps the order of first appearance
        for _ in range(4 * wanted):
            references[reference(facts, rng)] = None
            if len(references) == wanted:
                break
        rows.extend((mr, text) for text in references)
    rows = rows[:count]
    if split == "train":
        rng.shuffle(rows)
    return rows


def write_csvs(folder: Path, seed: int = 0) -> None:
    """Write the files of the challenge."""
    for file_name, split, count in FILES:
        write_csv(folder / file_name, generate(split, count, seed))


def write_csv(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write pairs (mr, ref) as the official files are: UTF-8 with the columns mr and ref."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("mr", "ref"), *rows])


_SLOT = re.compile(r"\s*([^\[\],][^\[\]]*?)\[([^\]]*)\]\s*(?:,|$)")
Row = tuple[str, str]


def read_csv(path: Path) -> list[Row]:
    """Read rows ``(mr, ref)`` of an official file."""
    rows = []
    for row in read_separated(path, ","):
        if [*row.values] != ["mr", "ref"]:
            raise DataError(f"{path} has columns {', '.join(row.values)}; expected mr,ref")
        rows.append(_checked([*row.values.values()], row.place))
    return rows


def _checked(row: Sequence[Any], where: str) -> Row:
    mr, reference = row
    if not all(isinstance(text, str) and text.strip() for text in row):
        raise DataError(f"{where}: got {row!r}; expected a meaning representation and a reference")
    if rest := _SLOT.sub("", mr).strip():
        raise DataError(
            f"{where}: got {rest!r} in meaning representation {mr!r}; expected attributes of the "
            "form name[value], ..."
        )
    return mr, well_formed(reference, where)


def _from_hub(row: Mapping[str, Any], where: str) -> Row:
    return _checked((row["meaning_representation"], row["human_reference"]), where)


def linearise(mr: str) -> str:
    """Return ``"name[Aromi], area[riverside]"`` as ``"name : Aromi | area : riverside"``.

    The form of Li & Liang 2021, whose files, which Li et al. 2022 used, name some attributes
    otherwise and hold tokenised references (docs/reference/tasks/e2e.md).
    """
    slots = ((match[1].strip(), match[2].strip()) for match in _SLOT.finditer(mr))
    return " | ".join(f"{name} : {value}" for name, value in slots)


@dataclass(frozen=True)
class E2E(Generation):
    """Describe restaurants; see ``conf/task/e2e.yaml``."""

    max_length: int = 100

    name = "e2e"
    written_as = "trainset.csv"
    record_is = "one row of the training file: a meaning representation with one reference sentence"
    dataset = Dataset(
        (Form({split: file for file, split, _ in FILES}, read_csv),),
        Hub("tuetschek/e2e_nlg", SAME_SPLITS, one_by_one(_from_hub), revision=CONVERTED),
        write_csvs,
    )

    def record(self, row: Row) -> TextRecord:
        mr, reference = row
        return TextRecord((linearise(mr),), reference)

    def write_records(self, rows: Sequence[Row] | None, targets: Sequence[str], path: Path) -> None:
        """Write a file that `read_csv` reads, with the meaning representations as they were."""
        write_csv(path, zip((mr for mr, _ in rows or ()), targets, strict=True))

    def instances(self, split: str) -> list[Instance]:
        """Return runs of consecutive rows with one meaning representation, as the scorer's."""
        runs = [list(run) for _, run in groupby(self.rows(split), key=lambda row: row[0])]
        return [
            Instance(self.record(run[0]), tuple(reference for _, reference in run))
            for run in runs[: self.limit_eval]
        ]

    def score(self, predictions: Sequence[Prediction]) -> dict[str, float]:
        from dpft.tasks.metrics import e2e_scores

        return e2e_scores.score(*texts(predictions))

    def signature(self) -> str:
        from dpft.tasks.metrics import e2e_scores

        return e2e_scores.signature()
