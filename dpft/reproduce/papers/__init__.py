"""Tables of the papers as data, one YAML file a table: ``<paper>/<number>.yaml``.

``docs/how-to/tables.md`` explains each key. Files are read strictly: an unknown, missing or
repeated key is an error with its place.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
)

from dpft.config.errors import ConfigError, DataError, suggestion

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent
# In the order of their publication.
PAPERS = ("li2022", "he2022", "bu2023")


class PaperError(DataError):
    """A file of data is malformed; the message names the file, the place and what belongs there."""


class FileSchema:
    """A mapping of a file, in which an unknown key is an error."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def _one_line(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a text")
    return " ".join(text.split())


def in_order(ends: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the two ends of a range, None being no bound; refuse the higher end first."""
    if None not in ends and ends[0] > ends[1]:
        raise ValueError(f"got {list(ends)}, expected [low, high], the lower end first")
    return ends


def _one_of(values: Mapping[str, bool]) -> BeforeValidator:
    return BeforeValidator(lambda value: values.get(str(value), value))


# `yes` is a truth value in YAML: strict types refuse it, so that it is quoted.
Label = Annotated[str, Strict()] | Annotated[float, Strict()] | None
Text = Annotated[str, AfterValidator(_one_line)]
Words = tuple[Text, ...]
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Interval = Annotated[tuple[Number, Number], AfterValidator(in_order)]
Range = Annotated[tuple[Number | None, Number | None], AfterValidator(in_order)]
# The values that a row may have, by label; one value needs no list in the file.
Pattern = Mapping[
    str,
    Annotated[
        tuple[Label, ...],
        BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
        Field(min_length=1),
    ],
]
# An epsilon of the whole row has no column.
Epsilons = Annotated[
    Mapping[str | None, Number],
    BeforeValidator(lambda value: value if isinstance(value, Mapping) else {None: value}),
]


def _names(value: Any) -> Any:
    return () if value is None else [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Column(FileSchema):
    """One printed metric: ``factor`` times the first of ``metrics`` that a record has.

    Without ``metrics`` dpft does not measure it. Only its own runs need the overrides ``run``.
    """

    key: str
    label: Text
    decimals: Annotated[int, Strict(), Field(ge=0)]
    metrics: Annotated[Words, BeforeValidator(_names), Field(alias="metric")]
    higher_is_better: Annotated[
        Flag, _one_of({"higher": True, "lower": False}), Field(alias="better")
    ]
    split: Text
    factor: Number = 1.0
    run: Words = ()
    unit: Text | None = None
    at_laptop: Annotated[Flag, _one_of({"skip": False}), Field(alias="laptop")] = True


@dataclass(frozen=True)
class Row(FileSchema):
    """One printed row; ``labels`` distinguish it, numbers are by column.

    In ``printed`` None is a dash. ``run`` are overrides at the paper's scale, None where dpft does
    not run it, because of ``why``. What is ``unexplained`` was printed after a plus-minus sign and
    enters no computation. ``epsilons`` are by accountant, then by column: None where one number is
    of the whole row. The paper took the row from ``taken_from``; ``marks`` are remarks.
    """

    labels: Annotated[Mapping[str, Label], Field(alias="is", min_length=1)]
    printed: Mapping[str, Number | None]
    run: Words | None = None
    std: Mapping[str, Number] = field(default_factory=dict)
    ci95: Mapping[str, Interval] = field(default_factory=dict)
    unexplained: Mapping[str, Number] = field(default_factory=dict)
    epsilons: Mapping[Literal["rdp", "gdp_clt", "prv"], Epsilons] = field(default_factory=dict)
    taken_from: Annotated[Text | None, Field(alias="from")] = None
    why: Text | None = None
    marks: Words = ()

    def __post_init__(self) -> None:
        if self.run is None and self.taken_from is None and self.why is None:
            raise ValueError("got none of run, from and why, expected one of them")
        if self.run is None and self.epsilons:
            raise ValueError("got epsilons without a run, whose settings they are computed from")

    @property
    def name(self) -> str:
        """Its labels in one line: ``GPT-2, full, 3``."""
        return ", ".join(map(show_label, self.labels.values()))

    def matches(self, pattern: Pattern) -> bool:
        """Return whether it has one of the pattern's values for each of the pattern's labels."""
        return all(self.labels.get(name) in values for name, values in pattern.items())


@dataclass(frozen=True)
class Laptop(FileSchema):
    """The same table on small models and subsets, which ``says`` names.

    ``setting`` replaces the table's, ``swap`` single overrides; ``skip`` are rows left out.
    """

    setting: Words
    says: Text
    swap: Mapping[str, Words] = field(default_factory=dict)
    skip: tuple[Pattern, ...] = ()


@dataclass(frozen=True)
class PaperTable(FileSchema):
    """A printed table; ``unequal`` says why some printed epsilons do not follow from it."""

    paper: str
    number: str
    title: Text
    source: Text
    seeds: Annotated[int, Strict(), Field(ge=1)] | None
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    setting: Words = ()
    unknown: Words = ()
    choices: Words = ()
    laptop: Laptop | None = None
    unequal: Text | None = None
    notes: Words = ()

    @property
    def name(self) -> str:
        """The table as it is typed: ``li2022/2``."""
        return f"{self.paper}/{self.number}"

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(self.rows[0].labels)

    @property
    def scales(self) -> tuple[str, ...]:
        return ("paper",) if self.laptop is None else ("paper", "laptop")

    def at(self, scale: str) -> Self:
        """Return the table with the rows and columns of one of its scales alone."""
        laptop = self.laptop
        if laptop is None or scale != "laptop":
            return self
        rows = tuple(row for row in self.rows if not any(map(row.matches, laptop.skip)))
        return replace(self, rows=rows, columns=tuple(c for c in self.columns if c.at_laptop))


def show_label(value: Label) -> str:
    """Return a label as it is printed: ``3`` for 3.0, a dash for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:g}"


