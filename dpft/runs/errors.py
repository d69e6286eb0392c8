"""What can go wrong with a run directory; every message says what to type next."""

import shutil
from pathlib import Path

from dpft.config.errors import DpftError

START_OVER = (
    "start over with `force=true` (it moves this run aside and deletes nothing; what the old "
    "ledger spent still counts if anything of that run was, or will be, shown to anyone)"
)


class RunError(DpftError):
    """A run directory cannot be used as asked."""


class RunMismatchError(RunError):
    """The folder holds a run of other settings."""


class RunLockedError(RunError):
    """Another process is using the run."""


class NoiseKeyLostError(RunError):
    """The secret of sampling and noise is gone although privacy was spent with it."""


class LogError(RunError):
    """An append-only file of JSON lines is damaged or cannot be written."""


class LedgerError(RunError):
    """The privacy ledger is damaged, was used out of order or cannot be written."""


class LedgerMismatchError(LedgerError):
    """The ledger says that something else happened than what is being done now."""


class CheckpointError(RunError):
    """A checkpoint cannot be written or used."""


class RecordError(RunError):
    """A run record is incomplete, malformed or of another schema."""


def disk_report(path: Path, error: BaseException) -> str:
    """What a failed write says of the disk: the reason and the bytes left, as a clause."""
    try:
        free = f"{shutil.disk_usage(path).free:,} bytes free there"
    except OSError:
        free = "free space unknown"
    return f"{error} ({free})"
