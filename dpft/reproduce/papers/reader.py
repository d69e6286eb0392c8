"""A strict reader of data files: what is unknown, missing or given twice is refused by place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from dpft.config.errors import suggestion
from dpft.reproduce.papers.schema import PaperError, PaperTable

T = TypeVar("T")

_TABLE = TypeAdapter(PaperTable)
_ONE_OF = {"rows": "row", "columns": "column", "runs": "run", "checks": "check"}
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
        raise PaperError(f"{path} cannot be read: {error}; expected a file of data") from error
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        raise PaperError(f"{path} is not YAML: {what}; correct that line") from error


def validated(schema: TypeAdapter[T], content: Any, path: Path) -> T:
    """The content of the file ``path``, from `strict_yaml`, as its schema has it.

    Raises:
        PaperError: for the first place that does not follow the schema.
    """
    try:
        return schema.validate_python(content)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False)[0]
    *outer, last = error["loc"] or ("",)
    if error["type"] == "missing":
        text = f"{_place(content, outer)} lacks {last!r}; expected that key and its value"
    elif error["type"] == "unexpected_keyword_argument":
        near = suggestion(str(last), _keys(schema))
        text = f"{_place(content, outer)} has an unknown key {last!r}{near}"
    elif error["type"] == "value_error":
        text = f"{_place(content, error['loc'])} {error['ctx']['error']}"
    else:
        expected = error["msg"].replace("Input should be", "expected")
        text = f"{_place(content, error['loc'])} is {error['input']!r}; {expected}"
    raise PaperError(f"{path}{text}")


def _keys(schema: TypeAdapter[Any]) -> set[str]:
    """Every key that a file of this schema may have anywhere."""
    whole = schema.json_schema()
    parts = [whole, *whole.get("$defs", {}).values()]
    return {key for part in parts for key in part.get("properties", ())}


def _place(content: Any, location: Sequence[str | int]) -> str:
    """Where something stands: ``, row 2 (full, 3), printed, bleu``."""
    parts: list[str] = []
    for part in location:
        if part == "[key]":
            continue
        try:
            content = content[part]
        except (LookupError, TypeError):
            content = None
        name = str(part + 1 if isinstance(part, int) else part)
        if isinstance(content, Mapping) and parts == ["columns"]:
            name = str(content.get("key", name))  # a mapping in the file
        if parts and parts[-1] in _ONE_OF:
            parts[-1] = f"{_ONE_OF[parts[-1]]} {name}"
        else:
            parts.append(name)
        labels = content.get("is") if isinstance(content, Mapping) else None
        if isinstance(labels, Mapping):
            parts[-1] += f" ({', '.join(map(str, labels.values()))})"
    return "".join(f", {part}" for part in parts)


def read(path: Path, *, is_list: bool = False) -> PaperTable:
    """The table in a file; its folder is the paper, its name the number.

    Args:
        path: of the file.
        is_list: whether it is a figure's list of runs, whose rows may leave ``printed`` out. What
            a row does not print is NaN, and still has a run.

    Raises:
        PaperError: if it is missing, or for the first place that does not follow the schema.
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
    for problem in (*_row_problems(table), *_laptop_problems(table)):
        raise PaperError(f"{path}, {problem}")
    if not is_list:
        return table
    unknown = {column.key: math.nan for column in table.columns}
    return replace(
        table, rows=tuple(replace(r, printed=unknown | dict(r.printed)) for r in table.rows)
    )


def _row_problems(table: PaperTable) -> Iterator[str]:
    """Columns that are not there, and rows that cannot be distinguished."""
    known = [column.key for column in table.columns]
    seen: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(table.rows, 1):
        where = f"row {number} ({row.name})"
        used = [*row.printed, *row.std, *row.ci95, *row.unexplained]
        used += [key for printed in row.epsilons.values() for key in printed if key is not None]
        for key in used:
            if key not in known:
                near = suggestion(key, known)
                yield f"{where} has an unknown column {key!r}{near}; expected {', '.join(known)}"
        if tuple(row.labels) != table.label_names:
            yield (
                f"{where} has the labels {', '.join(row.labels)}; expected "
                f"{', '.join(table.label_names)}, in this order, as in the first row"
            )
        values = tuple(row.labels.values())
        if values in seen:
            yield f"{where} is row {seen[values]} again; expected another `is`"
        seen[values] = number


def _laptop_problems(table: PaperTable) -> Iterator[str]:
    """A swap, skip or run that would silently do nothing."""
    if table.laptop is None:
        return
    words = {*table.setting, *(word for column in table.columns for word in column.run)}
    words |= {word for row in table.rows for word in row.run or ()}
    for word in table.laptop.swap:
        if word not in words:
            yield (
                f"laptop, swap: no override is {word!r}{suggestion(word, words)}; expected one of "
                "the setting, of a column or of a row"
            )
    for labels in table.laptop.skip:
        if not any(row.matches(labels) for row in table.rows):
            yield f"laptop, skip: no row is {dict(labels)}"
