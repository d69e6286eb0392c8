"""From a training set and a collator to Poisson batches of records that do not mix."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from dpft.config.errors import ConfigError, DataError, ModelError
from dpft.integrations.transformers import checkpoints
from dpft.integrations.transformers.losses import Loss, check_loss
from dpft.privacy import Clipper
from dpft.privacy.sampling import Sampler as Poisson
from dpft.privacy.token_losses import IGNORED
from dpft.tasks.objectives.base import Batch
from dpft.tasks.objectives.evaluation import training_without_dropout
from dpft.tasks.objectives.independence import WritesError, check_independence
from dpft.tasks.units import Records

Collator = Callable[[list[Any]], Mapping[str, Any]]

_LOGGER = logging.getLogger(__name__)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CHECKED = 64  # records of a set, spread over it


@dataclass(frozen=True)
class Logical:
    """The logical batch of a step; Trainer passes it on untouched.

    It is no mapping with ``labels`` or ``input_ids``, so that Trainer counts no tokens of it.
    """

    step: int
    records: list[Any]

    def __contains__(self, name: object) -> bool:
        return False


@dataclass(frozen=True)
class SizedRecord:
    """A record as the data set gives it, and its length."""

    record: Any
    length: int

    @classmethod
    def of(cls, record: Any) -> SizedRecord:
        """Its length is that of its tokens, where it has any."""
        tokens = record.get("input_ids") if isinstance(record, Mapping) else None
        return cls(record, 1 if tokens is None else len(tokens))


class LogicalBatches(Dataset[Logical]):
    """The logical batch of every step, by the step's number."""

    def __init__(self, dataset: Any, sampler: Poisson) -> None:
        self._dataset = dataset
        self._sampler = sampler

    def __len__(self) -> int:
        """Records, not steps: what Trainer tells of the data."""
        return len(self._dataset)

    def __getitem__(self, step: int) -> Logical:
        return Logical(step, records_of(self._dataset, self._sampler.batch(step)))


class Steps(Sampler[list[int]]):
    """Numbers of the steps of the epoch that is about to begin.

    Args:
        per_epoch: steps that Trainer counts as an epoch.
        steps: of the whole run.
        done: how many were taken, when asked.
    """

    def __init__(self, per_epoch: int, steps: int, done: Callable[[], int]) -> None:
        self._per_epoch = per_epoch
        self._steps = steps
        self._done = done

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        # From the epoch's beginning on: accelerate skips what a resumed run has behind it.
        first = self._done() // self._per_epoch * self._per_epoch
        return iter([[step] for step in range(first, min(first + self._per_epoch, self._steps))])


class Collated:
    """An objective over records as a data set and a collator have them."""

    def __init__(self, collator: Collator, loss: Loss) -> None:
        self._collator = collator
        self._loss = loss

    def collate(
        self, examples: Sequence[SizedRecord], widths: Sequence[int] | None = None
    ) -> Batch:
        """Examples as a batch.

        Raises:
            DataError: if the collator does not keep records in rows of their own.
        """
        given = self._collator([example.record for example in examples])
        odd = [
            name
            for name, x in given.items()
            if x is not None and not (isinstance(x, Tensor) and x.dim() and len(x) == len(examples))
        ]
        if odd:
            raise DataError(
                f"the data collator gives {', '.join(odd)} without a row for each record; expected "
                "tensors of shape (B, ...): packing, flattening and padding-free collators mix "
                "records, so that none can be clipped by itself"
            )
        return Batch({name: x for name, x in given.items() if x is not None})

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return a loss for each record.

        Raises:
            ConfigError: if the loss function returns anything else.
        """
        losses: Any = self._loss(model, batch.tensors)
        rows = len(next(iter(batch.tensors.values())))
        if not isinstance(losses, Tensor) or losses.shape != (rows,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ConfigError(
                f"per_example_loss returned {shape} for {rows} records; expected shape (B,), one "
                "loss for each record: type reduction='none', and average each record's positions"
            )
        return losses

    def widths(self, example: Any) -> tuple[int, ...]:
        raise NotImplementedError("shapes are not fixed here")

    def widest(self) -> tuple[int, ...]:
        raise NotImplementedError("shapes are not fixed here")

    def blank(self) -> Any:
        raise NotImplementedError("shapes are not fixed here")


def records_of(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Some records of a data set, in one go where it can."""
    if not indices:
        return []
    several = getattr(dataset, "__getitems__", None)
    return list(several(list(indices))) if several else [dataset[i] for i in indices]


def examples_of(records: Sequence[Any]) -> list[SizedRecord]:
    """The records of a logical batch, short ones first: what is alike is padded little."""
    return sorted(map(SizedRecord.of, records), key=lambda example: example.length)


