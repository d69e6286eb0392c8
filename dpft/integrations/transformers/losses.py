"""From a training set and a collator to Poisson batches of records, and to a loss for each record.

Trainer's own losses are averages over a batch, or sums divided by the batch's number of tokens.
Either couples records. Here a record's loss is the model's loss of a batch of that record alone;
`check_records` compares the two.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dpft.config.errors import ConfigError, DataError, ModelError
from dpft.integrations.transformers.spending import digest_of
from dpft.privacy import Clipper
from dpft.privacy.sampling import FixedShapes, Shape, padded
from dpft.privacy.sampling import Sampler as Poisson
from dpft.privacy.token_losses import IGNORED, token_losses
from dpft.tasks.objectives.evaluation import training_without_dropout
from dpft.tasks.objectives.independence import WritesError, check_independence
from dpft.tasks.objectives.objective import Batch, Losses
from dpft.tasks.units import Records

Inputs = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Inputs], Tensor]

_GIVE_YOUR_OWN = "pass per_example_loss=, a function of (model, inputs) that returns shape (B,)"
_LOGGER = logging.getLogger(__name__)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CHECKED = 64  # records of a set, spread over it


def loss_of(model: nn.Module) -> Loss:
    """Return the loss that a model trains with, for each record by itself.

    Args:
        model: with a head of transformers, or an adapter of peft around one.

    Raises:
        ModelError: for a head whose loss is not known here.
    """
    inner: Any = _unwrapped(model)
    kind, name = getattr(inner, "loss_type", None), type(inner).__name__
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        kind = "encoder-decoder" if kind in (None, "ForConditionalGeneration") else kind
    elif kind is None and name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        kind = "ForCausalLM"
    if kind not in _LOSSES:
        raise ModelError(
            f"the loss of {name} ({kind}) is not known as one of each record; expected one of "
            f"{', '.join(_LOSSES)}: {_GIVE_YOUR_OWN}"
        )
    return _LOSSES[kind]


def _unwrapped(model: nn.Module) -> nn.Module:
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def _logits(model: nn.Module, inputs: Inputs, *without: str) -> Tensor:
    output = model(**{name: x for name, x in inputs.items() if name not in without})
    logits: Tensor = output["logits"] if isinstance(output, dict) else output[0]
    return logits


def _mean(logits: Tensor, labels: Tensor) -> Tensor:
    """Return mean cross-entropy ``(B,)`` over each record's own targets; zero without any.

    Args:
        logits: ``(B, T, V)``.
        labels: ``(B, T)``, `IGNORED` where there is no target.
    """
    if logits.shape[:2] != labels.shape:
        raise ModelError(
            f"the model gives logits for {logits.shape[1]} positions and the collator labels for "
            f"{labels.shape[1]}; expected as many: {_GIVE_YOUR_OWN} (prompts of peft put "
            "more tokens in front, whose logits it must leave out)"
        )
    return token_losses(logits, labels).sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def _causal(model: nn.Module, inputs: Inputs) -> Tensor:
    # The last position predicts nothing. A slice's gradient would be as large as the logits again.
    targets = F.pad(inputs["labels"][:, 1:], (0, 1), value=IGNORED)
    return _mean(_logits(model, inputs, "labels"), targets)


def _tokens(model: nn.Module, inputs: Inputs) -> Tensor:
    return _mean(_logits(model, inputs, "labels"), inputs["labels"])


def _encoder_decoder(model: nn.Module, inputs: Inputs) -> Tensor:
    # With labels, from which the forward makes what the decoder reads.
    return _mean(_logits(model, inputs), inputs["labels"])


def _classes(model: nn.Module, inputs: Inputs) -> Tensor:
    config: Any = model.config
    logits, labels = _logits(model, inputs, "labels"), inputs["labels"]
    kind = config.problem_type
    if kind is None and config.num_labels == 1:
        kind = "regression"
    elif kind is None:
        single = labels.dtype in (torch.long, torch.int)
        kind = "single_label_classification" if single else "multi_label_classification"
    if kind == "single_label_classification":
        return F.cross_entropy(logits, labels.view(-1), ignore_index=IGNORED, reduction="none")
    of_labels = labels.view_as(logits).to(logits.dtype)
    if kind == "regression":
        return F.mse_loss(logits, of_labels, reduction="none").mean(1)
    return F.binary_cross_entropy_with_logits(logits, of_labels, reduction="none").mean(1)


_LOSSES: dict[str, Loss] = {
    "ForCausalLM": _causal,
    "ForMaskedLM": _tokens,
    "ForTokenClassification": _tokens,
    "encoder-decoder": _encoder_decoder,
    **{f"For{of}Classification": _classes for of in ("Sequence", "Image", "Audio", "Video")},
}


@dataclass(frozen=True)
class Logical:
    """The logical batch of a step; Trainer passes it on untouched.

    It is no mapping with ``labels`` or ``input_ids``, so that Trainer counts no tokens of it.
    """

    step: int
    records: list[Any]

    def __contains__(self, name: object) -> bool:
        return False


class LogicalBatches(Dataset[Logical]):
    """The logical batch of every step, by the step's number."""

    def __init__(self, dataset: Any, sampler: Poisson) -> None:
        self._dataset, self._sampler = dataset, sampler

    def __len__(self) -> int:
        """Return the number of records, not of steps: Trainer logs it."""
        return len(self._dataset)

    def __getitem__(self, step: int) -> Logical:
        return Logical(step, records_of(self._dataset, self._sampler.batch(step)))


