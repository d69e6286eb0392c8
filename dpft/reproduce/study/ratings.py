"""Filled sheets, checked against the key."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.config.errors import DataError
from dpft.reproduce.study.sheet import SCALE, Key

_NEEDED = ("study", "rater", "item", "rating")
_EXPECTED = f"expected {', '.join(_NEEDED)} once each, as sheet.csv and the form's files have"


@dataclass(frozen=True)
class Rating:
    """One person's rating of one reply: ``value`` is 1 to 5, ``where`` its file and line."""

    rater: str
    item: str
    value: int
    where: str


@dataclass(frozen=True)
class Ratings:
    """All ratings of a study.

    Attributes:
        given: what was rated.
        missing: by rater, how many replies were shown and not rated.
    """

    given: tuple[Rating, ...]
    missing: dict[str, int]


def read_ratings(files: Sequence[Path], key: Key) -> Ratings:
    """Ratings of one or more files: whole sheets, parts of one, or files of the form.

    Rows without a rating are passed over, and counted as missing unless another row has it.

    Raises:
        DataError: naming file and line, for a row of another study, an unknown code, a reply that
            the rater was not given, a rating that is not 1 to 5, or one given twice.
    """
    given: dict[tuple[str, str], Rating] = {}
    for file in files:
        for rating in _read(file, key):
            first = given.setdefault((rating.rater, rating.item), rating)
            if first is not rating:
                raise DataError(
                    f"{rating.where}: rater {rating.rater} rates {rating.item} again, after "
                    f"{first.where}; expected once: leave one of them out"
                )
    if not given:
        raise DataError(f"no rating in {', '.join(map(str, files))}; expected some: fill the sheet")
    missing = {
        rater: count
        for rater, codes in key.raters.items()
        if (count := sum((rater, code) not in given for code in codes))
    }
    return Ratings(tuple(given.values()), missing)


def _read(file: Path, key: Key) -> Iterator[Rating]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            head, above = lines.readline(), 1
            if head.startswith("sep="):  # a line for spreadsheets
                head, above = lines.readline(), 2
            # Spreadsheets of many countries write semicolons, and some write tabs.
            delimiter = max(",;\t", key=head.count)
            names = next(csv.reader([head], delimiter=delimiter), [])
            if any(names.count(name) != 1 for name in _NEEDED):
                raise DataError(f"{file} has the columns {', '.join(names)}; {_EXPECTED}")
            reader = csv.DictReader(lines, names, delimiter=delimiter, strict=True)
            for row in reader:
                where = f"{file}, line {reader.line_num + above}"
                if None in row:
                    raise DataError(
                        f"{where}: got more cells than columns; expected {len(names)}: is a text "
                        "lacking its quotes?"
                    )
                rating = _rating(row, where, key)
                if rating is not None:
                    yield rating
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; {_EXPECTED}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV file in UTF-8 ({error}); {_EXPECTED}") from error


def _rating(row: dict[str, str | None], where: str, key: Key) -> Rating | None:
    study, rater, item, text = ((row[name] or "").strip() for name in _NEEDED)
    if not (study or rater or item or text):
        return None
    if study != key.study:
        raise DataError(
            f"{where}: got study {study!r}; expected {key.study!r}: give the key of the same sheet"
        )
    if item not in key.items:
        raise DataError(f"{where}: no item has the code {item!r}; expected one of the sheet's")
    if item not in key.raters.get(rater, ()):
        raise DataError(
            f"{where}: rater {rater!r} was not given item {item}; expected one of the "
            f"{len(key.raters)} raters with the replies that the sheet gives to each"
        )
    if not text:
        return None
    try:
        value = float(text)  # some spreadsheets write 4.0
    except ValueError:
        value = math.nan
    if value not in SCALE:
        raise DataError(
            f"{where}: got rating {text!r}; expected a whole number from {min(SCALE)} to "
            f"{max(SCALE)}"
        )
    return Rating(rater, item, int(value), where)
