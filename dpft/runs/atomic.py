"""Files that are either wholly there or not there, whenever the process is killed."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpft.config.files import regular


def write_atomic(path: Path, data: bytes | str, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``; a reader sees the old or the new content, never a mixture.

    Durable on return: file and folder entry are fsynced. On failure the old content stays and the
    temporary file is removed. The process's umask applies to ``mode``, which is in force from the
    first byte on.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = temporary_of(path)
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def owners_folder(path: Path) -> None:
    """A folder that only its owner may look into, made if need be, whatever the process's umask."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o777 != 0o700:  # a copied folder may have lost it
        path.chmod(0o700)


def temporary_of(path: Path) -> Path:
    """Where `write_atomic` prepares a file.

    One fixed name: a leftover of a killed process is overwritten instead of piling up.
    """
    return path.with_name(f".{path.name}.tmp")


def fsync_file(path: Path) -> None:
    """Make the content of an already written file survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directory(path: Path) -> None:
    """Make creations and renames inside a folder survive a power cut."""
    fsync_file(path)


def fsync_tree(folder: Path) -> None:
    """Make all that lies in a folder survive a power cut; others wrote it."""
    for path in (*folder.rglob("*"), folder):
        if path.is_file() or path.is_dir():
            fsync_file(path)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, read in pieces, as hex."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(text: str | bytes, infinities: bool = False) -> Any:
    """Return the content of a JSON text in UTF-8."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON number")

    try:
        # Of bytes, Python would guess the encoding.
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, parse_constant=float if infinities else refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


class Closing(ABC):
    """A class with `close` that is a context manager."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
