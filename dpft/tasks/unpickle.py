"""Reads pickles of plain values and 8-bit arrays, and runs nothing that is in them.

An ordinary unpickler calls whatever a file names. This one knows a handful of names, those that
numpy's arrays are pickled with, and gives each a stand-in of its own that only collects bytes.
What a file may make is limited as well: a few bytes of it can ask for many objects, or for one
text again and again.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dpft.config.errors import DataError

# Instructions of a pickle: of the 50,000 images of CIFAR-100, each with two labels and a file name,
# there are about 400,000.
_MOST = 2_000_000


class _Array:
    """Stands in for an array until its bytes are there."""

    array: npt.NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.array = _as_array(data, dtype, shape, "F" if fortran else "C")


class _DType:
    """Stands in for an array's type."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = name.decode() if isinstance(name, bytes) else name

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: one byte has none."""


def _as_array(data: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[np.uint8]:
    if not isinstance(dtype, _DType) or dtype.name not in ("u1", "uint8"):
        raise pickle.UnpicklingError("an array that is not of 8-bit numbers")
    if not isinstance(data, bytes | bytearray) or math.prod(shape) != len(data):
        raise pickle.UnpicklingError("an array whose shape does not fit its contents")
    return np.frombuffer(data, np.uint8).reshape(shape, order=order)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    found = _Array()
    found.array = _as_array(data, dtype, shape, order)
    return found


# What pickles of numpy's arrays name, from Python 2 to protocol 5; before numpy 2 the module was
# called numpy.core.
_KNOWN: Mapping[tuple[str, str], Any] = MappingProxyType(
    {
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    }
)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], most: int) -> None:
        super().__init__(file, encoding="bytes")
        self._left = most

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        known = _KNOWN.get((module.replace("numpy.core.", "numpy._core."), name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not called")
        return known

    def _encode(self, text: str, coding: str) -> bytes:
        if coding != "latin1":
            raise pickle.UnpicklingError(f"bytes coded as {coding}")
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("one text coded again and again")
        return text.encode("latin-1")


def load(file: IO[bytes], where: str, most: int) -> dict[str, Any]:
    """The pickled dictionary, with its keys as text and its arrays of 8-bit numbers as such.

    Args:
        file: opened for reading bytes; text of Python 2 comes out as bytes.
        where: the file, for the message.
        most: bytes that it may have.

    Raises:
        DataError: if it holds anything else, or more.
    """
    data = file.read(most + 1)
    if len(data) > most:
        raise DataError(f"{where} unpacks to more than {most:,} bytes; expected less")
    try:
        for number, _ in enumerate(pickletools.genops(data)):
            if number == _MOST:
                raise pickle.UnpicklingError(f"more than {_MOST:,} values")
        content = _Unpickler(io.BytesIO(data), most).load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"a {type(content).__name__}")
        return {
            key.decode() if isinstance(key, bytes) else str(key): (
                value.array if isinstance(value, _Array) else value
            )
            for key, value in content.items()
        }
    # A broken pickle can raise almost anything.
    except Exception as error:
        raise DataError(
            f"{where} is no pickle of plain values and 8-bit arrays: {error}; expected a "
            "dictionary of those"
        ) from error
