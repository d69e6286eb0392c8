"""Read files of data strictly: an unknown, missing or repeated key is an error with its place."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.papers.schema import PAPERS, PaperError, PaperTable

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent
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

    def natural(name: str) -> tuple[Any, ...]:
        paper, _, number = name.partition("/")
        place = PAPERS.index(paper) if paper in PAPERS else len(PAPERS)
        parts = re.findall(r"\d+|\D+", number)
        return place, paper, [(0, int(x), "") if x.isdigit() else (1, 0, x) for x in parts]

    return sorted(
        (f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml")), key=natural
    )


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
        for key in used:
            if key not in known:
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
