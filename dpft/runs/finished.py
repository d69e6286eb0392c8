"""Whether a run is finished, and whether what it left is still what it was.

``DONE`` is the marker and the list of what a finished run consists of, with size and SHA-256 of
each file: record, ledger, settings, model and generations. The card (``model/README.md``), pages of
``dpft report``, checkpoints and ``private/`` are not in it: they may be edited, made again or go.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.files import regular
from dpft.runs.atomic import parse_json, sha256_file, write_atomic
from dpft.runs.errors import RunError
from dpft.runs.identity import opened, sealed

DONE = "DONE"
CARD = "model/README.md"
RECORD, LEDGER, CONFIG = "record.json", "ledger.jsonl", "config.yaml"
MODEL, ADAPTER, GENERATIONS = "model/", "adapter/", "generations/"

# Hashing takes about 1 s for 500 MB. Smaller files are always hashed; larger ones where weights are
# about to be used or the run's own command is typed, not where hundreds of runs are passed over.
_SMALL = 16 * 2**20

# One state that a file may be in; None: it is not there.
State = dict[str, Any] | None


@dataclass(frozen=True)
class Marker:
    """What ``DONE`` says.

    Attributes:
        config_hash: of the configuration that ran to its end.
        files: by path in the folder, the states that each may be in: two while it is replaced.
    """

    config_hash: str
    files: Mapping[str, Sequence[State]]

    def spelled(self) -> str:
        """The content of ``DONE``."""
        body = {"config_hash": self.config_hash, "files": dict(self.files)}
        return json.dumps(sealed(body), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Damage:
    """A file of a finished run that is not what it was.

    Attributes:
        name: its path in the run's folder.
        problem: what is wrong, as a clause.
    """

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


def read_marker(folder: Path) -> Marker | None:
    """What ``DONE`` says; None where there is none, or a damaged one, which proves nothing."""
    try:
        body = opened(parse_json(regular(folder / DONE).read_bytes()))
        return Marker(str(body["config_hash"]), body["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_finished(path: Path, digest: str) -> bool:
    """Whether the configuration of this hash ran to its end in the folder; takes no lock.

    Args:
        path: a run's folder, which need not exist.
        digest: see `config_hash`.
    """
    marker = read_marker(path)
    return marker is not None and marker.config_hash == digest


def is_intact(path: Path, digest: str) -> bool:
    """Whether it ran to its end and left what tables are made of as it is: a sweep asks no more.

    The arguments are those of `is_finished`.
    """
    return is_finished(path, digest) and not damages(path, (RECORD, LEDGER), thorough=False)


def marked(folder: Path, config_hash: str) -> Marker:
    """The marker of a run whose files are all as they should be."""
    files = {name: [state_of(folder / name)] for name in sorted(_listed(folder))}
    return Marker(config_hash, files)


def damages(folder: Path, parts: Sequence[str] = (), *, thorough: bool = True) -> list[Damage]:
    """What of a finished run is gone or not what it was; nothing of a run that is not finished.

    Args:
        folder: of the run.
        parts: names, or beginnings such as ``model/``, of what to look at; all if empty.
        thorough: whether large files are hashed too. Sizes are always compared.
    """
    marker = read_marker(folder)
    if marker is None:
        return []
    found = [
        damage
        for name, states in marker.files.items()
        if _is_part(name, parts)
        and (damage := _compared(folder / name, name, states, thorough)) is not None
    ]
    card, has_model = folder / CARD, any(name.startswith(MODEL) for name in marker.files)
    if has_model and _is_part(CARD, parts) and not (card.is_file() and card.stat().st_size):
        found.append(Damage(CARD, "is gone"))
    if not (folder / MODEL).is_dir() and any(d.name.startswith(MODEL) for d in found):
        return [*(d for d in found if not d.name.startswith(MODEL)), Damage(MODEL, "is gone")]
    return found


def check_whole(folder: Path, parts: Sequence[str] = ()) -> None:
    """Refuse to use a finished run that is damaged; the arguments are those of `damages`.

    Raises:
        RunError: naming what is damaged, and the command that mends it.
    """
    found = [d for d in damages(folder, parts) if d.name != CARD]
    if found:
        listed = "; ".join(map(str, found))
        raise RunError(
            f"the finished run {folder} is damaged: {listed}. Type dpft train "
            f"{shlex.quote(f'resume={folder}')}, which makes again what can be made again, "
            "or put back what is damaged from a copy"
        )


@contextmanager
def replacing(folder: Path, file: Path, content: bytes | str) -> Iterator[None]:
    """Inside, a file of a finished run may be replaced, or made: ``DONE`` is told.

    A kill inside leaves a marker that knows both states. In other runs nothing happens.

    Args:
        folder: of the run, whose lock this process holds.
        file: inside it.
        content: what the file will hold.

    Raises:
        OSError: the disk refused.
    """
    marker = read_marker(folder)
    if marker is None:
        yield
        return
    name = file.relative_to(folder).as_posix()
    before = state_of(file)
    # What was damaged is in no state that it may be in.
    old = [before] if before in marker.files.get(name, [None]) else []
    _tell(folder, marker, name, [*old, state_of_content(content)])
    yield
    _tell(folder, marker, name, [state_of_content(content)])


def _tell(folder: Path, marker: Marker, name: str, states: Sequence[State]) -> None:
    files = {**marker.files, name: states}
    write_atomic(folder / DONE, Marker(marker.config_hash, files).spelled())


def state_of(file: Path) -> State:
    """Size and SHA-256 of a file; None if it is not there."""
    try:
        return {"sha256": sha256_file(file), "size": file.stat().st_size}
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def state_of_content(content: bytes | str) -> State:
    """What `state_of` will say of a file with that content."""
    data = content.encode() if isinstance(content, str) else content
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _listed(folder: Path) -> Iterator[str]:
    names = [name for name in (RECORD, LEDGER, CONFIG) if (folder / name).is_file()]
    yield from names
    for part in (MODEL, ADAPTER, GENERATIONS):
        for path in (folder / part).rglob("*"):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and name != CARD and not path.name.startswith("."):
                yield name


def _is_part(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(name.startswith(part) for part in parts)


def _compared(file: Path, name: str, states: Sequence[State], thorough: bool) -> Damage | None:
    try:
        size = file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None if None in states else Damage(name, "is gone")
    sizes = [state["size"] for state in states if state is not None]
    if size not in sizes:
        return Damage(name, f"has {size:,} bytes, expected {sizes[-1]:,}")
    if (thorough or size <= _SMALL) and state_of(file) not in states:
        return Damage(name, "is not what it was when the run was finished")
    return None
