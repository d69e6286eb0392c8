"""Functions compared by what they do: libraries have copies of a class in many modules."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any


def code_of(function: Any) -> tuple[Any, ...]:
    """What a function does, but for the names of its local variables; empty for one in C."""
    code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else (code.co_code, code.co_consts, code.co_names, code.co_argcount)
