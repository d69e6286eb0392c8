"""Find the records in some folders, by the run that they are of."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from dpft.config.errors import ConfigError, DpftError
from dpft.config.folder import conf_dir
from dpft.config.schema import Effect, experiment
from dpft.reproduce.papers import Column
from dpft.reproduce.tables.verdicts import share_error
from dpft.runs.folders import RECORD, check_no_trial, check_whole, runs_below
from dpft.runs.identity import config_hash
from dpft.runs.record import check_record, read_record, read_table
from dpft.tasks.scores import impossible_share, is_share, unpacked

FOLDERS = ("runs", "results")
# A record is of another run where one of these differs, which is known without composing the run.
CHOICES = ("task", "adapt")
NUMBERS = ("optim.lr", "optim.batch_size", "optim.epochs", "task.limit_train", "task.limit_eval")
_PUBLISHED = ("auto", "files", "hub")
_SELECTED = "dpft sweep --select chose it by its score: its seed and epsilon are no table's"
_REPEATED = "some of its steps were released twice: its epsilon is more than it was calibrated to"


def match_key(config: Mapping[str, Any]) -> str:
    """Return a hash that is equal for configs whose scores fill the same cells.

    It is of the settings with `Effect.IDENTITY`; published data are equal from files and the hub.
    """
    kept = experiment(config, Effect.IDENTITY)
    if kept["task"].get("source") in _PUBLISHED:
        kept["task"] = {**kept["task"], "source": "published", "sample_seed": None}
    return config_hash(kept)


class Answers(NamedTuple):
    """The digest of the references, and for each record whether it was answered rightly."""

    references: str
    right: tuple[bool, ...]


@dataclass(frozen=True)
class IndexedRun:
    """A record (see `dpft.runs.RunRecord`) and the run directory that holds it."""

    path: Path
    record: Mapping[str, Any]
    seed: int
    config_hash: str

    def has_scores(self, split: str) -> bool:
        """Return whether it holds any scores of a split."""
        return split in self.record.get("scores", {})

    def score(self, column: Column) -> float | None:
        """Return the first of the column's metrics that is recorded, as printed; None without."""
        measured = self._measured(column)
        return None if measured is None else column.factor * measured[1]

    def sampling_error(self, column: Column) -> float:
        """Return the standard error that few scored records leave to a share, as it is printed.

        Of exposure, that of few canaries; 0 for other metrics. That of a subset which is scored
        by itself is rather too small.
        """
        if (measured := self._measured(column)) is None:
            return 0.0
        name, value = measured
        section = self.record["scores"][column.split]
        records, metrics = section["examples"], section["metrics"]
        error = share_error(value, records) if records and is_share(name) else 0.0
        if records and name == "exposure":
            deviation = metrics.get("exposure deviation")  # one secret has none
            fitted = records - metrics.get("exposures without a fit", 0)
            error = math.inf if deviation is None else deviation / math.sqrt(fitted)
        return column.factor * error

    def above_constant(self, column: Column) -> float | None:
        """Return how far it is above an answer that never changes, as printed; None if unknown."""
        if (measured := self._measured(column)) is None:
            return None
        baselines = self.record["scores"][column.split].get("baselines") or {}
        constant = baselines.get(measured[0])
        return None if constant is None else column.factor * (measured[1] - constant)

    def answers(self, column: Column) -> Answers | None:
        """Return which records were answered rightly; None where that is absent or contradicted."""
        section, measured = self.record.get("scores", {}).get(column.split), self._measured(column)
        if measured is None or measured[0] != "accuracy" or "correct" not in section:
            return None
        try:
            right = unpacked(section["correct"], section["examples"])
        except ValueError:
            return None
        agrees = math.isclose(sum(right), measured[1] * len(right), abs_tol=1e-6)
        return Answers(section.get("references", ""), right) if agrees else None

    def _measured(self, column: Column) -> tuple[str, float] | None:
        """Return the metric's name in the record, and its value there."""
        metrics = self.record.get("scores", {}).get(column.split, {}).get("metrics", {})
        values = ((name, metrics.get(name)) for name in column.metrics)
        return next(((name, value) for name, value in values if value is not None), None)


@dataclass(frozen=True)
class Index:
    """Records by `match_key`, in the order of the paths, and a line for each that was left out."""

    records: Mapping[str, Sequence[IndexedRun]] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()

    @property
    def looked(self) -> str:
        """The places where records were searched, with what to type for others."""
        places = ", ".join(map(str, self.folders)) or "neither runs nor results, which are not here"
        count = sum(map(len, self.records.values()))
        return f"{count} records from {places}; --runs DIR reads others"

    def of(self, key: str) -> Sequence[IndexedRun]:
        """Return the records of a run with any seed."""
        return self.records.get(key, ())

    @cached_property
    def choices(self) -> set[frozenset[tuple[str, object]]]:
        """The values of `CHOICES` and `NUMBERS` that each of the records has."""
        paths = [(key, *key.split(".")) for key in NUMBERS]
        paths += [(key, key, "name") for key in CHOICES]
        configs = (found.record["config"] for group in self.records.values() for found in group)
        return {
            frozenset((key, config[group].get(name)) for key, group, name in paths)
            for config in configs
        }


def usual_folders(names: Iterable[str]) -> list[Path]:
    """Return the folders of these names that are here; ``results`` else in the checkout of dpft."""
    checkout = conf_dir().parent
    places = [Path(name) for name in names]
    there = [checkout / p if p.parts[0] == "results" and not p.is_dir() else p for p in places]
    return [place for place in there if place.is_dir()]


def make_index(folders: Iterable[Path] | None = None) -> Index:
    """Read every record below the folders, else below `usual_folders` of `FOLDERS`.

    Records are files of runs, at any depth, and lines of a folder's own table (`dpft.runs.record`).
    Damaged records and runs that ``dpft sweep --select`` chose are named and left out.
    """
    folders = tuple(usual_folders(FOLDERS) if folders is None else folders)
    records: dict[str, list[IndexedRun]] = {}
    damaged = []
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"--runs {folder} is no folder; expected one that holds runs")
        check_no_trial(folder)
        for path, record_of in _runs_in(folder):
            if (real := path.resolve()) in seen:
                continue
            seen.add(real)
            try:
                record = record_of()
                config, wrong = record["config"], impossible_share(record)
                if record.get("selection"):
                    wrong = _SELECTED
                elif (record["mechanism"] or {}).get("repeated"):
                    wrong = _REPEATED
                if wrong:
                    damaged.append(f"{path}: {wrong}")
                    continue
                found = IndexedRun(path, record, config["seed"], record["config_hash"])
                records.setdefault(match_key(config), []).append(found)
            except DpftError as error:
                damaged.append(f"{path}: {error}")
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                damaged.append(f"{path}: the record has no usable config ({error!r})")
    return Index(records, tuple(damaged), folders)


def _runs_in(folder: Path) -> Iterator[tuple[Path, Callable[[], dict[str, Any]]]]:
    """Yield the runs below a folder, in the order of their paths, with what reads their records."""
    for path in runs_below(folder):
        if (path / RECORD).is_file():
            yield path, partial(_read, path)
    for name, record in read_table(folder).items():
        yield folder / name, partial(check_record, record, folder / name)


def _read(path: Path) -> dict[str, Any]:
    record = read_record(path / RECORD)
    check_whole(path, (RECORD,))
    return record
