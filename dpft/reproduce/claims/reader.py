"""A strict reader of files of claims: what is unknown, missing or said twice is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpft.config.errors import suggestion
from dpft.reproduce.claims.schema import (
    ORDERS,
    QUANTITIES,
    RANGES,
    BenchCheck,
    CellsCheck,
    Check,
    Claim,
    ClaimError,
    ComputedCheck,
    Expected,
    Pattern,
    Untestable,
    VariantsCheck,
)
from dpft.reproduce.papers import values
from dpft.reproduce.papers.reader import Place, strict_yaml
from dpft.reproduce.papers.schema import PaperError, Words

_NUMBER = re.compile(r"c\d{2}")
_SCALES = ("paper", "laptop")


def read(path: Path) -> list[Claim]:
    """The claims in a file, in its order; its name is the paper's.

    Raises:
        ClaimError: for the first place that does not follow the schema.
    """
    try:
        content = values.keys(strict_yaml(path), str(path))
        claims = [_claim(path.stem, number, one, path) for number, one in content.items()]
    except PaperError as error:
        raise ClaimError(str(error)) from error
    if not claims:
        raise ClaimError(f"{path} is empty; expected claims by number, as in c01")
    return claims


def _claim(paper: str, number: str, content: Any, path: Path) -> Claim:
    where = f"{path}, {number}"
    if not _NUMBER.fullmatch(number):
        raise ClaimError(f"{path} has a claim {number!r}; expected a number such as c01")
    place = Place(content, where)
    says = place.take("says", values.text)
    source = place.take("source", values.text)
    reading = place.take("reading", values.optional(values.text), None)
    listed = place.take("checks", values.listed)
    place.done()
    checks = tuple(_check(one, f"{where}, check {n}") for n, one in enumerate(listed, 1))
    if not checks:
        raise ClaimError(f"{where} has no checks; expected at least one, `cannot: why` if need be")
    return Claim(paper, number, says, source, checks, reading)


def _check(content: Any, where: str) -> Check:
    kinds: dict[str, Callable[[Place], Check]] = {
        "cells": _cells,
        "figure": _figure,
        "variants_of": _variants,
        "bench": _bench,
        "computed": _computed,
        "cannot": _cannot,
    }
    keys = values.keys(content, where)
    found = [kind for kind in kinds if kind in keys]
    if len(found) != 1:
        raise ClaimError(
            f"{where} has {' and '.join(found) or 'none'} of {', '.join(kinds)}; expected one, "
            "which tells the kind of check"
        )
    place = Place(content, where)
    check = kinds[found[0]](place)
    place.done()
    return check


def _figure(place: Place) -> CellsCheck:
    return _cells(place, figure=True)


def _cells(place: Place, *, figure: bool = False) -> CellsCheck:
    check = CellsCheck(
        table=place.take("figure" if figure else "cells", values.text),
        figure=figure,
        expected=place.take("expect", _expected),
        first=place.take("first", _pattern),
        second=place.take("second", _pattern, {}),
        where=place.take("where", _pattern, {}),
        free=place.take("free", values.words, ()),
        columns=place.take("columns", values.words, ()),
        printed=place.take("printed", _flag, not figure),
        ours=place.take("ours", _flag, True),
    )
    alone = check.expected.kind in ("best", "value")
    if alone == bool(check.second):
        raise ClaimError(
            f"{place.where} expects {check.expected.kind} "
            + ("and has a second; that is compared with nothing: leave it out" if alone else "")
            + ("" if alone else "and has no second; expected the labels of what it is compared to")
        )
    if not (check.printed or check.ours):
        raise ClaimError(f"{place.where} compares neither printed numbers nor ours; expected one")
    return check


def _variants(place: Place) -> VariantsCheck:
    variants = place.take("variants", values.by_column(values.words))
    check = VariantsCheck(
        table=place.take("variants_of", values.text),
        row=place.take("row", _pattern),
        column=place.take("column", values.text),
        expected=place.take("expect", _expected),
        variants=variants,
        pairs=place.take("pairs", _pairs),
        scales=place.take("scales", values.words, _SCALES),
    )
    for name in (name for pair in check.pairs for name in pair):
        if name not in variants:
            raise ClaimError(
                f"{place.where}, pairs: no variant is {name!r}{suggestion(name, variants)}; "
                f"expected {', '.join(variants)}"
            )
    if check.expected.kind in ("best", "value", "ratio"):
        raise ClaimError(
            f"{place.where} expects {check.expected.kind}; expected above, not_below, on_par or "
            "apart, which compare a pair of runs"
        )
    if not set(check.scales) <= set(_SCALES) or not check.scales:
        raise ClaimError(f"{place.where}, scales is {check.scales}; expected {_SCALES} or one")
    return check


def _bench(place: Place) -> BenchCheck:
    quantity = place.take("bench", values.text)
    if quantity not in QUANTITIES:
        raise ClaimError(
            f"{place.where}, bench is {quantity!r}{suggestion(quantity, QUANTITIES)}; expected "
            f"{', '.join(QUANTITIES)}"
        )
    low, high = place.take("ratio", _range)
    return BenchCheck(
        quantity=quantity,
        first=place.take("first", values.words),
        second=place.take("second", values.words),
        low=low,
        high=high,
        models=place.take("models", values.words),
        longest_at_least=place.take("tokens", values.optional(values.count), None),
        command=place.take("command", values.text),
    )


def _computed(place: Place) -> ComputedCheck:
    from dpft.reproduce.claims.computed import FUNCTIONS

    name = place.take("computed", values.text)
    if name not in FUNCTIONS:
        raise ClaimError(
            f"{place.where}, computed is {name!r}{suggestion(name, FUNCTIONS)}; expected one of "
            f"{', '.join(FUNCTIONS)}"
        )
    return ComputedCheck(name)


def _cannot(place: Place) -> Untestable:
    return Untestable(place.take("cannot", values.text))


def _expected(value: Any, where: str) -> Expected:
    if value in ORDERS:
        return Expected(str(value))
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, told),) = value.items()
        if kind == "value":
            number = values.number(told, where)
            return Expected("value", number, number)
        if kind in RANGES:
            return Expected(str(kind), *_range(told, where))
    raise ClaimError(
        f"{where} is {value!r}; expected {', '.join(ORDERS)}, or one of {', '.join(RANGES)} with "
        "its numbers, as in {apart: [3, 5]}"
    )


def _range(value: Any, where: str) -> tuple[float | None, float | None]:
    ends = values.listed(value, where)
    number = values.optional(values.number)
    if len(ends) != 2 or ends == [None, None]:
        raise ClaimError(f"{where} is {value!r}; expected [low, high], one of which may be null")
    low, high = number(ends[0], where), number(ends[1], where)
    if low is not None and high is not None and low > high:
        raise ClaimError(f"{where} is {value!r}; expected the lower end first")
    return low, high


def _pattern(value: Any, where: str) -> Pattern:
    found = {}
    for name, told in values.keys(value, where).items():
        given = told if isinstance(told, list) else [told]
        found[name] = tuple(values.labels({name: one}, where)[name] for one in given)
        if not given:
            raise ClaimError(f"{where}, {name} is empty; expected a label or several")
    return found


def _pairs(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    pairs: list[Words] = [values.words(pair, where) for pair in values.listed(value, where)]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise ClaimError(f"{where} is {value!r}; expected a list of [first, second]")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ClaimError(f"{where} is {value!r}; expected true or false")
    return value
