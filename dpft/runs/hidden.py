"""What readers of records pass over: folders called ``private``, and a selection's secret trials.

A page or a table that shows one trial of `dpft.sweep.selection`, or lets them be counted, voids the
guarantee of the run that was chosen. So the search for runs (`dpft.runs.run_index`) looks into no
``private`` folder, and what is given a trial by name refuses it.
"""

from __future__ import annotations

from pathlib import Path

from dpft.config.errors import ConfigError

PRIVATE = "private"
# Beside a selection's private folder, and in it; either tells that it is one.
DESCRIPTION = "selection.json"
SELECTION_KEY = "selection_key"


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