class Steps(Sampler[list[int]]):
    """Numbers of the steps of the epoch that starts; ``done`` returns the steps taken so far."""

    def __init__(self, per_epoch: int, steps: int, done: Callable[[], int]) -> None:
        self._per_epoch, self._steps, self._done = per_epoch, steps, done

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        # From the epoch's beginning on: accelerate skips the steps that a resumed run has taken.
        first = self._done() // self._per_epoch * self._per_epoch
        return iter([[step] for step in range(first, min(first + self._per_epoch, self._steps))])


@dataclass(frozen=True)
class SizedRecord:
    """A record as the data set gives it, and its number of tokens (1 if it has none)."""

    record: Any
    length: int


_BLANK = SizedRecord(None, 0)
_ANY = 2**40  # positions of a microbatch, which has a limit on its rows
# What pads a text's tensors on the right; its tokens are padded by the model's padding token.
_FILL = {"attention_mask": 0, "labels": IGNORED, "position_ids": 0, "token_type_ids": 0}


class Collated:
    """An objective over records as a data set and a collator have them."""

    def __init__(self, collator: Callable[[list[Any]], Mapping[str, Any]], loss: Loss) -> None:
        self._collator = collator
        self._loss = loss
        self._forms: dict[tuple[str, ...], Any] = {}  # batches with names of tensors for these

    def collate(
        self, examples: Sequence[SizedRecord], widths: Sequence[int] | None = None
    ) -> Batch:
        """Return examples as a batch; raise DataError if rows are not of one record each."""
        records = [example.record for example in examples]
        with _needed_columns("the data collator", "each record", records[0]):
            collated = self._collator(records)
        given = dict(_flat(collated))
        odd = [
            name
            for name, x in given.items()
            if not (isinstance(x, Tensor) and x.dim() and len(x) == len(examples))
        ]
        if odd:
            raise DataError(
                f"the data collator gives {', '.join(odd)} without a row for each record; expected "
                "tensors of shape (B, ...): packing, flattening and padding-free collators mix "
                "records, so that none can be clipped by itself"
            )
        self._forms[tuple(given)] = _filled(collated, {name: name for name in given})
        return Batch(given)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return a loss for each record; raise ConfigError for losses of another shape."""
        inputs = _filled(self._forms[tuple(batch.tensors)], batch.tensors)
        with _needed_columns("per_example_loss", "the collated batch", inputs):
            losses: Any = self._loss(model, inputs)
        rows = len(next(iter(batch.tensors.values())))
        if not isinstance(losses, Tensor) or losses.shape != (rows,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ConfigError(
                f"per_example_loss returned {shape} for {rows} records; expected shape (B,), one "
                "loss for each record: type reduction='none', and average each record's positions"
            )
        return losses

    def blank(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError  # shapes are not fixed here

    widths = widest = blank


class CollatedAlone(Collated):
    """Records that are collated one by one, for products in bfloat16.

    Guarantee: the shapes that a record is computed in follow from that record and from the model's
    configuration; see `dpft.privacy.sampling`.
    """

    def __init__(
        self, collator: Callable[[list[Any]], Mapping[str, Any]], loss: Loss, config: Any
    ) -> None:
        super().__init__(collator, loss)
        self._most = getattr(config, "max_position_embeddings", None) or 2**30
        self._fill = {**_FILL, "input_ids": getattr(config, "pad_token_id", None) or 0}

    def collate(
        self, examples: Sequence[SizedRecord], widths: Sequence[int] | None = None
    ) -> Batch:
        """Join records of one shape; a padding example is a short copy of the first record."""
        real = [self._alone(one) for one in examples if one is not _BLANK]
        blank = dict(real[0])
        if "attention_mask" in blank:
            blank["attention_mask"] = torch.zeros_like(blank["attention_mask"])
            blank["attention_mask"][:, 0] = 1
        rows = [*real, *[blank] * (len(examples) - len(real))]
        return Batch({name: torch.cat([row[name] for row in rows]) for name in blank})

    def widths(self, example: SizedRecord, coarse: bool = False) -> tuple[int, ...]:
        tensors = self._alone(example)
        positions = tensors["input_ids"].shape[1] if "input_ids" in tensors else 1
        return (positions, *(size for x in tensors.values() for size in x.shape[1:]))

    def blank(self) -> SizedRecord:
        return _BLANK

    def _alone(self, example: SizedRecord) -> dict[str, Tensor]:
        """Return a record's tensors, padded on the right where a mask says so."""
        tensors = dict(super().collate([example]).tensors)
        ids = tensors.get("input_ids")
        if ids is None or ids.dim() != 2 or "attention_mask" not in tensors:
            return tensors
        more = padded(ids.shape[1], self._most) - ids.shape[1]
        for name in tensors.keys() & self._fill.keys():
            if tensors[name].shape == ids.shape:
                tensors[name] = F.pad(tensors[name], (0, more), value=self._fill[name])
        return tensors


