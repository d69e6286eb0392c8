"""The marker of a finished run, which lists its files.

``DONE`` is the marker and the list of what a finished run consists of, with size and SHA-256 of
each file: record, ledger, settings, model and generations. The card (``model/README.md``), pages of
``dpft report``, checkpoints and ``private/`` are not in it: they may be edited, made again or go.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.errors import RunError
from dpft.config.foreign import regular
from dpft.runs.atomic import parse_json, sha256_file, write_atomic
from dpft.runs.identity import opened, sealed

DONE = "DONE"
CARD = "model/README.md"
RECORD, LEDGER, CONFIG = "record.json", "ledger.jsonl", "config.yaml"
MODEL, ADAPTER, GENERATIONS = "model/", "adapter/", "generations/"


@dataclass(frozen=True)
class Marker:
    """The content of ``DONE``: hash of the configuration, and the files by path in the folder."""

    config_hash: str
    files: Mapping[str, dict[str, Any]]  # ``size`` and ``sha256`` of each


def read_marker(folder: Path) -> Marker | None:
    """Return the content of ``DONE``; None without one, or if it is damaged and proves nothing."""
    try:
        body = opened(parse_json(regular(folder / DONE).read_bytes()))
        return Marker(str(body["config_hash"]), body["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_finished(path: Path, digest: str) -> bool:
    """Return whether the configuration of this hash ran to its end in the folder; takes no lock."""
    marker = read_marker(path)
    return marker is not None and marker.config_hash == digest


def is_intact(path: Path, digest: str) -> bool:
    """Return whether it is finished, and record and ledger are what they were."""
    return is_finished(path, digest) and not damages(path, (RECORD, LEDGER))


def marked(folder: Path, config_hash: str) -> str:
    """Return the text of ``DONE`` for a run whose files are all as they should be."""
    found = [folder / name for name in (RECORD, LEDGER, CONFIG)]
    for part in (MODEL, ADAPTER, GENERATIONS):
        found += [file for file in (folder / part).rglob("*") if not file.name.startswith(".")]
    files = {
        file.relative_to(folder).as_posix(): {
            "sha256": sha256_file(file),
            "size": file.stat().st_size,
        }
        for file in sorted(found)
        if file.is_file() and file != folder / CARD
    }
    return _spelled(config_hash, files)


def _spelled(config_hash: str, files: Mapping[str, dict[str, Any]]) -> str:
    body = {"config_hash": config_hash, "files": files}
    return json.dumps(sealed(body), indent=1, sort_keys=True) + "\n"


def damages(folder: Path, parts: Sequence[str] = ()) -> list[str]:
    """Return files of a finished run that are gone or changed, and how; each is a clause.

    Hashing takes about 1 s for 500 MB, so name the parts where weights are not used.

    ``parts`` are names, or beginnings such as ``model/``, of what to check; all if empty.
    """
    marker = read_marker(folder)
    if marker is None:
        return []
    files = {n: s for n, s in marker.files.items() if not parts or n.startswith(tuple(parts))}
    found = []
    for name, state in files.items():
        file, expected = folder / name, state["size"]
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            found.append(f"{name} is gone")
        elif size != expected:
            found.append(f"{name} has {size:,} bytes, expected {expected:,}")
        elif sha256_file(file) != state["sha256"]:
            found.append(f"{name} is not what it was when the run was finished")
    return found


def check_whole(folder: Path, parts: Sequence[str] = ()) -> None:
    """Refuse a finished run of which something is damaged; the arguments are those of `damages`."""
    if found := damages(folder, parts):
        raise RunError(
            f"the finished run {folder} is damaged: {'; '.join(found)}; expected the "
            f"files that {DONE} lists. Put them back from a copy, or remove {DONE} and type dpft "
            f"train {shlex.quote(f'resume={folder}')}, which makes everything but the ledger again "
            "from the last checkpoint"
        )


@contextmanager
def replacing(folder: Path, file: Path, content: bytes | str) -> Iterator[None]:
    """Let a file of a finished run be replaced by this content, or made, without being damage.

    Inside, the marker does not list it: after a kill it is not checked. In other runs nothing
    happens. This process holds the lock of the run.
    """
    marker = read_marker(folder)
    if marker is None:
        yield
        return
    name = file.relative_to(folder).as_posix()
    others = {other: state for other, state in marker.files.items() if other != name}
    write_atomic(folder / DONE, _spelled(marker.config_hash, others))
    yield
    data = content.encode() if isinstance(content, str) else content
    files = {**others, name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}}
    write_atomic(folder / DONE, _spelled(marker.config_hash, files))
