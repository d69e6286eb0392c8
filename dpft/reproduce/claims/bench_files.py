"""Results of ``dpft bench`` as claims read them: ratios by style, and what they are of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.reproduce.bench.catalog import BASELINE
from dpft.reproduce.bench.documents import read_documents
from dpft.reproduce.bench.largest import PRECISION
from dpft.reproduce.bench.statistics import Spread

_UNTIED = " (untied)"
# One measurement of a speed, without a repetition that would tell its range.
_SPEED = 0.05
# With fewer, the range over rounds says too little of what another round would give.
_ROUNDS = 3


@dataclass(frozen=True)
class BenchFile:
    """One file of results.

    Attributes:
        path: of the JSON.
        model: a name of `dpft.reproduce.bench.catalog`.
        length: tokens a record; None for images.
        device: ``cpu`` or ``cuda``.
        labels: what its numbers must be read with: model, shape, number type, device.
        found: by quantity and style, relative to training without privacy in the same file, with
            head and embedding tied or not as they are in the style's own model.
        untied: styles that ran untied in a file whose model is tied.
    """

    path: Path
    model: str
    length: int | None
    device: str
    labels: tuple[str, ...]
    found: Mapping[str, Mapping[str, Spread]]
    untied: frozenset[str] = frozenset()

    def ratio(self, quantity: str, first: str, second: str) -> Spread | None:
        """``first`` to ``second`` as median and range; None unless the file has both, of one model.

        Of two styles that were each measured against the baseline the range is the widest that the
        two ranges allow.
        """
        if BASELINE not in (first, second) and (first in self.untied) != (second in self.untied):
            return None  # their ratios are to different models
        one, two = (self._relative(quantity, name) for name in (first, second))
        if one is None or two is None or min(two.min, two.median) <= 0:
            return None
        return Spread(one.median / two.median, one.min / two.max, one.max / two.min)

    def _relative(self, quantity: str, name: str) -> Spread | None:
        styles = self.found.get(quantity, {})
        if name == BASELINE:
            return Spread(1.0, 1.0, 1.0) if styles else None
        return styles.get(name)


def bench_files(folders: Iterable[Path] | None = None) -> tuple[list[BenchFile], list[str]]:
    """As `read_documents` finds them: results by path, and a line for each damaged file."""
    return read_documents(_read, folders)


def _read(path: Path, content: Mapping[str, Any]) -> BenchFile:
    settings = content["settings"]
    if "largest_batch" in content:
        found = _largest(content["largest_batch"])
        labels = [str(one["label"]) for one in content["largest_batch"]]
    else:
        labels = [str(one["label"]) for one in content["summary"]]
        found = {
            quantity: {
                _plain(one["label"]): Spread(**one[key])
                for one in content["summary"]
                if one.get(key) is not None and one["rounds"] >= _ROUNDS
            }
            for quantity, key in (("time", "time_ratio"), ("memory", "memory_ratio"))
        }
    length = settings["length"]
    return BenchFile(
        path=path,
        model=str(settings["model"]),
        length=None if length is None else int(length),
        device=str(settings["device"]),
        labels=tuple(map(str, content["labels"])),
        found=found,
        untied=frozenset(_plain(label) for label in labels if label.endswith(_UNTIED)),
    )


def _largest(listed: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Spread]]:
    ones = [one for one in listed if one.get("message") is None and one["batch"]]
    base = {one["label"]: one for one in ones}
    found: dict[str, dict[str, Spread]] = {"batch": {}, "speed": {}}
    for one in ones:
        label = str(one["label"])
        other = base.get(f"{BASELINE}{_UNTIED}" if label.endswith(_UNTIED) else BASELINE)
        if other is None:
            continue
        batch = one["batch"] / other["batch"]
        found["batch"][_plain(label)] = Spread(batch, batch * (1 - 1 / PRECISION), batch)
        speeds = [x["examples_per_second"] for x in (one, other)]
        if all(speeds):
            speed = speeds[0] / speeds[1]
            found["speed"][_plain(label)] = Spread(
                speed, speed * (1 - _SPEED), speed * (1 + _SPEED)
            )
    return found


def _plain(label: str) -> str:
    return label.removesuffix(_UNTIED)
