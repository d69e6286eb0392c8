"""Shared parts of the tasks on the user's own data: where it is, its users, and held-out shares.

Nothing here may make one unit depend on another. Whether a record is held out for testing follows
from a digest of that record (of its user, where users are units), and not from its place in the
file; class names are given rather than collected.
"""

import hashlib
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.flags import Flag, Stored, flag
from dpft.config.folder import settings_of
from dpft.config.published import PUBLISHED_TASKS
from dpft.config.schema import Count, Fraction
from dpft.tasks.objectives.objective import Instance, Question
from dpft.tasks.objectives.record_types import Record
from dpft.tasks.samples.texts import write_notes
from dpft.tasks.sources import Dataset, Form, Location, locate, read
from dpft.tasks.table_files import SUFFIXES, Faults, Rows, TableRow, read_table, separator
from dpft.tasks.task import SPLITS, Task, framed
from dpft.tasks.views import IntArray, Mapped, Owners, one_spelling

_BLOCK = 1 << 12


@dataclass(frozen=True)
class Reading:
    """The rows of one split of a table, with their owners and contents."""

    rows: Rows
    owners: Owners | None  # of the rows; None where they are not needed
    # 64 bits of each record's digest: equal ones are equal records, but for odds of one in a
    # million at ten million records.
    contents: IntArray
    labels: Mapping[str, int]  # how many rows have each `OwnData.label`


def _shortened(digests: bytes | bytearray) -> IntArray:
    """Return the first 8 bytes of each digest as a number."""
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def own_dataset(kind: str) -> Dataset:
    """Return a data set whose folder holds ``train``, ``dev`` and ``test`` with any suffix."""
    forms = tuple(Form({s: f"{s}{suffix}" for s in SPLITS}, read_table) for suffix in SUFFIXES)
    return Dataset(forms, None, partial(write_notes, kind))


