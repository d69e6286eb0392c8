"""What large data are made into is kept for the next run: under which conditions, and where."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dpft
from dpft.config.schema import Run
from dpft.runs.array_store import Arrays, ArrayStore, ArrayWriter
from dpft.runs.errors import disk_report
from dpft.runs.folders import PRIVATE, run_path

_PACKAGES = ("tokenizers", "transformers", "pyarrow")


@dataclass(frozen=True)
class Keeping:
    """Where what is large is kept for the next run.

    Attributes:
        store: of arrays.
        warn: called with the reason why nothing can be kept.
        say: called with what is waited for.
    """

    store: ArrayStore
    warn: Callable[[str], None]
    say: Callable[[str], None]

    def get(self, what: str, identity: str, fill: Callable[[ArrayWriter], Any]) -> Arrays | None:
        """The arrays of an identity; None, and a warning, if they cannot be kept."""
        waiting = f"waiting for another run, which prepares {what} in {self.store.folder}"
        try:
            return self.store.get(identity, fill, lambda: self.say(waiting))
        except OSError as error:
            self.warn(
                f"{what} cannot be kept in {self.store.folder}: "
                f"{disk_report(self.store.folder.parent, error)}; this run goes on in memory, and "
                "the next one begins anew. Free some space, or type cache=FOLDER for another "
                "place, or cache=none"
            )
            return None


def keeping_of(run: Run, warn: Callable[[str], None], say: Callable[[str], None]) -> Keeping | None:
    """Where a run keeps what is large, as ``cache=`` has it: beside the run by default."""
    if run.cache == "none":
        return None
    beside = run_path(run).absolute().parent / PRIVATE / "cache"
    folder = beside if run.cache == "auto" else Path(run.cache).absolute() / PRIVATE / "cache"
    return Keeping(ArrayStore(folder), warn, say)


def settings(thing: Any, beside: Collection[str]) -> dict[str, str]:
    """The settings of a dataclass as text, but for some."""
    names = (field.name for field in dataclasses.fields(thing))
    return {name: repr(getattr(thing, name)) for name in names if name not in beside}


def code() -> str:
    """What arrays follow from beside data and settings: the code that makes them, and versions."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in sorted([*here.rglob("*.py"), *here.parent.glob("config/*.py")]):
        digest.update(file.read_bytes())
    return " ".join([dpft.__version__, digest.hexdigest(), *map(version, _PACKAGES)])


def is_ours(thing: Any) -> bool:
    """Whether all that decides what it makes is known: not of a class of somebody's own."""
    cls = thing if isinstance(thing, type) else type(thing)
    return cls.__module__.startswith("dpft.")
