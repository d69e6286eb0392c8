"""What tasks on the user's own data share: where the data are, whose they are, what is held out.

The data are files, or a data set of the hub, whose columns the settings name. Either each record is
a unit of privacy, or all records of one user are; see docs/how-to/own_data.md.

Nothing here may make one unit depend on another. Whether a record is held out for testing follows
from a digest of that record (of its user, where users are units), and not from its place in the
file; class names are given rather than collected.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from dpft.config.errors import ConfigError, DataError, SplitError, one_of
from dpft.tasks.base import SPLITS, Task
from dpft.tasks.keeping import is_ours, settings
from dpft.tasks.kept_readings import read_or_kept
from dpft.tasks.objectives.base import Instance, Question
from dpft.tasks.objectives.records import Record
from dpft.tasks.owners import Owners
from dpft.tasks.reading import Reading, RowRules, contents_of, read_splits
from dpft.tasks.samples import own as own_sample
from dpft.tasks.sources import Dataset, Form, Hub, Location, locate, read
from dpft.tasks.table_files import SUFFIXES, Listed, TableFile, read_table, table_file
from dpft.tasks.tables import Mappings, TableRow, is_of_csv
from dpft.tasks.user_names import check_names
from dpft.tasks.views import Mapped

if TYPE_CHECKING:
    from dpft.tasks.keeping import Keeping


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
        files = [f"task.{s}_file" for s in SPLITS if getattr(self, f"{s}_file") is not None]
        hub = ["task.hub"] if self.hub is not None else []
        folder = ["task.data_dir"] if self.data_dir is not None else []
        sample = ["task.source=sample"] if self.source == "sample" else []
        given = [place for place in (files, hub, folder, sample) if place]
        if len(given) > 1:
            raise ConfigError(
                f"got {' and '.join(chain(*given))}; expected one place for all data: files, a "
                "data_dir, the hub, or task.source=sample"
            )
        other = {"files": hub, "hub": files}.get(self.source)
        if other:
            raise ConfigError(f"task.source={self.source} beside {other[0]}; expected auto")
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
        if self.unit == "user" and self.hub is not None and "[" in (self.train_split or ""):
            raise ConfigError(
                f"task.train_split={self.train_split} beside task.unit=user; expected a whole "
                "split: which records a slice holds depends on how many each user has"
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
        """Rows of a split, without what is held out; or what is held out of training."""
        return self._reading(split).rows

    def records(self, split: str) -> Sequence[Record]:
        rows = self.rows(split)
        return Mapped(self.record, rows[: self.limit_train] if split == "train" else rows)

    def instances(self, split: str) -> Sequence[Instance]:
        return Mapped(self.instance, self.records(split)[: self.limit_eval])

    def questions(self, path: Path) -> Sequence[Question]:
        return [Question(row.values, self.asked(_settled(row))) for row in read_table(path)]

    def read_file(self, path: Path) -> Sequence[TableRow]:
        return [_settled(row) for row in super().read_file(path)]

    def asked(self, row: TableRow) -> Instance:
        """A row as a question, whose answer may be missing."""
        raise NotImplementedError

    def repeated(self, records: Sequence[Record]) -> float:
        if not len(records) or self.published or self.user_column is not None:
            return 0.0
        trained = [self._reading("train").contents[: self.limit_train]]
        if self.synthetic is not None:
            # What they stand for, of which the model that wrote them may have seen all.
            with suppress(ConfigError, DataError):  # or it is not at hand
                trained.append(self._stands_for._reading("train").contents)
        return float(np.isin(contents_of(records), np.concatenate(trained)).mean())

    @cached_property
    def _stands_for(self) -> OwnData:
        """The task on the real records, which are read once however often they are asked of."""
        return replace(self, synthetic=None)

    @property
    def published(self) -> bool:
        return self.source == "sample"

    def record(self, row: TableRow) -> Record:
        raise NotImplementedError

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
        drawn = "one of them, drawn anew, takes"
        if m > 1:
            drawn = f"at most {m} of them, drawn anew, take"
        return (
            f"all training records that name the same user (column {self.user_column}); {drawn} "
            "part in a step"
        )

    @property
    def train_slice(self) -> str | None:
        split = self.train_split or ""
        sliced = self.location[0] == "hub" and self.synthetic is None and "[" in split
        return split if sliced else None

    def labels(self) -> list[str]:
        shares = [(s, getattr(self, f"{s}_share")) for s in ("dev", "test")]
        return super().labels() + [
            f"{split} split: about {share:.3g} of the {self._held_out}s in the training data, "
            "held out"
            for split, share in shares
            if share
        ]

    def remarks(self) -> list[str]:
        reading, found = self._reading("train"), list[str]()
        if reading.swallowed:
            found.append(
                f"{reading.swallowed:,} training records hold lines that look like rows of their "
                f"file (the first: {reading.swallowed_first}). In CSV a quotation mark that begins "
                "a text may have swallowed them: double that mark and put quotes around the text, "
                "or use JSON lines"
            )
        if reading.near_copies and self.unit == "record" and not self.published:
            found.append(
                f"training records repeat others: {_copies(reading.copies)} word for word, "
                f"{_copies(reading.near_copies)} apart from letter case, white space and Unicode "
                "form. For what occurs k times epsilon is k times as large, and delta grows "
                "faster: remove copies, or type task.unit=user task.user_column=NAME where they "
                "belong to one person"
            )
        return found

    def details(self, split: str) -> list[str]:
        reading, lines = self._reading(split), []
        columns = reading.rows[0].values
        lines.append(f"columns: {', '.join(map(str, columns))}")
        lines.append(f"characters in a record: {_spread(reading.characters)}")
        if broken := reading.breaks:
            doubt = "; a quotation mark that begins a text may have swallowed rows"
            lines.append(
                f"{broken.total():,} records hold line breaks, one of them {max(broken) + 1:,} "
                f"lines{doubt if is_of_csv(reading.rows[0]) else ''}"
            )
        lines += self.remarks() if split == "train" else []
        owners = reading.owners
        if owners is None and self.user_column in columns and split != "train":
            # Only training asks for names: rows of dev and test may have none.
            owners = Owners.of(map(self._owner, reading.rows))
            check_names(reading.rows, owners)
        if owners is not None:
            counts = Counter(np.bincount(owners.codes).tolist())
            over = sum(n for records, n in counts.items() if records > self.records_per_user)
            lines.append(f"{len(owners.names):,} users; records of one: {_spread(counts)}")
            lines.append(f"{over:,} users have more than {self.records_per_user} records")
        if split != "train":
            twice = np.isin(reading.contents, self._reading("train").contents)
            lines.append(f"{np.count_nonzero(twice):,} records are also in the training data")
            trained = self._reading("train").owners
            if owners is not None and trained is not None:
                shared = pc.sum(pc.is_in(owners.names, trained.names)).as_py() or 0
                lines.append(
                    f"{shared:,} users are also in the training data"
                    f"{': no guarantee covers scores of what they wrote' if shared else ''}"
                )
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

    def keep_in(self, keeping: Keeping | None, advance: Callable[[int], None]) -> None:
        self.__dict__["_kept"] = keeping, advance

    @cached_property
    def _kept(self) -> tuple[Keeping | None, Callable[[int], None]]:
        """Where to keep what is read, and what counts the rows; see `keep_in`."""
        return None, lambda count: None

    @cached_property
    def _readings(self) -> dict[str, Reading]:
        return {}

    @cached_property
    def _files(self) -> dict[str, TableFile]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """What a process needs that encodes some records: not what was found in all of them."""
        left = ("_kept", "_readings", "_files", "_stands_for")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def _reading(self, split: str) -> Reading:
        """What is in a split; its file is read once, and with it all that is held out of it."""
        if split not in self._readings:
            self._readings.update(self._read(split))
        found = self._readings[split]
        if not len(found.rows):
            raise DataError(
                f"no record fell to the {split} split: {self._share_words()} of too few "
                f"{self._held_out}s; expected at least one. Give it a file of its own, or choose "
                "other shares"
            )
        return found

    def _read(self, split: str) -> Mapping[str, Reading]:
        if split == "train" and self.synthetic is not None:
            return self._read_file(table_file(Path(self.synthetic)), split)
        share = self.dev_share + self.test_share
        # Whichever is asked for: a share leaves the training data, be it used or not.
        for one in ("dev", "test"):
            if (given := getattr(self, f"{one}_share")) and self._has(one):
                raise ConfigError(
                    f"task.{one}_share={given}, but the data has a {one} split of its own; "
                    f"expected one of both. Type task.{one}_share=0, or take the split away"
                )
        if self._has(split) and not (split == "train" and share):
            return self._read_file(self._file(split), split)
        if split != "train" and not getattr(self, f"{split}_share"):
            setting = f"{split}_split=NAME" if self.location[0] == "hub" else f"{split}_file=FILE"
            raise SplitError(
                f"task {self.name} was given no {split} split. Type task.{setting}, or "
                f"task.{split}_share=0.1 to hold records out"
            )
        if not self._has("train"):
            setting = "train_split=NAME" if self.location[0] == "hub" else "train_file=FILE"
            raise SplitError(f"task {self.name} was given no train split. Type task.{setting}")
        found = self._read_file(self._file("train"), "train", shared=True)
        # With synthetic records another file is trained on.
        asked = [] if self.synthetic is not None else ["train"]
        asked += [one for one in ("dev", "test") if getattr(self, f"{one}_share")]
        return {one: found[one] for one in asked}

    def _read_file(
        self, file: TableFile, split: str, *, shared: bool = False
    ) -> dict[str, Reading]:
        """The rows of a file as those of one split, or of all where they are ``shared``."""
        # A model that is trained on synthetic records is asked of users, and trained on nobody's.
        trained = split == "train" and self.synthetic is None
        named = self.user_column is not None and (shared or trained)
        limits = {} if self.limit_train is None else {"train": self.limit_train}
        rules = RowRules(
            self.record if shared or trained else lambda row: self.record(_settled(row)),
            self.texts,
            self._owner if named else None,
            self._falls_to if shared else None,
            SPLITS if shared else (split,),
            limits,
            owned=self.unit == "user" and split == "train",
        )
        keeping, advance = self._kept
        # What a class of somebody's own makes of a row is not known to be the same next time.
        if keeping is None or not is_ours(self) or self.synthetic is not None or split != "train":
            found = read_splits(file, rules, advance)
        else:
            identity = [type(self).__qualname__, settings(self, NOT_READ), split, shared]
            found = dict(read_or_kept(file, rules, advance, keeping, identity))
        if not any(len(reading.rows) for reading in found.values()):
            raise DataError(f"{file.path} has no rows; expected at least one record")
        return found

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

    def _file(self, split: str) -> TableFile:
        """Where the rows of a split are that the data has by itself."""
        if split not in self._files:
            self._files[split] = self._find_file(split)
        return self._files[split]

    def _find_file(self, split: str) -> TableFile:
        if (file := getattr(self, f"{split}_file")) is not None:
            return table_file(Path(file))
        dataset, (kind, place) = self.dataset, self.location
        if kind == "files":
            assert place is not None
            files = [file for form in dataset.forms for file in form.found(place, split)]
            if not files:
                raise SplitError(
                    f"task {self.name} was given no {split} split. Type task.{split}_file=FILE"
                )
            if len(files) > 1:
                raise DataError(
                    f"{place} holds {' and '.join(file.name for file in files)}; expected one file "
                    f"for the {split} split: take one away, or type task.{split}_file=FILE"
                )
            return table_file(files[0])
        if kind == "hub":
            assert self.hub is not None
            names = {s: getattr(self, f"{s}_split") for s in SPLITS}
            named = {s: name for s, name in names.items() if name is not None}
            from_hub = partial(Mappings, where=self.hub)
            dataset = own_dataset(self.name, Hub(self.hub, named, from_hub, self.hub_config))
        return Listed(read(dataset, self.name, self.location, split, self.sample_seed))

    def _falls_to(self, row: TableRow, digest: str) -> str:
        """The split of a row of the training data, which follows from its record or user alone.

        One record more, or one user more, moves nobody else; equal records, or all records of one
        user, fall to the same split.
        """
        who = self._content(row, digest) if self._held_out == "record" else self._owner(row)
        point = int.from_bytes(hashlib.sha256(f"{self.split_seed} {who}".encode()).digest()[:8])
        if point / 2**64 < self.test_share:
            return "test"
        return "dev" if point / 2**64 < self.test_share + self.dev_share else "train"

    def _content(self, row: TableRow, digest: str) -> str:
        """What a record says, whatever else the data says: the digest of the record."""
        return digest

    def _owner(self, row: TableRow) -> str:
        assert self.user_column is not None
        return row.name(self.user_column, "task.user_column")


def _settled(row: TableRow) -> TableRow:
    return replace(row, settled=True)


# Settings that change nothing of what is found in the rows.
NOT_READ = (
    *("max_length", "loss", "before", "after", "ends", "cut", "template", "train_on"),
    *("records_per_user", "limit_eval"),
)


def _copies(counts: Counter[int]) -> str:
    """Return how many records repeat one before them, and how often the most frequent occurs."""
    repeats = sum((times - 1) * many for times, many in counts.items())
    return f"{repeats:,} (one occurs {max(counts):,} times)" if counts else "none"


def _spread(counts: Counter[int]) -> str:
    """The range of numbers, of which each is there so often, and the median."""
    numbers = sorted(counts)
    below = np.cumsum([counts[number] for number in numbers])
    middle = [
        np.searchsorted(below, k, side="right") for k in ((below[-1] - 1) // 2, below[-1] // 2)
    ]
    median = sum(numbers[k] for k in middle) / 2
    return f"{numbers[0]:,} to {numbers[-1]:,}, median {median:,.0f}"
