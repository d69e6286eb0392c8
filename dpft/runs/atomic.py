"""Files that are either wholly there or not there, whenever the process is killed."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Self

from dpft.config.foreign import regular


class Closing:
    """A context manager that calls `close` at its end."""

    def close(self) -> None:
        """Release what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def write_atomic(path: Path, data: bytes | str, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``; a reader sees the old or the new content, never a mixture.

    Durable on return: file and folder entry are fsynced. On failure the old content stays and the
    temporary file is removed. The process's umask applies to ``mode``, which is in force from the
    first byte on.
    """
    temporary = temporary_of(path)
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def temporary_of(path: Path) -> Path:
    """Return where `write_atomic` prepares a file: one name, so that leftovers do not pile up."""
    return path.with_name(f".{path.name}.tmp")


def owners_folder(path: Path) -> None:
    """Make a folder that only its owner may read, whatever the process's umask."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o777 != 0o700:  # a copied folder may have lost it
        path.chmod(0o700)


def fsync(path: Path) -> None:
    """Make a file's content, or the entries of a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Make all files and folders in a folder survive a power cut."""
    for path in (*folder.rglob("*"), folder):
        if path.is_file() or path.is_dir():
            fsync(path)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces, as hex."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(text: str | bytes, infinities: bool = False) -> Any:
    """Return the content of a JSON text in UTF-8; ValueError for anything else."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON number")

    try:
        # Given bytes, Python would guess the encoding.
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, parse_constant=float if infinities else refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def disk_report(path: Path, error: BaseException) -> str:
    """Return why a write failed and how many bytes are free, as a clause."""
    try:
        free = f"{shutil.disk_usage(path).free:,} bytes free there"
    except OSError:
        free = "free space unknown"
    return f"{error} ({free})"
