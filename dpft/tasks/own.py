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
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow.compute as pc

from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.flags import Flag, Stored, flag
from dpft.config.schema import Count, Fraction
from dpft.tasks.base import SPLITS, Task, digest_owners, framed
from dpft.tasks.objectives.base import Instance, Question
from dpft.tasks.objectives.records import LabelledText, Record
from dpft.tasks.samples import own as own_sample
from dpft.tasks.sources import Dataset, Form, Hub, Location, locate, read
from dpft.tasks.table_files import SUFFIXES, Loaded, Rows, TableRow, read_table
from dpft.tasks.views import IntArray, Mapped, Owners, one_spelling

_BLOCK = 1 << 12


@dataclass(frozen=True)
class Reading:
    """What was found in one split of a table."""

    rows: Rows
    owners: Owners | None  # of the rows; None where they are not needed
    fingerprint: str  # `dpft.tasks.base.fingerprint` of the records that are used
    # 64 bits of each record's digest: equal ones are equal records, but for odds of one in a
    # million at ten million records.
    contents: IntArray
    labels: Counter[int]  # how many records have a label; empty where they have none


def contents_of(records: Iterable[Record]) -> IntArray:
    """Return the `Reading.contents` of records, wherever they were read."""
    digests = (hashlib.sha256(framed(record.parts())).digest() for record in records)
    return np.frombuffer(array("Q", map(_short, digests)), np.uint64)


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def own_dataset(kind: str, hub: Hub | None = None) -> Dataset:
    """Return a data set whose folder holds ``train``, ``dev`` and ``test`` with any suffix."""
    forms = tuple(Form({s: f"{s}{suffix}" for s in SPLITS}, read_table) for suffix in SUFFIXES)
    return Dataset(forms, hub, partial(own_sample.write_sample, kind))


