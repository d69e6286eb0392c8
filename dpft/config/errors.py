"""Errors that the user can correct. The command line prints each as one message."""

import difflib
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any

# The note on an interrupt before which nothing was taken that the same command could continue.
NO_STEP = "no step was taken"

# What other libraries and papers call a setting.
_SYNONYMS = {
    "eps": "epsilon target_epsilon",
    "privacy.delta": "target_delta",
    "privacy.noise_multiplier": "noise noise_scale sigma",
    "clip.threshold": "max_grad_norm l2_norm_clip clip_norm C",
    "optim.lr": "learning_rate",
    "optim.epochs": "num_train_epochs num_epochs max_epochs",
    "optim.steps": "max_steps num_steps",
    "optim.batch_size": "batch batch_size train_batch_size per_device_train_batch_size",
    "optim.schedule": "scheduler lr_scheduler_type",
    "adapt.rank": "r lora_r lora_rank",
    "task.max_length": "max_len max_seq_length",
    "model.checkpointing": "gradient_checkpointing",
    "decode.beams": "num_beams",
    "runs_dir": "output_dir",
}


class DpftError(Exception):
    """Says what was got, what was expected, and what to type next."""


class ConfigError(DpftError):
    """A setting is unknown, missing, or has an impossible value."""


class Missing(Enum):
    """The value of a setting that has none: its text in the error of a setting."""

    UNKNOWN = "unknown setting {}"
    UNSET = "{} is not set"


class SettingError(ConfigError):
    """One setting is wrong.

    Attributes:
        key: the setting as it is typed, such as ``clip.threshold``.
        got: its value, or one of `Missing`.
        expected: which values it may have.
        advice: what to type instead, or why.
    """

    def __init__(self, key: str, got: Any, expected: str = "", advice: str = "") -> None:
        self.key, self.got, self.expected, self.advice = key, got, expected, advice
        said = got.value.format(key) if isinstance(got, Missing) else f"{key} is {got!r}"
        if expected:
            said = f"{said}; expected {expected}"
        super().__init__(f"{said}; {advice}" if advice else said)

    def __reduce__(self) -> tuple[Any, ...]:  # ranks send each other their errors
        return type(self), (self.key, self.got, self.expected, self.advice)


class AuditError(DpftError):
    """An audit refuted what a run claims."""


class DataError(DpftError):
    """Data is missing or not in the expected format."""


class SplitError(DataError):
    """The data has no such split."""


class ModelError(DpftError):
    """A model cannot be found or built."""


class TrainingError(DpftError):
    """Training cannot go on; what was reached is kept."""


class DivergedError(TrainingError):
    """The weights of a private run, which are released, are not finite: it comes to nothing."""


class RankError(TrainingError):
    """Another rank failed, or ranks disagree: no rank may go on."""


START_OVER = (
    "start over with `force=true` (it moves this run aside and deletes nothing; what the old "
    "ledger spent still counts if anything of that run was, or will be, shown to anyone)"
)


class RunError(DpftError):
    """A run's folder cannot be used as asked."""


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


def suggestion(got: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` if one of ``known`` is a synonym of ``got`` or like it."""
    names, leaf = list(known), got.rpartition(".")[2]
    meant = [name for name, others in _SYNONYMS.items() if leaf in others.split()]
    close = [name for name in meant if name in names]
    for spelled in (got, got.lower()):
        close = close or difflib.get_close_matches(spelled, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_of(name: str, value: Any, known: Collection[str]) -> None:
    """Raise SettingError with the nearest name if ``value`` is not in ``known``."""
    if value not in known:
        close = suggestion(str(value), known).removeprefix("; ")
        raise SettingError(name, value, f"one of {', '.join(known)}", close)