@dataclass(frozen=True)
class FixedRows(FixedShapes):
    """Microbatches of ``rows`` records at most, and of a sixteenth of a batch."""

    rows: int = 1

    def units(self, shape: Shape, token_budget: int) -> int:
        return min(super().units(shape, _ANY), self.rows + 1)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over what nested mappings and sequences hold, with its place, as ``inputs.ids``."""
    if value is None:
        return
    if not isinstance(value, Mapping | list | tuple):
        yield name, value
        return
    for place, one in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _flat(one, f"{name}.{place}".lstrip("."))


def _filled(form: Any, leaves: Mapping[str, Any], name: str = "") -> Any:
    """Undo `_flat` with these leaves; None in place of others."""
    if isinstance(form, Mapping):
        places = {
            place: f"{name}.{place}".lstrip(".") for place, x in form.items() if x is not None
        }
        return {place: _filled(form[place], leaves, named) for place, named in places.items()}
    if isinstance(form, list | tuple):
        return tuple(_filled(x, leaves, f"{name}.{i}".lstrip(".")) for i, x in enumerate(form))
    return leaves.get(name)


@contextmanager
def _needed_columns(who: str, where: str, held: Any) -> Iterator[None]:
    """Name the argument that removes columns where one is missing."""
    try:
        yield
    except KeyError as error:
        names = ", ".join(map(str, held)) if isinstance(held, Mapping) else type(held).__name__
        raise ConfigError(
            f"{who} asks for {error}, and {where} has {names}; expected it there: columns that the "
            "model's forward does not take are removed unless you type remove_unused_columns=False"
        ) from error


def length_of(record: Any) -> int:
    """Return the number of a record's tokens; 1 if it has none."""
    tokens = record.get("input_ids") if isinstance(record, Mapping) else None
    return 1 if tokens is None else len(tokens)


