"""The format of what a verb shows: as ``--format`` says, else by the suffix of ``--out``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpft.config.errors import ConfigError, suggestion


def chosen_format(form: str | None, out: Path | None, suffixes: Mapping[str, str]) -> str:
    """The format that was asked for; the terminal's if nothing was.

    Args:
        form: of ``--format``.
        out: of ``--out``.
        suffixes: formats by the suffix of a file.

    Raises:
        ConfigError: for a format or a suffix that there is not.
    """
    if form is not None:
        formats = tuple(suffixes.values())
        if form not in formats:
            raise ConfigError(
                f"--format is {form!r}{suggestion(form, formats)}; expected one of "
                f"{', '.join(formats)}"
            )
        return form
    if out is None:
        return "terminal"
    if out.suffix not in suffixes:
        raise ConfigError(
            f"--out is {str(out)!r}; expected a file ending in {', '.join(suffixes)}, or --format"
        )
    return suffixes[out.suffix]
