"""Whether a run is finished, and whether what it left is still what it was.

``DONE`` is the marker and the list of what a finished run consists of, with size and SHA-256 of
each file: record, ledger, settings, model and generations. The card (``model/README.md``), pages of
``dpft report``, checkpoints and ``private/`` are not in it: they may be edited, made again or go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.runs.atomic import sha256_file, write_atomic
from dpft.runs.errors import LedgerError, RunError
from dpft.runs.identity import canonical_json
from dpft.runs.ledger import read_ledger
from dpft.runs.wellformed import parse_json

DONE = "DONE"
CARD = "model/README.md"
RECORD, LEDGER, CONFIG = "record.json", "ledger.jsonl", "config.yaml"
MODEL, GENERATIONS = "model/", "generations/"

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
            None in a run that an earlier version finished.
    """

    config_hash: str
    files: Mapping[str, Sequence[State]] | None

    def spelled(self) -> str:
        """The content of ``DONE``."""
        body: dict[str, Any] = {"config_hash": self.config_hash}
        if self.files is not None:
            body["files"] = dict(self.files)
            body["sha256"] = _digest(body)
        return json.dumps(body, indent=1, sort_keys=True) + "\n"


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
        body = parse_json((folder / DONE).read_bytes())
        claimed = body.pop("sha256", None)
        if ("files" in body or claimed is not None) and claimed != _digest(body):
            return None
        return Marker(str(body["config_hash"]), body.get("files"))
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
    if marker.files is None:
        found = list(_by_form(folder))
    else:
        found = [
            damage
            for name, states in marker.files.items()
            if _is_part(name, parts)  # before anything is read
            and (damage := _compared(folder / name, name, states, thorough)) is not None
        ]
        if any(name.startswith(MODEL) for name in marker.files) and not _has_content(folder / CARD):
            found.append(Damage(CARD, "is gone"))
    found = [damage for damage in found if _is_part(damage.name, parts)]
    if not (folder / MODEL).is_dir() and any(d.name.startswith(MODEL) for d in found):
        return [*(d for d in found if not d.name.startswith(MODEL)), Damage(MODEL, "is gone")]
    return found


def check_whole(folder: Path, parts: Sequence[str] = (), *, thorough: bool = True) -> None:
    """Refuse to use a finished run that is damaged; the arguments are those of `damages`.

    Raises:
        RunError: naming what is damaged, and the command that mends it.
    """
    found = [d for d in damages(folder, parts, thorough=thorough) if d.name != CARD]
    if found:
        listed = "; ".join(map(str, found))
        raise RunError(
            f"the finished run {folder} is damaged: {listed}. Type dpft train resume={folder}, "
            "which makes again what can be made again, or put back what is damaged from a copy"
        )


def renamed(folder: Path, config_hash: str) -> str:
    """The content of ``DONE`` for the same files under another name of their configuration."""
    marker = read_marker(folder)
    return Marker(config_hash, marker.files if marker else None).spelled()


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
    if marker is None or marker.files is None:
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
    files = {**(marker.files or {}), name: states}
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
    for part in (MODEL, GENERATIONS):
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


def _has_content(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()


# --- runs of earlier versions, which listed nothing ---------------------------------------------


def _by_form(folder: Path) -> Iterator[Damage]:
    """What is plainly damaged: what is gone, what cannot be read, what contradicts the record."""
    if not _has_content(folder / CONFIG):
        yield Damage(CONFIG, "is gone")
    record = _record(folder / RECORD)
    if record is None:
        yield Damage(RECORD, "is gone or cannot be read")
    elif record["privacy"]["kind"] != "none" and not record.get("selection"):
        yield from _short_ledger(folder / LEDGER, record["privacy"]["steps_taken"])
    weights = [*(folder / MODEL).rglob("*.safetensors"), *(folder / MODEL).glob("*.bin")]
    if not weights:
        yield Damage("model/model.safetensors", "is gone")
    for file in weights:
        if file.suffix == ".safetensors" and not _as_long_as_it_says(file):
            yield Damage(file.relative_to(folder).as_posix(), "is cut short")
    if not _has_content(folder / CARD):
        yield Damage(CARD, "is gone")
    for split, name in (record or {}).get("generations", {}).items():
        lines = (folder / name).read_bytes().count(b"\n") if (folder / name).is_file() else 0
        expected = record["scores"].get(split, {}).get("examples", lines) if record else lines
        if lines == 0 or lines != expected:
            yield Damage(name, f"has {lines} lines, expected {expected or 'some'}")


def _record(file: Path) -> dict[str, Any] | None:
    try:
        record = parse_json(file.read_bytes())
        privacy = record["privacy"]
        whole = record["stage"] == "scored" and record["training"] and record["scores"]
        whole = whole and privacy["kind"] and isinstance(privacy["steps_taken"], int)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if whole else None


def _short_ledger(file: Path, steps: int) -> Iterator[Damage]:
    try:
        spent = read_ledger(file).steps_spent
    except LedgerError:
        spent = 0
        if file.exists():
            yield Damage(LEDGER, "cannot be read")
            return
    if spent != steps or not file.exists():
        yield Damage(LEDGER, f"holds {spent} steps, and the record tells of {steps}")


def _as_long_as_it_says(file: Path) -> bool:
    """Whether the header of a safetensors file fits its size; the weights are not looked at."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        try:
            header = parse_json(opened.read(length) if length < 2**30 else b"")
            ends = [t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, LookupError):
            return False
    return file.stat().st_size == 8 + length + max(ends, default=0)
