"""Find and read a data set: a folder of published files, the hub, or a generated sample.

A `Dataset` lists the forms in which its rows are published. Files of any of them are searched for
in ``task.data_dir``, then in ``$DPFT_DATA/<task>``; else rows come from the hub's parquet copy.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpft.config.errors import DataError, SplitError
from dpft.config.foreign import regular

Location = tuple[str, Path | None]
SAME_SPLITS = MappingProxyType({"train": "train", "dev": "validation", "test": "test"})
"""The hub's names of splits of most data sets."""
CONVERTED = "refs/convert/parquet"
"""The revision with the hub's own parquet conversion of a data set that is a script."""
LONGEST = 10_000_000
"""Bytes of a line, and characters of a text: a tokenizer takes seconds for so many."""


@dataclass(frozen=True)
class Form:
    """A published form of a data set."""

    # By split, relative to the folder; with ``*`` every match is read, in sorted order.
    files: Mapping[str, str]
    read: Callable[[Path], Sequence[Any]]  # raises `DataError` naming file and line

    def rows(self, file: Path) -> Sequence[Any]:
        """Return the rows of a file; raise `DataError` if it is no regular file."""
        try:
            return self.read(regular(file))
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}; expected a file") from error

    def found(self, folder: Path, split: str) -> list[Path]:
        """Return the files of a split, sorted."""
        pattern = self.files.get(split)
        return sorted(folder.glob(pattern)) if pattern is not None else []


@dataclass(frozen=True)
class ParquetForm(Form):
    """The hub's parquet files, which may be in folders of the folder.

    They are called ``NAME.parquet``, or ``NAME-00000-of-00002.parquet`` and so on. The names of
    several sets that are one split have ``+`` between them.
    """

    def found(self, folder: Path, split: str) -> list[Path]:
        found: list[Path] = []
        for name in filter(None, self.files.get(split, "").split("+")):
            stem = Path(name).stem
            called = re.compile(rf"{re.escape(stem)}(?:-(\d+)-of-(\d+)(?:-[0-9a-f]+)?)?")
            files = sorted(folder.glob(f"**/{stem}*.parquet"))
            matches = {file: m for file in files if (m := called.fullmatch(file.stem))}
            parts = [(int(m[1] or 0), int(m[2] or 1)) for m in matches.values()]
            if (
                parts != [(i, len(parts)) for i in range(len(parts))]
                or len({file.parent for file in matches}) > 1
            ):
                listed = ", ".join(str(file.relative_to(folder)) for file in matches)
                raise DataError(
                    f"{folder} holds {listed}; expected one {stem}.parquet, or all parts of one in "
                    "one folder: rows of a second copy would count as further records. Take the "
                    "others away"
                )
            found += matches
        return found


@dataclass(frozen=True)
class Hub:
    """The copy on the hub."""

    id: str
    splits: Mapping[str, str]  # the hub's names of our splits; with ``+`` between several
    # Makes rows of the task from the hub's mappings, given the hub's name of their split.
    rows: Callable[[Any, str], Sequence[Any]]
    config: str | None = None  # of a data set that has several
    revision: str | None = None  # such as `CONVERTED`


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in all its forms."""

    forms: tuple[Form, ...]  # of a folder, tried in order
    hub: Hub | None
    write_sample: Callable[[Path, int], None]  # in the first form, into a folder, from a seed

    def all_forms(self) -> tuple[Form, ...]:
        """Return the forms that a folder may hold, the hub's parquet files last."""
        if self.hub is None:
            return self.forms
        hub = self.hub

        def read_parquet(path: Path) -> Sequence[Any]:
            return hub_rows(hub, [*table_rows(path)], path.stem)

        names = {s: name.replace("+", ".parquet+") + ".parquet" for s, name in hub.splits.items()}
        return (*self.forms, ParquetForm(names, read_parquet))

    def form_in(self, folder: Path) -> Form | None:
        """Return the first form of which a folder holds files of any split."""
        held = (f for f in self.all_forms() if any(f.found(folder, split) for split in f.files))
        return next(held, None)


def locate(dataset: Dataset, name: str, source: str, data_dir: str | None) -> Location:
    """Return ``files`` and their folder, or ``hub`` or ``sample``, after ``auto`` was resolved."""
    if source in ("sample", "hub"):
        return source, None
    root = os.environ.get("DPFT_DATA")
    folder = Path(root) / name if data_dir is None and root is not None else Path(data_dir or "")
    given = data_dir is not None or root is not None
    if given and dataset.form_in(folder):
        return "files", folder
    if source == "files" or data_dir is not None:
        names = dict.fromkeys(next(iter(form.files.values())) for form in dataset.all_forms())
        place = f"{folder}{', which is a file' if folder.is_file() else ''}"
        raise DataError(
            f"no {' or '.join(names)} found; looked in "
            f"{place if given else 'no folder: $DPFT_DATA is not set'}. {_advice(name)}"
        )
    return "hub", None