@dataclass(frozen=True)
class OwnData(Task):
    """A task on the user's own data; a subclass turns a row into a record, and names its texts."""

    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    hub: str | None = None
    hub_config: str | None = None
    train_split: str | None = "train"
    dev_split: str | None = "validation"
    test_split: str | None = "test"
    dev_share: Fraction = 0.0
    test_share: Fraction = 0.0
    split_seed: int = 0
    unit: Literal["record", "user"] = "record"
    user_column: str | None = None
    records_per_user: Count = 8
    max_length: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_places()
        users, synthetic = self.unit == "user", self.synthetic is not None
        if self.user_column is not None and not users and not synthetic:
            raise ConfigError(
                f"got task.user_column={self.user_column} and task.unit=record, which protects "
                "single records; type task.unit=user to protect all records of a user together, or "
                "task.user_column=null"
            )
        if users and self.user_column is None:
            raise ConfigError(
                "task.unit=user needs the user of each record. Type task.user_column=NAME"
            )
        if users and synthetic:
            raise ConfigError(
                "got task.synthetic, whose records belong to no user, and task.unit=user; type "
                "task.unit=record. task.user_column may stay: it holds out the same users"
            )
        # Which records are the first ones depends on how many each user has.
        sliced = self.hub is not None and "[" in (self.train_split or "")
        if users and (self.limit_train is not None or sliced):
            raise ConfigError(
                "got task.unit=user with task.limit_train or a slice in task.train_split; expected "
                "all training records of every user: type task.limit_train=null"
            )
        if self.dev_share + self.test_share >= 1:
            raise ConfigError(
                f"task.dev_share and task.test_share are {self.dev_share} and {self.test_share}; "
                "expected some records to be left for training"
            )

    def _check_places(self) -> None:
        files = [f"task.{s}_file" for s in SPLITS if getattr(self, f"{s}_file") is not None]
        hub = ["task.hub"] if self.hub is not None else []
        folder = ["task.data_dir"] if self.data_dir is not None else []
        other = [f"task.source={self.source}"]
        taken = other if (self.source, bool(hub)) in (("files", True), ("hub", False)) else []
        given = [place for place in (files, hub, folder) if place]
        given += [other] if taken or self.source == "sample" else []
        if len(given) > 1 or taken:
            raise ConfigError(
                f"got {' and '.join(chain(*given))}; expected one place for all data: files, a "
                "data_dir, task.hub=OWNER/NAME, or task.source=sample"
            )

    # Data.

    @cached_property
    def location(self) -> Location:
        if self.source == "sample":
            return "sample", None
        for split in SPLITS:
            if (file := getattr(self, f"{split}_file")) is not None:
                return "files", Path(file)
        if self.hub is not None:
            return "hub", None
        kind, folder = locate(self.dataset, self.name, self.source, self.data_dir)
        if kind == "hub":
            raise DataError(
                f"task {self.name} was given no data. Type task.train_file=FILE "
                f"({', '.join(SUFFIXES)}), task.hub=OWNER/NAME, or task.source=sample for "
                "generated data"
            )
        return kind, folder

    def rows(self, split: str) -> Sequence[TableRow]:
        """Return the rows of a split, without what is held out of it."""
        return self._reading(split).rows

    def records(self, split: str) -> Sequence[Record]:
        rows = self.rows(split)
        return Mapped(self.record, rows[: self.limit_train] if split == "train" else rows)

    def instances(self, split: str) -> Sequence[Instance]:
        return Mapped(self.instance, self.records(split)[: self.limit_eval])

    def questions(self, path: Path) -> Sequence[Question]:
        return [Question(row.values, self.asked(row)) for row in read_table(path)]

    @abstractmethod
    def asked(self, row: TableRow) -> Instance:
        """Return a row as a question, whose answer may be missing."""

    @abstractmethod
    def texts(self, row: TableRow) -> tuple[str, ...]:
        """Return all texts of a row, to be measured."""

    def repeated(self, records: Sequence[Record]) -> float:
        if not len(records) or self.published:
            return 0.0
        trained = [self._reading("train").contents[: self.limit_train]]
        if self.synthetic is not None:
            # The model that wrote them may have seen all of the real records.
            with suppress(ConfigError, DataError):  # or they are no longer there
                trained.append(replace(self, synthetic=None)._reading("train").contents)
        return float(np.isin(contents_of(records), np.concatenate(trained)).mean())

    @property
    def published(self) -> bool:
        return self.source == "sample"

    def owners(self) -> Sequence[str] | None:
        return None if self.unit == "record" else self._reading("train").owners

    @property
    def known_fingerprint(self) -> str:
        return self._reading("train").fingerprint

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

    @property
    def train_slice(self) -> str | None:
        split = self.train_split or ""
        sliced = self.location[0] == "hub" and self.synthetic is None and "[" in split
        return split if sliced else None

    def flags(self) -> list[Stored]:
        shares = [(s, getattr(self, f"{s}_share")) for s in ("dev", "test")]
        return super().flags() + [
            flag(Flag.HELD_OUT, split=split, share=share, noun=self._held_out)
            for split, share in shares
            if share
        ]

    def remarks(self) -> list[str]:
        repeats = np.unique(self._reading("train").contents, return_counts=True)[1]
        if repeats.max() == 1 or self.unit == "user" or self.published:
            return []
        return [
            f"training records repeat others word for word: {(repeats - 1).sum():,} (one occurs "
            f"{repeats.max():,} times). For what occurs k times epsilon is k times as large, and "
            "delta grows faster: remove copies, or type task.unit=user task.user_column=NAME where "
            "they belong to one person"
        ]

    def details(self, split: str) -> list[str]:
        reading, training = self._reading(split), self._reading("train")
        columns = reading.rows[0].values
        characters, broken = array("q"), 0
        for row in reading.rows:
            texts = self.texts(row)
            characters.append(sum(map(len, texts)) + len(texts) - 1)
            broken += any("\n" in text for text in texts)
        doubt = "; in CSV a quotation mark that begins a text may have swallowed rows"
        lines = [
            f"columns: {', '.join(map(str, columns))}",
            f"characters in a record: {_spread(np.array(characters))}",
            *([f"{broken:,} records hold line breaks{doubt}"] if broken else []),
            *(self.remarks() if split == "train" else []),
        ]
        owners = reading.owners
        if owners is None and self.user_column in columns and split != "train":
            # Only training needs names: rows of dev and test may have none.
            owners = Owners.of(map(self._owner, reading.rows))
        if owners is not None:
            counts, most = np.bincount(owners.codes), self.records_per_user
            lines.append(f"{len(owners.names):,} users; records of one: {_spread(counts)}")
            over = np.count_nonzero(counts > most)
            lines.append(f"{over:,} users have more than {most} records")
        if split != "train":
            twice = np.isin(reading.contents, training.contents)
            lines.append(f"{np.count_nonzero(twice):,} records are also in the training data")
            if owners is not None and training.owners is not None:
                shared = pc.sum(pc.is_in(owners.names, training.owners.names)).as_py() or 0
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
                f"no {self._held_out} fell to the {split} split; expected at least one: give it a "
                "file of its own, or choose other shares"
            )
        return found

    def _read(self, split: str) -> Mapping[str, Reading]:
        if split == "train" and self.synthetic is not None:
            return self._sorted(read_table(Path(self.synthetic)), (split,))
        shared = [one for one in ("dev", "test") if getattr(self, f"{one}_share")]
        # Whichever split is asked for: a share leaves the training data, be it used or not.
        for one in shared:
            if self._reader(one) is not None:
                raise ConfigError(
                    f"task.{one}_share={getattr(self, f'{one}_share')}, but the data has a {one} "
                    f"split of its own; expected one of both. Type task.{one}_share=0, or take the "
                    "split away"
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
        limit = self.limit_train if trains else None
        digests, labels = [hashlib.sha256() for _ in splits], [Counter[int]() for _ in splits]
        sides, contents = array("B"), array("Q")
        used = 0

        def names() -> Iterable[str]:
            nonlocal used
            for number, row in enumerate(rows, 1):
                record = self.record(row)
                content = framed(record.parts())
                digest = hashlib.sha256(content)
                side = splits.index(self._falls_to(row, digest.hexdigest())) if shared else 0
                if side or limit is None or used < limit:
                    digests[side].update(content)
                used += not side
                sides.append(side)
                contents.append(_short(digest.digest()))
                if isinstance(record, LabelledText):
                    labels[side][record.label] += 1
                if number % _BLOCK == 0:
                    self._state["advance"](_BLOCK)
                if owned:
                    yield self._owner(row)

        owners = Owners.of(names())
        side, content = np.frombuffer(sides, np.uint8), np.frombuffer(contents, np.uint64)
        found = {}
        for code, name in enumerate(splits):
            chosen = np.flatnonzero(side == code)
            theirs = owners.part(chosen) if owned else None
            if theirs is not None and self.unit == "user" and name == "train":
                digest_owners(digests[code], theirs)
            digest = digests[code].hexdigest()
            found[name] = Reading(rows.take(chosen), theirs, digest, content[chosen], labels[code])
        return found

    def _table(self, split: str) -> Rows:
        """Return the rows of a split that the data has of its own."""
        tables: dict[str, Rows] = self._state["tables"]
        if split not in tables:
            if (reader := self._reader(split)) is None:
                setting = f"{split}_{'split=NAME' if self.location[0] == 'hub' else 'file=FILE'}"
                share = f", or task.{split}_share=0.1 to hold records out"
                raise SplitError(
                    f"task {self.name} was given no {split} split. Type task.{setting}"
                    f"{'' if split == 'train' else share}"
                )
            tables[split] = reader()
        return tables[split]

    def _reader(self, split: str) -> Callable[[], Rows] | None:
        """Return what reads a split that the data has of its own; None if it has none."""
        dataset, (kind, place), file = self.dataset, self.location, getattr(self, f"{split}_file")
        if any(getattr(self, f"{s}_file") is not None for s in SPLITS):
            return None if file is None else partial(read_table, Path(file))
        if place is not None:
            files = [file for form in dataset.forms for file in form.found(place, split)]
            if len(files) > 1:
                raise DataError(
                    f"{place} holds {' and '.join(file.name for file in files)}; expected one file "
                    f"for the {split} split: take one away, or type task.{split}_file=FILE"
                )
            return partial(read_table, files[0]) if files else None
        if kind == "hub":
            names = {s: name for s in SPLITS if (name := getattr(self, f"{s}_split")) is not None}
            if split not in names:
                return None
            where = str(self.hub)
            hub = Hub(where, names, lambda rows: Loaded(rows, where).rows(), self.hub_config)
            dataset = own_dataset(self.name, hub)
        args = (dataset, self.name, self.location, split, self.sample_seed)
        return partial(cast(Callable[..., Rows], read), *args)

    def _falls_to(self, row: TableRow, digest: str) -> str:
        """Return the split of a row of the training data.

        It depends on the row's record or user alone: a further one moves no other.
        """
        who = self._content(row, digest) if self._held_out == "record" else self._owner(row)
        point = int.from_bytes(hashlib.sha256(f"{self.split_seed} {who}".encode()).digest()[:8])
        if point / 2**64 < self.test_share:
            return "test"
        return "dev" if point / 2**64 < self.test_share + self.dev_share else "train"

    def _content(self, row: TableRow, digest: str) -> str:
        """Return a digest of what a record says, whatever else the data says."""
        return digest

    def _text(self, row: TableRow, setting: str) -> str:
        """Return the text of the column that a setting names."""
        return row.text(getattr(self, setting), f"task.{setting}")

    def _owner(self, row: TableRow) -> str:
        assert self.user_column is not None
        return one_spelling(row.name(self.user_column, "task.user_column"))


def _spread(numbers: Any) -> str:
    return f"{numbers.min():,} to {numbers.max():,}, median {np.median(numbers):,.0f}"
