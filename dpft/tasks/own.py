"""What tasks on the user's own data share: where the data are, whose they are, what is held out.

The data are files, or a data set of the hub, whose columns the settings name. Either each record is
a unit of privacy, or all records of one user are; see docs/tasks/own_data.md.

Nothing here may make one unit depend on another. Whether a record is held out for testing follows
from a digest of that record (of its user, where users are units), and not from its place in the
file; class names are given rather than collected.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from dpft.checks import one_of
from dpft.errors import ConfigError, DataError, SplitError
from dpft.objectives.records import Record
from dpft.tasks import own_sample
from dpft.tasks.base import SPLITS, Task, fingerprint
from dpft.tasks.sources import Dataset, Form, Hub, Location, locate, read
from dpft.tasks.tables import (
    SUFFIXES,
    TableRow,
    check_names,
    mappings,
    may_hold_rows,
    read_table,
)


def own_dataset(kind: str, hub: Hub | None = None) -> Dataset:
    """A folder may hold ``train``, ``dev`` and ``test`` with any of the suffixes."""
    forms = tuple(Form({s: f"{s}{suffix}" for s in SPLITS}, read_table) for suffix in SUFFIXES)
    return Dataset(forms, hub, partial(own_sample.write_sample, kind))


@dataclass(frozen=True)
class OwnData(Task):
    """Where one's own data are, who owns each record, and what is held out.

    A subclass turns a row into a record, and says what of a row is text.
    """

    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    hub: str | None = None
    hub_config: str | None = None
    train_split: str | None = "train"
    dev_split: str | None = "validation"
    test_split: str | None = "test"
    dev_share: float = 0.0
    test_share: float = 0.0
    split_seed: int = 0
    unit: str = "record"
    user_column: str | None = None
    records_per_user: int = 8
    max_length: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task.unit", self.unit, ("record", "user"))
        self._check_places()
        self._check_shares()
        self._check_users()

    def _check_places(self) -> None:
        places = {
            "files": [f"task.{s}_file" for s in SPLITS if getattr(self, f"{s}_file") is not None],
            "hub": ["task.hub"] if self.hub is not None else [],
        }
        given = [*places["files"], *places["hub"]]
        given += ["task.data_dir"] if self.data_dir is not None else []
        kinds = sum(map(bool, (places["files"], places["hub"], self.data_dir)))
        if kinds > 1 or (given and self.source == "sample"):
            told = [*given, "task.source=sample"] if self.source == "sample" else given
            raise ConfigError(
                f"got {' and '.join(told)}; expected one place for all data: files, a data_dir, "
                "the hub, or task.source=sample"
            )
        if self.source in places and places["hub" if self.source == "files" else "files"]:
            raise ConfigError(f"task.source={self.source} beside {given[0]}; expected auto")
        if self.source == "hub" and self.hub is None:
            raise ConfigError("task.source=hub, but of which data set? Type task.hub=OWNER/NAME")

    def _check_shares(self) -> None:
        for name in ("dev", "test"):
            share = getattr(self, f"{name}_share")
            if not 0 <= share < 1:
                raise ConfigError(f"task.{name}_share is {share}; expected 0 or more, below 1")
        if self.dev_share + self.test_share >= 1:
            raise ConfigError(
                f"task.dev_share and task.test_share are {self.dev_share} and {self.test_share}; "
                "expected some records to be left for training"
            )

    def _check_users(self) -> None:
        if self.records_per_user < 1:
            raise ConfigError(
                f"task.records_per_user is {self.records_per_user}; expected at least 1"
            )
        if self.unit == "user" and self.user_column is None:
            raise ConfigError(
                "task.unit=user, but nothing says whose each record is. Type task.user_column=NAME"
            )
        if self.unit == "record" and self.user_column is not None and self.synthetic is None:
            raise ConfigError(
                f"task.user_column={self.user_column} beside task.unit=record, which protects "
                "single records; type task.unit=user to protect all records of a user together, "
                "or task.user_column=null"
            )
        if self.unit == "user" and self.synthetic is not None:
            raise ConfigError(
                "task.synthetic beside task.unit=user; expected task.unit=record, since synthetic "
                "records are nobody's. task.user_column may stay: it holds out the same users"
            )
        if self.unit == "user" and self.limit_train is not None:
            raise ConfigError(
                f"task.limit_train={self.limit_train} beside task.unit=user; expected null: which "
                "are the first records depends on how many each user has"
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

    def rows(self, split: str) -> list[TableRow]:
        """Rows of a split, without what is held out; or what is held out of training."""
        if split == "train" and self.synthetic is not None:
            return super().rows(split)
        if split not in self._kept:
            self._kept[split] = self._split(split)
        return self._kept[split]

    @property
    def published(self) -> bool:
        return self.source == "sample"

    def record(self, row: TableRow) -> Record:
        raise NotImplementedError

    def owners(self) -> Sequence[str] | None:
        if self.unit == "record":
            return None
        return self._owners_in("train")

    @property
    def unit_noun(self) -> str:
        return self.unit

    @property
    def unit_in_words(self) -> str:
        if self.unit == "record":
            return self.record_is
        m = self.records_per_user
        drawn = "one of them, drawn anew, takes"
        if m > 1:
            drawn = f"at most {m} of them, drawn anew, take"
        return (
            f"all training records that name the same user (column {self.user_column}); {drawn} "
            "part in a step"
        )

    def labels(self) -> list[str]:
        shares = [(s, getattr(self, f"{s}_share")) for s in ("dev", "test")]
        return super().labels() + [
            f"{split} split: about {share:.3g} of the {self._held_out}s in the training data, "
            "held out"
            for split, share in shares
            if share
        ]

    def remarks(self) -> list[str]:
        odd = [row for row in self.rows("train") if may_hold_rows(row)]
        if not odd:
            return []
        return [
            f"{len(odd):,} training records hold lines that look like rows of their file (the "
            f"first: {odd[0].place}). In CSV a quotation mark that begins a text may have "
            "swallowed them: double that mark and put quotes around the text, or use JSON lines"
        ]

    def details(self, split: str) -> list[str]:
        rows, lines = self.rows(split), []
        lines.append(f"columns: {', '.join(map(str, rows[0].values))}")
        lengths = [len(" ".join(self.texts(row))) for row in rows]
        lines.append(f"characters in a record: {_spread(lengths)}")
        broken = [n for row in rows if (n := max(t.count("\n") for t in self.texts(row)))]
        if broken:
            lines.append(
                f"{len(broken):,} records hold line breaks, one of them {max(broken) + 1:,} lines; "
                "in CSV a quotation mark that begins a text may have swallowed rows"
            )
        lines += self.remarks() if split == "train" else []
        named = self.user_column is not None and not (split == "train" and self.synthetic)
        # Only training asks for names: rows of dev and test may have none.
        if named and (split == "train" or self.user_column in rows[0].values):
            users = Counter(self._owners_in(split))
            over = sum(number > self.records_per_user for number in users.values())
            lines.append(f"{len(users):,} users; records of one: {_spread(list(users.values()))}")
            lines.append(f"{over:,} users have more than {self.records_per_user} records")
        if split != "train":
            seen = {fingerprint([self.record(row)]) for row in self.rows("train")}
            twice = sum(fingerprint([self.record(row)]) in seen for row in rows)
            lines.append(f"{twice:,} records are also in the training data")
        return lines

    def texts(self, row: TableRow) -> tuple[str, ...]:
        """All texts of a row, to be measured."""
        raise NotImplementedError

    @property
    def _held_out(self) -> str:
        """What falls to a split as a whole: a record, or all of a user's.

        A model that is trained on synthetic records, which are nobody's, is asked of the same
        users as the one that wrote them.
        """
        return "record" if self.user_column is None else "user"

    @cached_property
    def _kept(self) -> dict[str, list[TableRow]]:
        return {}

    def _split(self, split: str) -> list[TableRow]:
        share = 0.0 if split == "train" else getattr(self, f"{split}_share")
        # Whichever is asked for: a share leaves the training data, be it used or not.
        for one in ("dev", "test"):
            if (given := getattr(self, f"{one}_share")) and self._has(one):
                raise ConfigError(
                    f"task.{one}_share={given}, but the data has a {one} split of its own; "
                    f"expected one of both. Type task.{one}_share=0, or take the split away"
                )
        if self._has(split):
            rows = self._read(split)
            if split == "train" and self.dev_share + self.test_share:
                rows = self._falling_to("train")
        elif share:
            rows = self._falling_to(split)
        else:
            setting = f"{split}_split=NAME" if self.location[0] == "hub" else f"{split}_file=FILE"
            held = "" if split == "train" else f", or task.{split}_share=0.1 to hold records out"
            raise SplitError(
                f"task {self.name} was given no {split} split. Type task.{setting}{held}"
            )
        if not rows:
            raise DataError(
                f"no record fell to the {split} split: {self._share_words()} of too few "
                f"{self._held_out}s; expected at least one. Give it a file of its own, or choose "
                "other shares"
            )
        return rows

    def _share_words(self) -> str:
        return f"shares of {self.dev_share:g} (dev) and {self.test_share:g} (test)"

    def _has(self, split: str) -> bool:
        """Whether the data has such a split by itself."""
        kind, place = self.location
        if kind == "hub":
            return getattr(self, f"{split}_split") is not None
        if kind == "sample":
            return True
        assert place is not None
        if any(getattr(self, f"{s}_file") is not None for s in SPLITS):
            return getattr(self, f"{split}_file") is not None
        return any(form.found(place, split) for form in self.dataset.forms)

    def _read(self, split: str) -> list[TableRow]:
        if (file := getattr(self, f"{split}_file")) is not None:
            rows = read_table(Path(file))
            if not rows:
                raise DataError(f"{file} has no rows; expected at least one record")
            return rows
        dataset = self.dataset
        if self.location[0] == "files":
            self._refuse_two_files(split)
        if self.location[0] == "hub":
            assert self.hub is not None
            names = {s: getattr(self, f"{s}_split") for s in SPLITS}
            named = {s: name for s, name in names.items() if name is not None}
            from_hub = partial(mappings, where=self.hub)
            dataset = own_dataset(self.name, Hub(self.hub, named, from_hub, self.hub_config))
        return read(dataset, self.name, self.location, split, self.sample_seed)

    def _refuse_two_files(self, split: str) -> None:
        place = self.location[1]
        assert place is not None
        files = [file for form in self.dataset.forms for file in form.found(place, split)]
        if len(files) > 1:
            raise DataError(
                f"{place} holds {' and '.join(file.name for file in files)}; expected one file for "
                f"the {split} split: take one away, or type task.{split}_file=FILE"
            )

    def _falling_to(self, split: str) -> list[TableRow]:
        """Rows of the training data that fall to a split."""
        rows = self._read("train")
        if self._held_out == "user":
            # Here too: a second spelling could fall to the other side.
            check_names(rows, [self._owner(row) for row in rows])
        return [row for row in rows if self._falls_to(row) == split]

    def _falls_to(self, row: TableRow) -> str:
        """The split of a row of the training data, which follows from its record or user alone.

        One record more, or one user more, moves nobody else; equal records, or all records of one
        user, fall to the same split.
        """
        who = self._content(row) if self._held_out == "record" else self._owner(row)
        digest = hashlib.sha256(f"{self.split_seed} {who}".encode()).digest()
        point = int.from_bytes(digest[:8]) / 2**64
        if point < self.test_share:
            return "test"
        return "dev" if point < self.test_share + self.dev_share else "train"

    def _content(self, row: TableRow) -> str:
        """What a record says, whatever else the data says."""
        return fingerprint([self.record(row)])

    def _owner(self, row: TableRow) -> str:
        assert self.user_column is not None
        return row.name(self.user_column, "task.user_column")

    def _owners_in(self, split: str) -> list[str]:
        rows = self.rows(split)
        names = [self._owner(row) for row in rows]
        check_names(rows, names)
        return names


def _spread(numbers: Sequence[int]) -> str:
    return f"{min(numbers):,} to {max(numbers):,}, median {statistics.median(numbers):,.0f}"
