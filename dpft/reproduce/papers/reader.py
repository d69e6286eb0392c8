"""A strict reader of table files: what is unknown, missing or said twice is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dpft.config.errors import suggestion
from dpft.reproduce.papers import values
from dpft.reproduce.papers.schema import Column, Label, Laptop, PaperError, PaperTable, Row, Words

T = TypeVar("T")


# The one written in C is ten times faster, where it is there.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """YAML in which a key that is given twice is an error: the first would silently be lost."""


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


def strict_yaml(path: Path) -> Any:
    """The content of a file.

    Raises:
        PaperError: if it is missing or no YAML; names the line.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise PaperError(f"{path} cannot be read: {error}; expected a table's file") from error
    except yaml.YAMLError as error:
        told = " ".join(str(error).split())
        raise PaperError(f"{path} is not YAML: {told}; correct that line") from error


class Place:
    """A mapping of the file and where it stands, from which keys are taken one by one."""

    def __init__(self, content: Any, where: str) -> None:
        if not isinstance(content, Mapping):
            raise PaperError(f"{where} is {content!r}; expected keys with values")
        self.where = where
        self._content = dict(content)
        self._asked: list[str] = []

    def take(self, key: str, kind: Callable[[Any, str], T], *default: T) -> T:
        """A key's value as ``kind``; without a default the key must be there."""
        self._asked.append(key)
        if key not in self._content:
            if default:
                return default[0]
            raise PaperError(f"{self.where} lacks {key!r}; expected that key and its value")
        return kind(self._content.pop(key), f"{self.where}, {key}")

    def done(self) -> None:
        """Refuse what nobody asked for."""
        for key in self._content:
            raise PaperError(
                f"{self.where} has an unknown key {key!r}{suggestion(str(key), self._asked)}; "
                f"expected {', '.join(self._asked)}"
            )


def parse_table(content: Any, path: Path) -> PaperTable:
    """A table from what its file holds.

    Raises:
        PaperError: for the first place that does not follow the schema.
    """
    top = Place(content, str(path))
    title, source = top.take("title", values.text), top.take("source", values.text)
    split = top.take("split", values.text, "test")
    seeds = top.take("seeds", values.optional(values.count))
    columns = tuple(
        _column(key, value, split, f"{path}, column {key}")
        for key, value in top.take("columns", values.keys).items()
    )
    listed = top.take("rows", values.listed)
    rows = tuple(_row(row, columns, f"{path}, row {n}") for n, row in enumerate(listed, 1))
    if not rows or not columns:
        raise PaperError(f"{path} has no {'rows' if columns else 'columns'}; expected at least one")
    table = PaperTable(
        paper=path.resolve().parent.name,
        number=path.stem,
        title=title,
        source=source,
        seeds=seeds,
        columns=columns,
        rows=rows,
        setting=top.take("setting", values.words, ()),
        unknown=top.take("unknown", values.words, ()),
        choices=top.take("choices", values.words, ()),
        laptop=top.take("laptop", values.optional(_laptop), None),
        notes=top.take("notes", values.words, ()),
    )
    top.done()
    _check_labels(rows, path)
    if table.laptop is not None:
        _check_laptop(table, table.laptop, path)
    return table


def _column(key: str, content: Any, split: str, where: str) -> Column:
    place = Place(content, where)
    column = Column(
        key=key,
        label=place.take("label", values.text),
        decimals=place.take("decimals", values.digits),
        metrics=place.take("metric", values.metrics),
        factor=place.take("factor", values.number, 1.0),
        higher_is_better=place.take("better", values.better),
        split=place.take("split", values.text, split),
        run=place.take("run", values.words, ()),
        unit=place.take("unit", values.optional(values.text), None),
        at_laptop=place.take("laptop", values.at_laptop, True),
    )
    place.done()
    return column


