"""Whether a sweep would choose by the very scores that are to be reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpft.runs.identity import leaves

if TYPE_CHECKING:
    from dpft.config.schema import Run

# Settings that one tunes. Seeds, budgets, models and tasks are compared, not chosen among.
_TUNED = ("adapt", "clip", "optim", "decode")
# Named in the remark; further ones are counted.
_NAMED = 3


def remark(runs: Sequence[Run], searched: Run | None = None) -> str | None:
    """A warning where runs that differ in what one tunes are scored on the test split.

    The papers choose by validation scores and report test scores (Li et al. 2022, Appendix I).

    Args:
        runs: the points of a sweep.
        searched: what a sweeper's points start from, where it chooses them as it goes.

    Returns:
        None if nothing is chosen, or if it is chosen on another split.
    """
    if searched is not None and searched.decode.split == "test":
        return _text("The sweeper chooses by scores")
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        if run.decode.split == "test":
            tasks.setdefault(str(run.task["name"]), []).append(run)
    keys = list(dict.fromkeys(key for group in tasks.values() for key in _differing(group)))
    if not keys:
        return None
    named = ", ".join(keys[:_NAMED])
    if len(keys) > _NAMED:
        named += f" and {len(keys) - _NAMED} more"
    return _text(f"The runs differ in {named} and are scored")


def _text(what: str) -> str:
    return (
        f"{what} on the test split: the best of them is then no fair test score. To choose, type "
        "decode.split=dev where the task has a dev split; then, for the run that is chosen, "
        "dpft decode RUN decode.split=test and dpft score RUN (docs/how-to/sweeps.md)."
    )


def _differing(runs: Sequence[Run]) -> list[str]:
    listed = [
        dict(leaf for group in _TUNED for leaf in leaves(run.raw.get(group), group)) for run in runs
    ]
    keys = dict.fromkeys(key for settings in listed for key in settings)
    return [key for key in keys if any(s.get(key) != listed[0].get(key) for s in listed)]
