"""Errors that are the user's to mend. The command line prints them as one message, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# The note on an interrupt before which nothing was taken that the same command could continue.
NO_STEP = "no step was taken"


class DpftError(Exception):
    """Says what was got, what was expected, and what to type next."""


class ConfigError(DpftError):
    """A setting is unknown, missing, or has an impossible value."""


class NotInstalledError(ConfigError):
    """A choice needs a package that is optional, and is not there."""


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


def suggestion(got: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where one of ``known`` is close to ``got``, else nothing."""
    close = difflib.get_close_matches(got, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