def loader(dataset: LogicalBatches, steps: Steps, args: Any) -> DataLoader[Logical]:
    """What Trainer iterates over: one logical batch for each of its steps.

    Args:
        dataset: of all steps.
        steps: of one epoch.
        args: ``TrainingArguments``, for workers.
    """
    workers = args.dataloader_num_workers
    return DataLoader(
        dataset,
        batch_sampler=steps,
        collate_fn=_only,
        num_workers=workers,
        prefetch_factor=args.dataloader_prefetch_factor if workers else None,
        persistent_workers=args.dataloader_persistent_workers if workers else False,
    )


def _only(items: list[Logical]) -> Logical:
    (one,) = items
    return one


def check_dataset(dataset: Any) -> None:
    """Refuse what has no records that could be drawn by number.

    Raises:
        DataError: naming the kind of data set.
    """
    if dataset is None:
        raise DataError("there is no train_dataset; expected one")
    # A stream may tell its length, and inherits an access by number that only raises.
    stream = isinstance(dataset, IterableDataset)
    if stream or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"train_dataset is a {type(dataset).__name__}, which has no length or no records by "
            "number; expected a map-style data set: each record is drawn by itself"
        )


def check_records(
    dataset: Any,
    lengths: Sequence[int],
    objective: Collated,
    model: nn.Module,
    clipper: Clipper,
    *,
    size: int,
    known_loss: bool,
) -> str:
    """Refuse records, collators and models that couple records or are not the same twice.

    Args:
        dataset: with the columns that the model takes.
        lengths: of all its records.
        objective: collates it and has the losses.
        model: on its device.
        clipper: attached to the model.
        size: records of a microbatch.
        known_loss: whether the loss is to be what the model says of a record alone.

    Returns:
        SHA-256 of the records that were looked at, as they are collated, as hex: a collator with
        other settings is another one, whatever its name is.

    Raises:
        DataError: if reading or collating is random, or mixes records.
        ModelError: if a loss depends on other records, or is not the model's.
    """
    # Some that are spread over the set, and its shortest and longest: one long record may be rare.
    spread = {round(i) for i in np.linspace(0, len(dataset) - 1, _CHECKED)}
    places = sorted(spread | {int(np.argmin(lengths)), int(np.argmax(lengths))})
    once, again = (examples_of(records_of(dataset, places)) for _ in range(2))
    batches = [objective.collate(x) for x in (once, once, again)]
    if any(not _equal(batches[0].tensors, batch.tensors) for batch in batches[1:]):
        raise DataError(
            "reading or collating the same records twice gives different tensors; expected no "
            "random numbers in either, so that a step can be repeated: draw masks and "
            "augmentations once, into the data set"
        )
    device = next(model.parameters()).device
    if known_loss:
        singles = [objective.collate([one]) for one in reversed(once)]
        given = singles[0].tensors
        if not {"labels", "start_positions"} & given.keys():
            raise DataError(
                f"the data collator gives {', '.join(given)} and no labels; expected the "
                "targets that the loss needs: for texts give each row labels, a copy of its "
                "input_ids, and use DataCollatorForSeq2Seq(tokenizer)"
            )
        if _never_ends(batches[0], model):
            _LOGGER.warning(
                "The end token is in the texts, but in no labels: the model will not learn to "
                "stop. DataCollatorForLanguageModeling takes it out of the labels where it pads "
                "too: give each row labels, a copy of its input_ids, and use "
                "DataCollatorForSeq2Seq(tokenizer)"
            )
        with training_without_dropout(model), clipper.paused(), torch.no_grad():
            # Of a record without targets the model's own mean is over nothing.
            for one in [one for one in singles if _has_targets(one)] or singles[:1]:
                alone = one.to(device)
                if check_loss(model, alone.tensors, objective.losses(model, alone)):
                    break
    try:
        records = Records(objective, once)
        check_independence(records, model, clipper, size * int(records.lengths.max()))
    except WritesError:
        raise
    except ModelError as error:
        raise ModelError(
            f"with {type(model).__name__} and this data collator the loss of a record depends on "
            "what else is in its batch, so that no clipping bounds what one record adds; expected "
            "a model that heeds the attention mask and draws no random numbers but dropout of each "
            "row (set layerdrop in its config to 0, and dropout where rows share what is dropped), "
            "and a loss that averages over a record's own tokens"
        ) from error
    return checkpoints.digest(batches[0].tensors.items())


