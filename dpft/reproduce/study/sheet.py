"""The sheet and the form that raters get, and the key that they do not."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from dpft.config.errors import ConfigError, DataError
from dpft.reproduce.study.design import Study
from dpft.runs.atomic import write_atomic
from dpft.runs.errors import disk_report
from dpft.runs.wellformed import parse_json

QUESTION = (
    "How good is this reply, given what came before it? Think of how well it fits, how much it "
    "makes sense, and how well it is written."
)
SCALE = {1: "very poor", 2: "poor", 3: "fair", 4: "good", 5: "very good"}
COLUMNS = ("study", "rater", "entry", "item", "context", "reply", "rating")
_FORM = Path(__file__).with_name("form.html")
_PLACE = "@STUDY@"
# A spreadsheet runs a cell that begins so as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class KeyItem:
    """A reply: the number of its context, and who wrote it."""

    entry: int
    systems: tuple[str, ...]


@dataclass(frozen=True)
class Key:
    """What the codes stand for, as ``key.json`` holds it.

    Attributes:
        study: which study it is, by a digest of its rows; every row of a sheet repeats it.
        seed: of every random choice.
        systems: names in the order of the table, with what is said of each.
        items: by code.
        raters: by rater, the codes that the rater was given.
    """

    schema_version: Literal[1]
    mind: str
    study: str
    seed: int
    systems: Mapping[str, Mapping[str, Any]]
    items: Mapping[str, KeyItem]
    raters: Mapping[str, tuple[str, ...]]


_KEY = TypeAdapter(Key)


def write_study(study: Study, folder: Path) -> list[Path]:
    """Write ``sheet.csv``, ``form.html`` and ``key.json``.

    Raises:
        ConfigError: if a study is there already: its key is needed to read its ratings.
        DataError: if the folder cannot be written.
    """
    sheet, form, key = (folder / name for name in ("sheet.csv", "form.html", "key.json"))
    for file in (sheet, form, key):
        if file.exists():
            raise ConfigError(
                f"{file} exists: a study is there, whose ratings need its key. Give another folder "
                "with --out"
            )
    rows = _rows(study)
    digest = hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()
    # Begins with a letter: no spreadsheet takes it for a number.
    name = f"s{digest[:11]}"
    about = Key(
        schema_version=1,
        mind="not for raters: it says which system wrote which reply",
        study=name,
        seed=study.seed,
        systems={system: dict(study.about.get(system, {})) for system in study.systems},
        items={code: KeyItem(item.entry, item.systems) for code, item in study.items.items()},
        raters={str(i): codes for i, codes in enumerate(study.raters, 1)},
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(key, json.dumps(asdict(about), indent=2) + "\n", mode=0o600)
        # The mark at the start tells spreadsheets that it is UTF-8.
        write_atomic(sheet, _csv(name, rows).encode("utf-8-sig"))
        write_atomic(form, _form(name, study))
    except OSError as error:
        for file in (sheet, form, key):
            file.unlink(missing_ok=True)
        raise DataError(f"cannot write to {folder}: {disk_report(folder, error)}") from error
    return [sheet, form, key]


def read_key(path: Path) -> Key:
    """The key of a study.

    Raises:
        DataError: if it is not one.
    """
    try:
        return _KEY.validate_python(parse_json(path.read_bytes()))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; expected key.json") from error
    except ValueError as error:
        what = " ".join(str(error).split())
        raise DataError(
            f"{path} is not a key ({what}); expected key.json of dpft study make"
        ) from error


def cell(text: str) -> str:
    """A text that no spreadsheet runs: an apostrophe goes before what could be a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _rows(study: Study) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for number, codes in enumerate(study.raters, 1):
        entries: dict[int, int] = {}
        for code in codes:
            item = study.items[code]
            place = entries.setdefault(item.entry, len(entries) + 1)
            rows.append((str(number), str(place), code, item.context, item.reply))
    return rows


def _csv(name: str, rows: Sequence[tuple[str, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows([name, *map(cell, row), ""] for row in rows)
    return text.getvalue()


def _form(name: str, study: Study) -> str:
    data = {
        "study": name,
        "question": QUESTION,
        "scale": {str(value): words for value, words in SCALE.items()},
        "items": {
            code: {"entry": item.entry, "context": item.context, "reply": item.reply}
            # In order of code: that of the systems would give them away.
            for code, item in sorted(study.items.items())
        },
        "raters": study.raters,
    }
    text = json.dumps(data, ensure_ascii=False)
    for character in "<>&":
        # Inside a script element, "</script>" and "<!--" would end or change it.
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _FORM.read_text(encoding="utf-8").replace(_PLACE, text)
