"""E2E NLG (Novikova et al. 2017): a meaning representation in, a restaurant sentence out."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dpft.errors import ConfigError, DataError
from dpft.tasks import text_to_text
from dpft.tasks.base import Batch, Example, Prompt, TextRecord

FILES = {"train": "trainset.csv", "dev": "devset.csv", "test": "testset_w_refs.csv"}
HUB_ID = "tuetschek/e2e_nlg"
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_SLOT = re.compile(r"\s*([^\[\],][^\[\]]*?)\[([^\]]*)\]\s*(?:,|$)")


@dataclass(frozen=True)
class E2E:
    """Settings of the task; see ``conf/task/e2e.yaml`` for what each one means."""

    source: str = "auto"
    data_dir: str | None = None
    max_length: int = 100
    loss: str = "mean"
    limit_train: int | None = None
    limit_eval: int | None = None
    sample_seed: int = 0

    name = "e2e"
    files = FILES
    columns = ("mr", "ref")
    unit = "one row of the training file: a meaning representation with one reference sentence"

    def __post_init__(self) -> None:
        if self.source not in ("auto", "files", "hub", "sample"):
            raise ConfigError(
                f"task.source is {self.source!r}; expected auto, files, hub or sample"
            )
        if self.loss not in ("mean", "sum"):
            raise ConfigError(f"task.loss is {self.loss!r}; expected mean or sum")
        if self.max_length < 2:
            raise ConfigError(f"task.max_length is {self.max_length}; expected at least 2")

    def records(self, split: str) -> list[TextRecord]:
        """All records of ``split``, or the first ``limit_train`` of ``train``.

        Raises:
            DataError: if the data is missing, empty or malformed.
        """
        records = [TextRecord(linearise(mr), ref) for mr, ref in self.rows(split)]
        if split == "train" and self.limit_train is not None:
            records = records[: self.limit_train]
        return records

    def prompts(self, split: str) -> list[Prompt]:
        """Instances: runs of consecutive rows with one meaning representation, as the scorer's."""
        runs = groupby(self.rows(split), key=lambda row: row[0])
        prompts = [Prompt(linearise(mr), tuple(ref for _, ref in run)) for mr, run in runs]
        return prompts[: self.limit_eval]

    def encode(self, record: TextRecord, tokenizer: PreTrainedTokenizerBase) -> Example:
        """Prompt, separator, then ``" " + reference`` and the end token."""
        target = tokenizer.encode(" " + record.target, add_special_tokens=False)
        return text_to_text.truncate(
            self.encode_prompt(record.source, tokenizer),
            [*target, tokenizer.eos_token_id],
            self.max_length,
        )

    def encode_prompt(self, source: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
        ids = tokenizer.encode(source, add_special_tokens=False)
        return (*ids, tokenizer.eos_token_id)

    def collate(self, examples: Sequence[Example]) -> Batch:
        return text_to_text.collate(examples)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return text_to_text.losses(model, batch, self.loss)

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        from dpft.metrics import e2e

        return e2e.score(predictions, references)

    def signature(self) -> str:
        from dpft.metrics import e2e

        return e2e.signature()

    def labels(self) -> list[str]:
        labels = []
        if self.location[0] == "sample":
            labels.append("generated sample data")
        if self.limit_train is not None:
            labels.append(f"first {self.limit_train} training records only")
        if self.limit_eval is not None:
            labels.append(f"first {self.limit_eval} test instances only")
        return labels

    @cached_property
    def location(self) -> tuple[str, Path | None]:
        """``files`` and their folder, or ``hub`` or ``sample``, after ``auto`` was resolved."""
        if self.source == "sample":
            return "sample", None
        if self.source == "hub":
            return "hub", None
        looked = []
        if self.data_dir is not None:
            looked.append(Path(self.data_dir))
        elif "DPFT_DATA" in os.environ:
            looked.append(Path(os.environ["DPFT_DATA"]) / self.name)
        for folder in looked:
            if (folder / FILES["train"]).is_file():
                return "files", folder
        if self.source == "files" or self.data_dir is not None:
            places = ", ".join(map(str, looked)) or "nowhere: $DPFT_DATA is not set"
            raise DataError(
                f"no {FILES['train']} found; looked in {places}. Type task.data_dir=FOLDER, set "
                "DPFT_DATA to the folder that holds e2e/, or type task.source=sample for "
                "generated data"
            )
        return "hub", None

    def rows(self, split: str) -> list[tuple[str, str]]:
        """Rows ``(mr, ref)`` of a split as published."""
        if split not in FILES:
            raise DataError(f"split is {split!r}; expected one of {', '.join(FILES)}")
        kind, folder = self.location
        if kind == "files":
            assert folder is not None
            return read_csv(folder / FILES[split])
        if kind == "hub":
            return _hub_rows(split)
        return self._sample[split]

    @cached_property
    def _sample(self) -> dict[str, list[tuple[str, str]]]:
        """The generated sample, written and read back in the official format."""
        import tempfile

        from dpft.tasks import e2e_sample

        with tempfile.TemporaryDirectory() as folder:
            e2e_sample.write_csvs(Path(folder), seed=self.sample_seed)
            return {split: read_csv(Path(folder) / name) for split, name in FILES.items()}


def read_csv(path: Path) -> list[tuple[str, str]]:
    """Rows ``(mr, ref)`` of an official file.

    Raises:
        DataError: naming file and line, if the file is missing, empty, of other columns, not
            UTF-8, or has a row without meaning representation or reference.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(_parse(path, csv.reader(file, strict=True)))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; expected an E2E CSV file"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); expected an E2E CSV file") from error


def _parse(path: Path, reader: Iterator[list[str]]) -> Iterator[tuple[str, str]]:
    line = 1
    try:
        header = next(reader, None)
        if header != ["mr", "ref"]:
            got = "an empty file" if header is None else f"columns {', '.join(header)}"
            raise DataError(f"{path}, line 1: got {got}; expected columns mr,ref")
        empty = True
        for row in reader:
            line = reader.line_num  # type: ignore[attr-defined]
            if len(row) != 2 or not row[0].strip() or not row[1].strip():
                raise DataError(
                    f"{path}, line {line}: got {row!r}; expected a meaning representation and a "
                    "reference, neither empty"
                )
            if _SLOT.match(row[0]) is None:
                raise DataError(
                    f"{path}, line {line}: got meaning representation {row[0]!r}; expected "
                    "attributes of the form name[value], ..."
                )
            empty = False
            yield row[0], row[1]
    except csv.Error as error:
        raise DataError(
            f"{path}, after line {line}: {error}; expected rows of two quoted fields"
        ) from error
    if empty:
        raise DataError(f"{path} has a header but no rows; expected at least one record")


def _hub_rows(split: str) -> list[tuple[str, str]]:
    """The hub's parquet copy; columns ``meaning_representation`` and ``human_reference``."""
    from datasets import load_dataset

    try:
        dataset = load_dataset(HUB_ID, revision="refs/convert/parquet", split=HUB_SPLITS[split])
    except Exception as error:  # the hub client raises many types; all mean the same here
        raise DataError(
            f"the E2E files were found neither in task.data_dir nor in $DPFT_DATA/e2e, and the "
            f"hub's copy {HUB_ID} could not be loaded ({type(error).__name__}). Set DPFT_DATA to "
            "the folder that holds e2e/trainset.csv, go online, or type task.source=sample for "
            "generated data"
        ) from error
    return hub_rows(dataset)


def hub_rows(dataset: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Rows of the hub's format as ``(mr, ref)``."""
    try:
        return [(row["meaning_representation"], row["human_reference"]) for row in dataset]
    except KeyError as error:
        raise DataError(
            f"the hub's E2E copy has no column {error}; expected meaning_representation and "
            "human_reference"
        ) from error


def slots(mr: str) -> list[tuple[str, str]]:
    """``"name[Aromi], area[riverside]"`` as attribute-value pairs, in order."""
    return [(match[1].strip(), match[2].strip()) for match in _SLOT.finditer(mr)]


def linearise(mr: str) -> str:
    """The prompt text: ``"name : Aromi | area : riverside"`` (as in Li et al. 2022's runs)."""
    return " | ".join(f"{name} : {value}" for name, value in slots(mr))