def _row(content: Any, columns: tuple[Column, ...], where: str) -> Row:
    place = Place(content, where)
    labels = place.take("is", values.labels)
    place.where = where = f"{where} ({', '.join(map(str, labels.values()))})"
    row = Row(
        labels=labels,
        run=place.take("run", values.optional(values.words), None),
        printed=place.take("printed", values.by_column(values.optional(values.number))),
        std=place.take("std", values.by_column(values.number), {}),
        ci95=place.take("ci95", values.by_column(values.interval), {}),
        unexplained=place.take("unexplained", values.by_column(values.number), {}),
        epsilons=place.take("epsilons", values.epsilons, {}),
        taken_from=place.take("from", values.optional(values.text), None),
        why=place.take("why", values.optional(values.text), None),
        marks=place.take("marks", values.words, ()),
    )
    place.done()
    if row.run is None and row.taken_from is None and row.why is None:
        raise PaperError(
            f"{where} has none of run, from and why; expected the overrides of its run, whose "
            "number it is, or why dpft cannot run it"
        )
    if row.run is not None and row.taken_from is not None:
        raise PaperError(
            f"{where} has both run and from; a number taken from elsewhere is shown and never run: "
            "leave one out"
        )
    if row.run is None and row.epsilons:
        raise PaperError(f"{where} has epsilons and no run; they are computed from its settings")
    known = [column.key for column in columns]
    used = [*row.printed, *row.std, *row.ci95, *row.unexplained]
    used += [key for by_column in row.epsilons.values() for key in by_column if key is not None]
    for key in used:
        if key not in known:
            raise PaperError(
                f"{where} has an unknown column {key!r}{suggestion(key, known)}; expected "
                f"{', '.join(known)}"
            )
    return row


def _laptop(content: Any, where: str) -> Laptop:
    place = Place(content, where)
    skipped: list[Any] = place.take("skip", values.listed, [])
    added: list[Any] = place.take("runs", values.listed, [])
    laptop = Laptop(
        setting=place.take("setting", values.words),
        swap=place.take("swap", values.by_column(values.words), {}),
        skip=tuple(values.labels(item, f"{where}, skip") for item in skipped),
        runs=tuple(_laptop_run(item, f"{where}, runs") for item in added),
        says=place.take("says", values.text),
    )
    place.done()
    return laptop


def _laptop_run(content: Any, where: str) -> tuple[Mapping[str, Label], Words]:
    place = Place(content, where)
    found = place.take("is", values.labels), place.take("run", values.words)
    place.done()
    return found


def _check_labels(rows: Iterable[Row], path: Path) -> None:
    first: Row | None = None
    seen: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows, 1):
        first = first or row
        where = f"{path}, row {number} ({row.name})"
        if list(row.labels) != list(first.labels):
            raise PaperError(
                f"{where} is told by {', '.join(row.labels)}; expected {', '.join(first.labels)}, "
                "in this order, as in the first row"
            )
        key = tuple(row.labels.values())
        if key in seen:
            raise PaperError(f"{where} is row {seen[key]} again; expected another `is`")
        seen[key] = number


def _check_laptop(table: PaperTable, laptop: Laptop, path: Path) -> None:
    """Refuse a swap or skip that would silently do nothing."""
    words = {*table.setting, *(word for column in table.columns for word in column.run)}
    words |= {word for row in table.rows for word in table.run_of(row, "laptop") or ()}
    for word in laptop.swap:
        if word not in words:
            raise PaperError(
                f"{path}, laptop, swap: no override is {word!r}{suggestion(word, words)}; expected "
                "one of the setting, of a column or of a row"
            )
    for labels in laptop.skip:
        if not any(row.has(labels) for row in table.rows):
            raise PaperError(f"{path}, laptop, skip: no row is {dict(labels)}")
    for labels, _ in laptop.runs:
        here = [row for row in table.rows if row.has(labels)]
        if not here or any(row.run is not None for row in here):
            raise PaperError(
                f"{path}, laptop, runs: {dict(labels)} are {len(here)} rows; expected one or more, "
                "none of which has a run at the paper's scale"
            )