_TABLE = TypeAdapter(PaperTable)
# The loader that is written in C is ten times faster, where it is installed.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """YAML in which a repeated key is an error: PyYAML would silently drop the first value."""


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float) or key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is given twice or is no word", key_node.start_mark
            )
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load(paper: str, number: str) -> PaperTable:
    """Return the table ``paper/number``."""
    name, known = f"{paper}/{number}", names()
    if name not in known:
        raise ConfigError(
            f"there is no table {name!r}{suggestion(name, known)}; expected one of "
            f"{', '.join(known) or '(none are here)'}: type dpft table for their titles"
        )
    return read(ROOT / paper / f"{number}.yaml")


def names() -> list[str]:
    """Return every table as it is typed, papers by year, numbers in natural order."""

    def place(name: str) -> tuple[Any, ...]:
        paper, _, number = name.partition("/")
        year = PAPERS.index(paper) if paper in PAPERS else len(PAPERS)
        return year, paper, int("".join(re.findall(r"^\d+", number)) or 1000), number

    return sorted((f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml")), key=place)


def read(path: Path, *, is_list: bool = False) -> PaperTable:
    """Return the table in a file; its folder is the paper, its name the number.

    In a figure's list of runs rows may leave ``printed`` out: these numbers are NaN.
    """
    content: Any = strict_yaml(path)
    if isinstance(content, dict):
        content |= {"paper": path.resolve().parent.name, "number": path.stem}
        split, columns, rows = content.pop("split", "test"), *map(content.get, ("columns", "rows"))
        if isinstance(columns, dict):
            content["columns"] = [
                {"split": split} | one | {"key": key} if isinstance(one, dict) else one
                for key, one in columns.items()
            ]
        if is_list and isinstance(rows, list):
            content["rows"] = [
                {"printed": {}} | row if isinstance(row, dict) else row for row in rows
            ]
    table = validated(_TABLE, content, path)
    for problem in _problems(table):
        raise PaperError(f"{path}: {problem}")
    if not is_list:
        return table
    unknown = {column.key: math.nan for column in table.columns}
    rows = tuple(replace(row, printed=unknown | dict(row.printed)) for row in table.rows)
    return replace(table, rows=rows)


def strict_yaml(path: Path) -> Any:
    """Return the content of a file; raise PaperError if it cannot be read or is not YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise PaperError(f"{path} cannot be read: {error}; expected a file of data") from error
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        raise PaperError(f"{path} is not YAML: {what}; correct that line") from error


def validated(schema: TypeAdapter[T], content: Any, path: Path) -> T:
    """Return content of `strict_yaml` as its schema has it; a PaperError names the first fault."""
    try:
        return schema.validate_python(content)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False)[0]
    place = ".".join(map(str, error["loc"]))
    raise PaperError(f"{path}: {place}: {error['msg']}; got {str(error['input'])[:80]!r}")


def _problems(table: PaperTable) -> Iterator[str]:
    """Yield what the schema cannot see: unknown columns, equal rows, overrides without effect."""
    known = [column.key for column in table.columns]
    seen: set[tuple[Any, ...]] = set()
    for row in table.rows:
        used = [*row.printed, *row.std, *row.ci95, *row.unexplained]
        used += [key for printed in row.epsilons.values() for key in printed if key is not None]
        for key in (key for key in used if key not in known):
            near = suggestion(key, known)
            yield f"row {row.name}: got column {key!r}{near}, expected {', '.join(known)}"
        if tuple(row.labels) != table.label_names:
            yield f"row {row.name}: expected the labels {list(table.label_names)}, in this order"
        values = tuple(row.labels.values())
        if values in seen:
            yield f"row {row.name}: another row has the same labels; expected another `is`"
        seen.add(values)
    if table.laptop is None:
        return
    words = {*table.setting, *(word for column in table.columns for word in column.run)}
    words |= {word for row in table.rows for word in row.run or ()}
    for word in table.laptop.swap:
        if word not in words:
            yield f"laptop.swap: no override is {word!r}{suggestion(word, words)}"
    for labels in table.laptop.skip:
        if not any(row.matches(labels) for row in table.rows):
            yield f"laptop.skip: no row is {dict(labels)}"
