"""What besides the ledger tells that steps were spent: a ledger that was lost is not begun anew."""

from __future__ import annotations

import re
from pathlib import Path

from dpft.runs.errors import START_OVER, LedgerMismatchError, LogError
from dpft.runs.finished import DONE, RECORD
from dpft.runs.ledger import read_ledger
from dpft.runs.lineage import FILE
from dpft.runs.log import read_log
from dpft.runs.metrics import REMEDY

# What a run writes when all of its steps were taken.
_AT_THE_END = (RECORD, DONE, "model", "generations")
_LOGS = ("metrics.jsonl", "norms.jsonl")
# A checkpoint of Hugging Face's Trainer that a `PrivateTrainer` has finished.
_OF_TRAINER = f"checkpoint-*/{FILE}"


def steps_evident(folder: Path, planned: int = 0) -> tuple[int, str]:
    """How many steps were spent at least, by what lies in a run's folder beside its ledger.

    Each of these is written after the ledger has the step, and after its line is durable.

    Args:
        folder: of the run.
        planned: how many steps the run is to take.

    Returns:
        The number, and the name of what tells it; 0 and nothing if nothing does.
    """
    found = [(_logged(folder / "private" / name), f"private/{name}") for name in _LOGS]
    for pattern in ("checkpoints/step-*", "private/audit/step-*", _OF_TRAINER):
        for path in folder.glob(pattern):
            name = path.relative_to(folder).as_posix()
            match = re.search(r"(?:/step|^checkpoint)-(\d+)(\.json|/dpft\.json)?$", name)
            found.append((int(match[1]) if match else 0, name))
    found += [(planned, name) for name in _AT_THE_END if _is_there(folder / name)]
    return max(found, key=lambda one: one[0], default=(0, ""))


def made_at_the_end(folder: Path) -> str | None:
    """What lies in a run's folder that is made when all of its steps were taken; None: nothing."""
    return next((name for name in _AT_THE_END if _is_there(folder / name)), None)


def check_ledger(folder: Path, planned: int) -> None:
    """Refuse a private run whose ledger counts fewer steps than were spent.

    Args:
        folder: of the run.
        planned: how many steps it is to take.

    Raises:
        LedgerMismatchError: the ledger, or lines of it, are gone.
        LedgerError: it is damaged.
    """
    file = folder / "ledger.jsonl"
    steps, told_by = steps_evident(folder, planned)
    held = read_ledger(file).steps_spent if file.exists() else 0
    if steps > held:
        raise LedgerMismatchError(
            f"{file} {f'holds {held} steps' if file.exists() else 'is gone'}, but {told_by} tells "
            f"of {steps}; expected at least as many: the ledger lost lines and would under-report "
            f"what was spent. Put the ledger back from a copy, or {START_OVER}"
        )


def _is_there(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _logged(file: Path) -> int:
    """Return how many releases a log of steps proves: at least one for each step."""
    if not file.is_file():
        return 0
    try:
        entries = read_log(file, REMEDY)
        return 1 + max((int({"position": e["step"], **e}["position"]) for e in entries), default=-1)
    except (ValueError, KeyError, TypeError) as error:
        raise LogError(
            f"{file}: {error!r} in an entry that should have a step; {REMEDY}"
        ) from error