def check_targets(dataset: Any, objective: Collated) -> None:
    """Refuse a data set without any target: its steps would spend the budget and train nothing.

    It decides for the whole set, and reads until the first record that has a target.

    Raises:
        DataError: if every label of every record is ignored.
    """
    for first in range(0, len(dataset), _CHECKED):
        places = range(first, min(first + _CHECKED, len(dataset)))
        batch = objective.collate(examples_of(records_of(dataset, places)))
        if "labels" not in batch.tensors or _has_targets(batch):
            return
    raise DataError(
        f"every label of train_dataset is {IGNORED}, as it is collated, so that every step would "
        "spend its budget and train nothing; expected a record with a target: see whether the data "
        "collator finds the answers, and whether the texts are cut before them"
    )


def _never_ends(batch: Batch, model: Any) -> bool:
    """Whether texts have the end token, and no text has it among what is trained."""
    end = getattr(getattr(model, "config", None), "eos_token_id", None)
    ids, labels = batch.tensors.get("input_ids"), batch.tensors.get("labels")
    if not isinstance(end, int) or ids is None or labels is None or ids.shape != labels.shape:
        return False
    given = batch.tensors.get("attention_mask", torch.ones_like(ids)).bool()
    return bool((ids[given] == end).any()) and not bool((labels == end).any())


def _has_targets(batch: Batch) -> bool:
    labels = batch.tensors.get("labels")
    return labels is not None and bool((labels != IGNORED).any())


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether batches are equal, where NaN equals NaN: one record's may not stop a run."""

    def same(x: Tensor, y: Tensor) -> bool:
        alike = x.shape == y.shape and x.dtype == y.dtype
        return alike and bool(((x == y) | (x.isnan() & y.isnan())).all())

    return one.keys() == other.keys() and all(same(x, other[name]) for name, x in one.items())


@dataclass(frozen=True)
class Survey:
    """What one pass over a data set finds.

    Attributes:
        fingerprint: SHA-256 over the records in order, as hex. A replayed step is one release only
            if it saw the same records.
        lengths: of the records, as of `SizedRecord`.
        contents: 64 bits of a digest of each, the same however the record is stored.
    """

    fingerprint: str
    lengths: Sequence[int]
    contents: Sequence[int]

    def repeated(self, dataset: Any) -> float:
        """Return the share of another data set's records that are among these."""
        found = np.isin(survey(dataset).contents, self.contents)
        return float(found.mean()) if len(found) else 0.0


def survey(dataset: Any) -> Survey:
    """Read all records once.

    Args:
        dataset: with the columns that the model takes.

    Raises:
        DataError: if a record is told by its place in memory alone.
    """
    digest, lengths, contents = hashlib.sha256(), array("q"), array("Q")
    for record, row in _rows(dataset):
        lengths.append(SizedRecord.of(record).length)
        digest.update(row)
        contents.append(int.from_bytes(_content(record, row)[:8]))
    return Survey(digest.hexdigest(), lengths, contents)


def _rows(dataset: Any) -> Iterator[tuple[Any, bytes]]:
    """Each record and its SHA-256."""
    form = getattr(dataset, "format", None)
    if hasattr(dataset, "with_format") and isinstance(form, Mapping) and form["type"] != "custom":
        # datasets.Dataset: without its formatting, many at once. A transform is read through.
        for table in dataset.with_format("arrow").iter(1000):
            for record in table.to_pylist():
                yield record, hashlib.sha256(json.dumps(record, default=repr).encode()).digest()
        return
    for i in range(len(dataset)):
        record, digest = dataset[i], hashlib.sha256()
        _add(digest, record)
        yield record, digest.digest()


def _content(record: Any, row: bytes) -> bytes:
    """Return a digest of a record's tokens and labels; of other records the given one."""
    if not isinstance(record, Mapping) or record.get("input_ids") is None:
        return row
    values: list[Any] = [record.get(name) for name in ("input_ids", "labels", "label")]
    plain = [value.tolist() if hasattr(value, "tolist") else value for value in values]
    return hashlib.sha256(json.dumps(plain, default=repr).encode()).digest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            _add(digest, name)
            _add(digest, value[name])
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)};".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, Tensor | np.ndarray):
        array = np.ascontiguousarray(value)
        digest.update(f"{array.dtype} {array.shape};".encode() + array.tobytes())
    elif hasattr(value, "__array_interface__") and not isinstance(value, np.generic):
        # An image of PIL, whose colours may lie in a palette beside it.
        _add(digest, np.asarray(value))
        _add(digest, getattr(value, "getpalette", lambda: None)())
    else:
        text = repr(value)
        if not isinstance(value, str | bytes) and _ADDRESS.search(text):
            raise DataError(
                f"records of type {type(value).__name__} cannot be recognised again, since they "
                "are told by where they lie in memory, so that no run on them could go on; "
                "expected tensors, numbers or text: convert them in the data set"
            )
        spelled = text.encode()
        digest.update(f"{len(spelled)};".encode() + spelled)
