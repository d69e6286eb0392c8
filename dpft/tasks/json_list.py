"""Files that are one JSON list, read so that a message can name the line of an entry."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpft.config.errors import DataError
from dpft.tasks.sources import file_text

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def entries(
    path: Path, expected: str, decoder: json.JSONDecoder = _DECODER
) -> Iterator[tuple[str, Any]]:
    """Yield the place of each entry (``FILE, line N, entry M``) and the entry.

    Raises:
        DataError: naming file and line, if it cannot be read or is not a JSON list.
    """
    text = file_text(path, expected)
    at = _skip(text, 0)
    if not text.startswith("[", at):
        raise DataError(f"{path}, line 1: got {text[:40]!r}; expected {expected}")
    at = _skip(text, at + 1)
    line, counted, number = 1, 0, 0
    try:
        while number or not text.startswith("]", at):
            line, counted, number = line + text.count("\n", counted, at), at, number + 1
            entry, at = decoder.raw_decode(text, at)
            yield f"{path}, line {line}, entry {number}", entry
            at = _skip(text, at)
            if text.startswith("]", at):
                break
            if not text.startswith(",", at):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
            at = _skip(text, at + 1)
        at = _skip(text, at + 1)
        if at < len(text):
            raise json.JSONDecodeError("Extra data", text, at)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else line
        raise DataError(f"{path}, line {line}: {problem(error)}; expected {expected}") from error


def problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a text that `json` refused, as a clause."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (column {error.colno})"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return str(error).partition(":")[0]  # a number of thousands of digits


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
