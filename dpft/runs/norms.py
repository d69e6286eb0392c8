"""Gradient norms of single records, for figures: noiseless, hence kept under ``private/``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpft.runs.atomic import Closing
from dpft.runs.log import REMEDY, MetricsLog, damaged, read_log

if TYPE_CHECKING:
    from torch import Tensor

NORMS = "norms.jsonl"
_DIGITS = 6


class NormsLog(Closing):
    """JSON lines with the norms ``(B, K)`` of every so many steps; nothing where not asked for."""

    def __init__(
        self, folder: Path, every: int | None, groups: Sequence[str], resume_step: int = 0
    ) -> None:
        self._every, self._groups = every, list(groups)
        self._log = None if every is None else MetricsLog(folder / NORMS, resume_step)

    def append(
        self,
        step: int,
        norms: Sequence[Tensor],
        signal: float | None = None,
        noise: float | None = None,
    ) -> None:
        """Write a step's norms, ``(b, K)`` of each microbatch, if it is its turn; see `Norms`."""
        if self._log is None or self._every is None or step % self._every or not norms:
            return
        listed = [
            [float(f"{value:.{_DIGITS}g}") for value in row]
            for micro in norms
            for row in micro.tolist()
        ]
        both = {} if signal is None or noise is None else {"signal": signal, "noise": noise}
        self._log.append(step, groups=self._groups, norms=listed, **both)

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()


@dataclass(frozen=True)
class Norms:
    """Norms of one step: ``values[i][k]`` of record ``i`` in group ``groups[k]``.

    ``signal`` is that of the mean of the clipped gradients before noise, ``noise`` the root of the
    expected square of its noise's; both are None in several processes.
    """

    step: int
    groups: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    signal: float | None = None
    noise: float | None = None


def read_norms(path: Path) -> list[Norms]:
    """Return what `NormsLog` wrote, by step."""
    found = []
    for number, entry in enumerate(read_log(path, REMEDY), start=1):
        try:
            groups = tuple(str(name) for name in entry["groups"])
            values = tuple(tuple(float(x) for x in row) for row in entry["norms"])
            if any(len(row) != len(groups) for row in values):
                raise ValueError(f"{len(groups)} groups, but a record has another number of norms")
            both = (float(entry[key]) if key in entry else None for key in ("signal", "noise"))
            found.append(Norms(int(entry["step"]), groups, values, *both))
        except (ValueError, KeyError, TypeError) as error:
            why = f"got {error!r}, expected step, groups and norms"
            raise damaged(path, number, why, REMEDY) from error
    return sorted(found, key=lambda one: one.step)
