"""Reads pickles of plain values and 8-bit arrays, and runs nothing that is in them.

An ordinary unpickler calls whatever a file names. This one knows the handful of names that numpy's
arrays are pickled with, and gives each a stand-in that only collects bytes.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpft.config.errors import DataError


class _Array:
    """Stands in for an array until its bytes are there."""

    array: npt.NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        if not isinstance(dtype, _DType) or dtype.name not in ("u1", "uint8"):
            raise pickle.UnpicklingError("an array that is not of 8-bit numbers")
        if not isinstance(data, bytes | bytearray) or math.prod(shape) != len(data):
            raise pickle.UnpicklingError("an array whose shape does not fit its contents")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order=order)
        return self


class _DType:
    """Stands in for an array's type."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = name.decode() if isinstance(name, bytes) else name

    def __setstate__(self, state: Any) -> None:
        """Ignore the byte order and the like: one byte has none."""


def _encode(text: str, coding: str) -> bytes:
    if coding != "latin1":
        raise pickle.UnpicklingError(f"bytes coded as {coding}")
    return text.encode("latin-1")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Every name in pickles of numpy's arrays, from Python 2 to protocol 5. Before numpy 2 the
        # module was called numpy.core.
        match module.replace("numpy.core.", "numpy._core."), name:
            case "numpy", "ndarray":
                return _Array
            case "numpy", "dtype":
                return _DType
            case "numpy._core.multiarray", "_reconstruct":
                return lambda *_: _Array()
            case "numpy._core.numeric", "_frombuffer":
                return lambda *args: _Array().fill(*args)
            case "_codecs", "encode":
                return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not called")


def load(path: Path) -> dict[str, Any]:
    """Return a pickled dictionary, with keys as text and arrays of 8-bit numbers.

    Texts of Python 2 come out as bytes.
    """
    try:
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"a {type(content).__name__}")
        return {
            key.decode() if isinstance(key, bytes) else str(key): (
                value.array if isinstance(value, _Array) else value
            )
            for key, value in content.items()
        }
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; expected all files of the official archive"
        ) from error
    # A broken pickle can raise almost anything.
    except Exception as error:
        raise DataError(
            f"{path} is no pickle of plain values and 8-bit arrays: {error}; expected a dictionary "
            "of those"
        ) from error
