"""What readers of records pass over: folders called ``private``, and a selection's secret trials.

A page or a table that shows one trial of `dpft.sweep.selection`, or lets them be counted, voids the
guarantee of the run that was chosen. So what looks for runs looks into no ``private`` folder, and
what is given a trial by name refuses it.
"""

from __future__ import annotations

from pathlib import Path

from dpft.config.errors import ConfigError

PRIVATE = "private"
# Beside a selection's private folder, and in it; either tells that it is one.
DESCRIPTION = "selection.json"
SELECTION_KEY = "selection_key"


def below_private(path: Path, folder: Path) -> bool:
    """Whether ``path`` lies in a folder called ``private`` at or below ``folder``.

    Args:
        path: below ``folder``.
        folder: where a search began. What the folders above it are called does not matter.
    """
    return PRIVATE in path.relative_to(folder).parts


def check_no_trial(path: Path) -> None:
    """Refuse a path among the trials of a private selection.

    Raises:
        ConfigError: it is one of them, or holds some.
    """
    whole = path.resolve()
    for folder in (whole, *whole.parents):
        if folder.name != PRIVATE:
            continue
        if (folder / SELECTION_KEY).is_file() or (folder.parent / DESCRIPTION).is_file():
            raise ConfigError(
                f"{path} lies among the secret trials of a selection: showing one of them, or how "
                f"many there are, voids the guarantee of the chosen run. Expected what was "
                f"released: {folder.parent / 'chosen'}. For your own eyes: dpft report --private "
                f"{path}"
            )