def records_of(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return some records of a data set, by one call where it can."""
    several = getattr(dataset, "__getitems__", None)
    if indices and several:
        return list(several(list(indices)))
    return [dataset[i] for i in indices]


def examples_of(records: Sequence[Any]) -> list[SizedRecord]:
    """Return the records of a logical batch, short ones first, which need little padding."""
    sized = [SizedRecord(record, length_of(record)) for record in records]
    return sorted(sized, key=lambda example: example.length)


def check_records(
    dataset: Any,
    lengths: Sequence[int],
    objective: Collated,
    model: nn.Module,
    clipper: Clipper,
    *,
    size: int,
    known_loss: bool,
    trained: Losses,
    shapes: FixedShapes | None,
) -> str:
    """Check that records, collator and model keep records apart and are the same twice.

    Records are kept apart in the losses and shapes that are ``trained`` on.

    Returns:
        SHA-256 of the records that were read, as they are collated, as hex: a collator with other
        settings is another one, whatever its name is.

    Raises:
        DataError: if reading or collating is random, or mixes records; if no label is a target.
        ModelError: if a loss depends on other records, or is not the model's.
    """
    # Some that are spread over the set, and its shortest and longest: one long record may be rare.
    spread = {round(i) for i in np.linspace(0, len(dataset) - 1, _CHECKED)}
    places = sorted(spread | {int(np.argmin(lengths)), int(np.argmax(lengths))})
    once, again = (examples_of(records_of(dataset, places)) for _ in range(2))
    batches = [objective.collate(x).tensors for x in (once, once, again)]
    # NaN equals NaN here, since one record's may not stop a run.
    if len({digest_of(sorted(batch.items())) for batch in batches}) > 1:
        raise DataError(
            "reading or collating the same records twice gives different tensors; expected no "
            "random numbers in either, so that a step can be repeated: draw masks and "
            "augmentations once, into the data set"
        )
    if known_loss:
        _check_loss(model, clipper, objective, [objective.collate([x]) for x in reversed(once)])
    try:
        records = Records(trained, once, shapes)
        check_independence(records, model, clipper, size * int(records.lengths.max()))
    except WritesError:
        raise
    except ModelError as error:
        raise ModelError(
            f"with {type(model).__name__} and this data collator the loss of a record depends on "
            "the other records of its batch, so that no clipping bounds a record's gradient; "
            "expected a model that applies the attention mask and draws no random numbers but "
            "dropout of each row (set layerdrop in its config to 0, and dropout where rows share "
            "what is dropped), and a loss that averages over a record's own tokens"
        ) from error
    if "labels" in batches[0]:
        _check_targets(dataset, objective, causal=known_loss and loss_of(model) is _causal)
    if known_loss:
        _warn_of_ends(model, batches[0])
    return digest_of(batches[0].items())


def _check_loss(
    model: nn.Module, clipper: Clipper, objective: Collated, singles: Sequence[Batch]
) -> None:
    """Compare our loss of a record with the model's own, without dropout.

    Raises:
        DataError: if there are no labels.
        ModelError: if the losses differ. The message has no number of the data.
    """
    if any("." in name for name in singles[0].tensors):
        raise DataError(
            f"the data collator gives a nested batch ({', '.join(singles[0].tensors)}), and a "
            f"model's own loss takes a flat one; expected a flat one: {_GIVE_YOUR_OWN}"
        )
    if "labels" not in singles[0].tensors:
        raise DataError(
            f"the data collator gives {', '.join(singles[0].tensors)} and no labels; expected the "
            "targets that the loss needs: for texts give each row labels, a copy of its "
            "input_ids, and use DataCollatorForSeq2Seq(tokenizer)"
        )
    device = next(model.parameters()).device
    with training_without_dropout(model), clipper.paused(), torch.no_grad():
        for alone in (one.to(device) for one in singles):
            output = model(**alone.tensors)
            own = output["loss"] if isinstance(output, dict) else output[0]
            if not torch.isfinite(own):  # without targets it is a mean over nothing
                continue
            if torch.allclose(own.double(), objective.losses(model, alone)[0].double(), 1e-3):
                return
            raise ModelError(
                f"the loss that {type(_unwrapped(model)).__name__} computes of a record is not the "
                f"one that PrivateTrainer would train with: {_GIVE_YOUR_OWN}"
            )


def _check_targets(dataset: Any, objective: Collated, causal: bool) -> None:
    """Raise DataError if no label is a target; read until the first record that has one.

    In a ``causal`` model the first label of a record is none.
    """
    for first in range(0, len(dataset), _CHECKED):
        places = range(first, min(first + _CHECKED, len(dataset)))
        batch = objective.collate(examples_of(records_of(dataset, places)))
        labels = batch.tensors["labels"]
        if bool(((labels[:, 1:] if causal else labels) != IGNORED).any()):
            return
    raise DataError(
        f"every label of train_dataset is {IGNORED}, as it is collated, so that every step would "
        "spend its budget and train nothing; expected a record with a target: see whether the data "
        "collator finds the answers, and whether the texts are cut before them"
    )


def _warn_of_ends(model: nn.Module, batch: Inputs) -> None:
    """Warn if the texts of a causal model end in its end token, which is never a target.

    That is what collators do that set labels to `IGNORED` wherever the padding token is, if that is
    the end token.
    """
    ends = getattr(getattr(_unwrapped(model), "config", None), "eos_token_id", None)
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if loss_of(model) is not _causal or ids is None or mask is None or ends is None:
        return
    places = torch.isin(ids, torch.as_tensor(ends)) & (mask != 0)
    if places.any() and (batch["labels"][places] == IGNORED).all():
        _LOGGER.warning(
            "The end token (%s) is in the records and never a target, as they are collated, so "
            "that the model does not learn to stop: DataCollatorForLanguageModeling does that "
            "where pad_token is eos_token. Give each row labels, a copy of its input_ids, and use "
            "DataCollatorForSeq2Seq(tokenizer).",
            ends,
        )


@dataclass(frozen=True)
class Survey:
    """Properties of a data set, from one pass over it.

    Attributes:
        fingerprint: SHA-256 over the records in order: a replayed step is one release only if it
            saw the same records.
        lengths: tokens of each record.
        contents: 64 bits of a digest of each, the same in whatever form it is stored.
    """

    fingerprint: str
    lengths: Sequence[int]
    contents: Sequence[int]

    def repeated(self, dataset: Any) -> float:
        """Return the share of another data set's records that are among these."""
        found = np.isin(survey(dataset).contents, self.contents)
        return float(found.mean()) if len(found) else 0.0


def survey(dataset: Any) -> Survey:
    """Read all records, with the columns that the model takes, once.

    Raises:
        DataError: if records differ by their place in memory alone.
    """
    rows, form = (dataset[i] for i in range(len(dataset))), getattr(dataset, "format", None)
    if hasattr(dataset, "with_format") and isinstance(form, Mapping) and form["type"] != "custom":
        # datasets.Dataset: without its formatting, many at once. A transform is read through.
        tables = dataset.with_format("arrow").iter(1000)
        rows = (row for table in tables for row in table.to_pylist())
    digest, lengths, contents = hashlib.sha256(), array("q"), array("Q")
    for record in rows:
        lengths.append(length_of(record))
        content = row = _sha256(record)
        digest.update(row)
        if isinstance(record, Mapping) and record.get("input_ids") is not None:
            values: list[Any] = [record.get(name) for name in ("input_ids", "labels", "label")]
            content = _sha256([x.tolist() if hasattr(x, "tolist") else x for x in values])
        contents.append(int.from_bytes(content[:8]))
    return Survey(digest.hexdigest(), lengths, contents)


def _sha256(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, default=_plain).encode()).digest()


def _plain(value: Any) -> Any:
    """Return a value that JSON has no form for in another form that determines it."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Tensor) or hasattr(value, "__array_interface__"):
        numbers = np.ascontiguousarray(value)
        # An image of PIL may have its colours in a palette.
        palette = getattr(value, "getpalette", lambda: None)()
        digest = hashlib.sha256(numbers.tobytes()).hexdigest()
        return [str(numbers.dtype), numbers.shape, digest, palette]
    text = repr(value)
    if _ADDRESS.search(text) and not isinstance(value, bytes):
        raise DataError(
            f"records of type {type(value).__name__} cannot be recognised again, since they differ "
            "by their place in memory alone, so that no run on them could continue; expected "
            "tensors, numbers or text: convert them in the data set"
        )
    return text