@dataclass(frozen=True)
class OwnData(Task):
    """A task on the user's own data; a subclass turns a row into a record."""

    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    delimiter: str | None = None
    dev_share: Fraction = 0.0
    test_share: Fraction = 0.0
    split_seed: int = 0
    unit: Literal["record", "user"] = "record"
    user_column: str | None = None
    records_per_user: Count = 8
    max_length: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        users, synthetic = self.unit == "user", self.synthetic is not None
        wrong = {
            "task.user_column and task.unit=record, which protects single records; type "
            "task.unit=user to protect all records of a user together, or task.user_column=null": (
                self.user_column is not None and not users and not synthetic
            ),
            "task.unit=user without a column of users. Type task.user_column=NAME": (
                users and self.user_column is None
            ),
            "task.synthetic, whose records belong to no user, and task.unit=user; type "
            "task.unit=record. task.user_column may stay: it holds out the same users": (
                users and synthetic
            ),
            # Which records are the first ones depends on how many each user has.
            "task.unit=user with task.limit_train; expected all training records of every user: "
            "type task.limit_train=null": users and self.limit_train is not None,
            f"task.dev_share={self.dev_share} and task.test_share={self.test_share}; expected some "
            "records to be left for training": self.dev_share + self.test_share >= 1,
            f"task.delimiter={self.delimiter!r}; expected one character, such as ';'": (
                self.delimiter is not None and len(self.delimiter) != 1
            ),
        }
        given = [f"task.{s}_file" for s in SPLITS if getattr(self, f"{s}_file") is not None][:1]
        given += ["task.data_dir"] if self.data_dir is not None else []
        given += [f"task.source={self.source}"] if self.source in ("hub", "sample") else []
        wrong |= {
            f"{' and '.join(given)}; expected one place for all data: files, a data_dir, or "
            "task.source=sample": self.source == "hub" or len(given) > 1
        }
        for got, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError(f"got {got}")

    # Data.

    @cached_property
    def location(self) -> Location:
        if self.source == "sample":
            return "sample", None
        for split in SPLITS:
            if (file := getattr(self, f"{split}_file")) is not None:
                return "files", Path(file)
        kind, folder = locate(self.dataset, self.name, self.source, self.data_dir)
        if kind == "hub":
            raise DataError(
                f"task {self.name} was given no data. Type task.train_file=FILE "
                f"({', '.join(SUFFIXES)}), or task.source=sample for generated data"
            )
        return kind, folder

    def rows(self, split: str) -> Sequence[TableRow]:
        """Return the rows of a split, without what is held out of it."""
        return self._reading(split).rows

    def read_file(self, path: Path) -> Rows:
        return read_table(path, self.delimiter)

    def records(self, split: str) -> Sequence[Record]:
        rows = self.rows(split)
        return Mapped(self.record, rows[: self.limit_train] if split == "train" else rows)

    def instances(self, split: str) -> Sequence[Instance]:
        return Mapped(self.instance, self.records(split)[: self.limit_eval])

    def questions(self, path: Path) -> Sequence[Question]:
        return [Question(row.values, self.asked(row)) for row in self.read_file(path)]

    @abstractmethod
    def asked(self, row: TableRow) -> Instance:
        """Return a row as a question, whose answer may be missing."""

    def repeated(self, records: Sequence[Record]) -> float:
        if not len(records) or self.published:
            return 0.0
        trained = [self._reading("train").contents[: self.limit_train]]
        if self.synthetic is not None:
            # The model that wrote them may have seen all of the real records.
            with suppress(ConfigError, DataError):  # or they are no longer there
                trained.append(replace(self, synthetic=None)._reading("train").contents)
        digests = (hashlib.sha256(framed(record.parts())).digest() for record in records)
        contents = _shortened(b"".join(digest[:8] for digest in digests))
        return float(np.isin(contents, np.concatenate(trained)).mean())

    @property
    def published(self) -> bool:
        return self.source == "sample"

    def owners(self) -> Sequence[str] | None:
        return None if self.unit == "record" else self._reading("train").owners

    @property
    def unit_noun(self) -> str:
        return self.unit

    @property
    def unit_in_words(self) -> str:
        if self.unit == "record":
            return self.record_is
        m = self.records_per_user
        drawn = (
            f"at most {m} of them, drawn anew, take" if m > 1 else "one of them, drawn anew, takes"
        )
        return (
            f"all training records that name the same user (column {self.user_column}); {drawn} "
            "part in a step"
        )

    def flags(self) -> list[Stored]:
        shares = [(s, getattr(self, f"{s}_share")) for s in ("dev", "test")]
        return super().flags() + [
            flag(Flag.HELD_OUT, split=split, share=share, noun=self._held_out)
            for split, share in shares
            if share
        ]

    def remarks(self) -> list[str]:
        found, repeats = [], np.unique(self._reading("train").contents, return_counts=True)[1]
        file = self._file("train")
        is_csv = file is not None and file.suffix.lower() == ".csv"
        if is_csv and self.delimiter is None and (mark := separator(cast(Path, file))) != ",":
            found.append(
                f"line 1 of {file} has no comma, so its cells are read as separated by {mark!r}; "
                "type task.delimiter=',' if they are not"
            )
        rows = len(self._table("train")) if self.synthetic is None else 0
        sizes = {settings_of("task", name).get("train_size"): name for name in PUBLISHED_TASKS}
        if rows and (known := sizes.get(rows)) is not None:
            found.append(
                f"the data has {rows:,} rows, as many as the training data of task={known}: if it "
                f"is that, task={known} reads its files as they are published"
            )
        if repeats.max() > 1 and self.unit == "record" and not self.published:
            found.append(
                f"training records repeat others word for word: {(repeats - 1).sum():,} (one "
                f"occurs {repeats.max():,} times). For what occurs k times epsilon is k times as "
                "large, and delta grows faster: remove copies, or type task.unit=user "
                "task.user_column=NAME where they belong to one person"
            )
        return found

    def details(self, split: str) -> list[str]:
        reading, training = self._reading(split), self._reading("train")
        columns, owners = reading.rows[0].values, reading.owners
        lines = [f"columns: {', '.join(map(str, columns))}"]
        if split == "train":
            lines += self.remarks()
        if owners is None and self.user_column in columns and split != "train":
            # Only training needs names: rows of dev and test may have none.
            owners = Owners.of(map(self._owner, reading.rows))
        if owners is not None:
            counts, most = np.bincount(owners.codes), self.records_per_user
            spread = f"{counts.min():,} to {counts.max():,}, median {np.median(counts):,.0f}"
            lines.append(f"{len(owners.names):,} users; records of one: {spread}")
            over = np.count_nonzero(counts > most)
            lines.append(f"{over:,} users have more than {most} records")
        if split != "train":
            twice = np.isin(reading.contents, training.contents)
            lines.append(f"{np.count_nonzero(twice):,} records are also in the training data")
            if owners is not None and training.owners is not None:
                shared = len({*owners.names} & {*training.owners.names})
                doubt = ": no guarantee covers scores of what they wrote" if shared else ""
                lines.append(f"{shared:,} users are also in the training data{doubt}")
        return lines

    @property
    def _held_out(self) -> str:
        # Whatever the unit: a model that is trained on synthetic records is tested on the same
        # users as the one that wrote them.
        return "record" if self.user_column is None else "user"

    def advance_with(self, advance: Callable[[int], None]) -> None:
        self._state["advance"] = advance

    @cached_property
    def _state(self) -> dict[str, Any]:
        """Return what was read, and what `advance_with` was given: a task is frozen otherwise."""
        return {"readings": {}, "tables": {}, "advance": lambda count: None}

    def _reading(self, split: str) -> Reading:
        """Return what is in a split; its file is read once, with everything held out of it."""
        readings: dict[str, Reading] = self._state["readings"]
        if split not in readings:
            readings.update(self._read(split))
        found = readings[split]
        if not len(found.rows):
            raise DataError(
                f"no {self._held_out} is in the {split} split; expected at least one: type "
                f"task.{split}_file=FILE, or choose other shares"
            )
        return found

    def _read(self, split: str) -> Mapping[str, Reading]:
        if split == "train" and self.synthetic is not None:
            return self._sorted(self.read_file(Path(self.synthetic)), (split,))
        shared = [one for one in ("dev", "test") if getattr(self, f"{one}_share")]
        # Whichever split is asked for: a share leaves the training data, be it used or not.
        for one in shared:
            if self._file(one) is not None or self.source == "sample":
                raise ConfigError(
                    f"task.{one}_share={getattr(self, f'{one}_share')}, but the data has a {one} "
                    f"split; expected one of both. Type task.{one}_share=0, or take the split away"
                )
        if split not in shared and not (split == "train" and shared):
            return self._sorted(self._table(split), (split,))
        found = self._sorted(self._table("train"), SPLITS)
        # With synthetic records another file is trained on.
        asked = shared if self.synthetic is not None else ["train", *shared]
        return {one: found[one] for one in asked}

    def _sorted(self, rows: Rows, splits: tuple[str, ...]) -> Mapping[str, Reading]:
        """Read a table once, and sort its rows into splits by `_falls_to` if there are several."""
        if not len(rows):
            raise DataError(f"{rows.path} has no rows; expected at least one record")
        shared, trains = len(splits) > 1, splits[0] == "train"
        # Synthetic training records belong to no user.
        owned = self.user_column is not None and (shared or (trains and self.synthetic is None))
        sides, contents, faults = array("B"), bytearray(), Faults(rows.path)
        labels = {name: Counter[str]() for name in splits}

        def names() -> Iterable[str]:
            for number, row in enumerate(rows, 1):
                if number % _BLOCK == 0:
                    self._state["advance"](_BLOCK)
                try:
                    digest = hashlib.sha256(framed(self.record(row).parts()))
                    side = self._falls_to(row, digest.hexdigest()) if shared else splits[0]
                    owner = self._owner(row) if owned else None
                    labels[side][self.label(row)] += 1
                except DataError as error:
                    faults.add(row.place, error)
                    continue
                sides.append(splits.index(side))
                contents.extend(digest.digest()[:8])
                if owner is not None:
                    yield owner

        owners = Owners.of(names())
        faults.check(len(rows))
        side, content = np.frombuffer(sides, np.uint8), _shortened(contents)
        found = {}
        for code, name in enumerate(splits):
            chosen = np.flatnonzero(side == code)
            theirs = owners.part(chosen) if owned else None
            found[name] = Reading(rows.take(chosen), theirs, content[chosen], labels[name])
        return found

    def _table(self, split: str) -> Rows:
        """Return all rows of a split of the data, with those that a share holds out."""
        tables: dict[str, Rows] = self._state["tables"]
        if split not in tables:
            file = self._file(split)
            if file is not None:
                tables[split] = self.read_file(file)
            elif self.source == "sample":
                sample, _ = read(self.dataset, self.name, self.location, split, self.sample_seed)
                tables[split] = cast(Rows, sample)
            else:
                share = f", or task.{split}_share=0.1 to hold records out"
                raise SplitError(
                    f"task {self.name} was given no {split} split. Type task.{split}_file=FILE"
                    f"{'' if split == 'train' else share}"
                )
        return tables[split]

    def _file(self, split: str) -> Path | None:
        """Return the file of a split; None if there is none."""
        folder, file = self.location[1], getattr(self, f"{split}_file")
        if folder is None or any(getattr(self, f"{s}_file") is not None for s in SPLITS):
            return None if file is None else Path(file)
        files = [file for form in self.dataset.forms for file in form.found(folder, split)]
        if len(files) > 1:
            raise DataError(
                f"{folder} holds {' and '.join(file.name for file in files)}; expected one file "
                f"for the {split} split: take one away, or type task.{split}_file=FILE"
            )
        return files[0] if files else None

    def _falls_to(self, row: TableRow, digest: str) -> str:
        """Return the split of a row of the training data.

        It depends on the row's record or user alone: a further one moves no other.
        """
        who = self._content(row, digest) if self._held_out == "record" else self._owner(row)
        point = int.from_bytes(hashlib.sha256(f"{self.split_seed} {who}".encode()).digest()[:8])
        if point / 2**64 < self.test_share:
            return "test"
        return "dev" if point / 2**64 < self.test_share + self.dev_share else "train"

    def label(self, row: TableRow) -> str:
        """Return the name of a row's class, where a task has classes."""
        return ""

    def _content(self, row: TableRow, digest: str) -> str:
        """Return a digest of what a record says, whatever else the data says."""
        return digest

    def _text(self, row: TableRow, setting: str) -> str:
        """Return the text of the column that a setting names."""
        return row.text(getattr(self, setting), f"task.{setting}")

    def _owner(self, row: TableRow) -> str:
        assert self.user_column is not None
        return one_spelling(row.name(self.user_column, "task.user_column"))