def read(
    dataset: Dataset,
    name: str,
    location: Location,
    split: str,
    seed: int,
    revision: str | None = None,
) -> tuple[Sequence[Any], str | None]:
    """Return the rows of a split, and the commit of the hub's copy if they are its."""
    (kind, folder), commit = location, None
    if folder is not None:
        rows = _read_folder(dataset, folder, split)
    elif kind == "hub":
        hub = dataset.hub
        if hub is None:
            raise DataError(f"found no {name} files, and the hub has no copy. {_advice(name)}")
        if split not in hub.splits:
            raise SplitError(
                f"{name} has no split {split!r}; expected one of {', '.join(hub.splits)}"
            )
        rows = []
        for one in hub.splits[split].split("+"):
            table, commit = load_hub(hub, name, one, revision)
            rows += hub_rows(hub, table, one)
    else:
        sample = _sample(dataset, seed)
        if split not in sample:
            raise SplitError(f"the generated sample of {name} has no split {split!r}")
        rows = sample[split]
    if not rows:
        raise DataError(f"task {name} has no records in split {split!r}; expected at least one")
    return rows, commit


def _read_folder(dataset: Dataset, folder: Path, split: str) -> Sequence[Any]:
    for form in dataset.all_forms():
        if files := form.found(folder, split):
            several = [form.rows(file) for file in files]
            return several[0] if len(several) == 1 else [*chain(*several)]
    other = (dataset.form_in(folder) or dataset.all_forms()[0]).files.get(split, "")
    raise SplitError(
        f"{folder} holds no {split} split: no file {other!r}; put it there, choose another split, "
        "or type task.data_dir=FOLDER"
    )


def _advice(name: str) -> str:
    return (
        f"Set DPFT_DATA to the folder that holds {name}/ (or type task.data_dir=FOLDER), go "
        "online, or type task.source=sample for generated data"
    )


def load_hub(hub: Hub, name: str, hubs_split: str, revision: str | None) -> tuple[Any, str]:
    """Return a split of the hub as a data set, and its commit.

    Raises:
        DataError: if the hub does not answer, and no copy of this revision is here.
    """
    from dpft.config import offline

    offline.stay_offline_if_unreachable()
    absent = (
        f"the {name} files were found neither in task.data_dir nor in $DPFT_DATA/{name}, and the "
        f"hub's copy {hub.id} could not be loaded"
    )
    from datasets import load_dataset

    try:
        found = load_dataset(
            hub.id,
            hub.config,
            revision=revision or hub.revision,
            split=hubs_split,
            trust_remote_code=False,
        )
    except Exception as error:  # the hub client raises many types; all mean the same here
        why = offline.refusal(error, "datasets", hub.id)
        raise DataError(f"{absent} ({why}). {_advice(name)}") from error
    commit = Path(found.cache_files[0]["filename"]).parent.name  # .../0.0.0/COMMIT/NAME.arrow
    # Where the hub does not answer, the library takes the newest copy of any revision.
    if revision not in (None, commit) and (offline.is_offline() or len(revision) == len(commit)):
        raise DataError(
            f"task.revision is {revision!r}, and the hub does not answer; the copy of {hub.id} on "
            f"this machine is of {commit}: go online, or type task.revision={commit}"
        )
    return found, commit


def hub_rows(hub: Hub, rows: Iterable[Mapping[str, Any]], hubs_split: str) -> Sequence[Any]:
    """Return rows of the hub as the task's; raise DataError for a missing column."""
    try:
        return hub.rows(rows, hubs_split)
    except KeyError as error:
        raise DataError(f"the hub's copy of {hub.id} has no column {error}") from error


def one_by_one(make: Callable[..., Any], **how: Any) -> Callable[[Iterable[Any], str], list[Any]]:
    """Return a function that makes rows one by one, from a row of the hub and its place."""
    return lambda rows, split: [
        make(row, f"the hub's copy, row {n} of {split}", **how) for n, row in enumerate(rows, 1)
    ]


def table_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file; raise DataError if it is not one."""
    import pyarrow.parquet

    try:
        # Only the file: a folder called KEY=VALUE around it is no column.
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} is not a parquet file that can be read: {error}") from error


@lru_cache(maxsize=8)
def _sample(dataset: Dataset, seed: int) -> Mapping[str, Sequence[Any]]:
    """Return the generated sample, written and read back in the published form."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset.write_sample(folder, seed)
        splits = dataset.all_forms()[0].files
        return {split: _read_folder(dataset, folder, split) for split in splits}


def well_formed(text: str, where: str) -> str:
    """Return a text that is no longer than `LONGEST` and valid Unicode; else raise DataError.

    JSON can spell half of a surrogate pair.
    """
    if len(text) > LONGEST:
        raise DataError(
            f"{where}: got a text of {len(text):,} characters; expected {LONGEST:,} at most: "
            "shorten it, since task.max_length tokens of it are used, or divide it into records"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = text[max(0, error.start - 20) : error.start + 1]
        raise DataError(
            f"{where}: got {got!r}, which is no valid Unicode ({error.reason}); expected text"
        ) from error
    return text


def text_lines(path: Path, expected: str) -> Sequence[str]:
    """Return the lines of a UTF-8 file, without line ends; see `file_text`."""
    return file_text(path, expected).split("\n")


def file_text(path: Path, expected: str) -> str:
    """Return the text of a UTF-8 file without its byte order mark; raise DataError otherwise."""
    try:
        return regular(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; expected {expected}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); expected {expected}") from error
