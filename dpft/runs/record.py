"""The run record: everything that tables, cards and other readers know about a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpft.config.files import regular
from dpft.config.flags import sentence
from dpft.config.published import with_part_flags
from dpft.privacy.guarantee import Guarantee
from dpft.runs.atomic import parse_json, write_atomic
from dpft.runs.directory import RunDirectory
from dpft.runs.errors import RecordError, disk_report
from dpft.runs.finished import replacing
from dpft.runs.guard import noiseless_names
from dpft.runs.stored import runs_beside

SCHEMA_VERSION = 2

NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


def _known(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a flag of which a sentence can be made."""
    try:
        sentence(stored)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks a parameter or has a wrong one: {error}") from error
    return stored


Flags = list[Annotated[dict[str, Any], AfterValidator(_known)]]


class _Section(BaseModel):
    """A part of the record. Keys beyond those named here are kept."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Code(_Section):
    """Which dpft ran; ``commit`` and ``dirty`` are None outside a git checkout."""

    version: str
    commit: str | None
    dirty: bool | None


class Dataset(_Section):
    """The data: ``fingerprint`` is keyed if they are private; ``counts`` of records or users."""

    task: str
    source: str
    fingerprint: str
    counts: dict[str, Count]


class Training(_Section):
    """What training cost. Losses and norms are noiseless and stay under ``private/``.

    ``ranks`` is given where several processes trained together; the peak is the first one's.
    """

    steps: Count
    seconds: NonNegative
    peak_memory_bytes: Count | None
    device: str
    ranks: Count | None = None


class Score(_Section):
    """Scores of one split over ``examples`` examples, by the metric that ``signature`` names.

    ``references`` is a plain hash of the references, only where they are published; ``correct``
    says which of them were answered correctly (`dpft.tasks.metrics.correct`). ``distinct`` counts
    different answers, ``lower`` names the metrics of other packages that are better the lower they
    are. ``baselines`` has, for a metric, the score of always giving the most frequent
    class; ``confusion`` counts by true class, then by answer.
    """

    metrics: dict[str, float | None]
    examples: Count
    signature: str
    distinct: Count | None = None
    baselines: dict[str, float] | None = None
    confusion: dict[str, dict[str, Count]] | None = None
    references: str | None = None
    correct: str | None = None
    unfinished: Count | None = None
    cut_prompts: Count | None = None
    lower: list[str] | None = None


class Model(_Section):
    """What was trained.

    ``hub_model`` is None for a base that is not on the hub, ``weights_sha256`` where the first
    weights were drawn. ``pipeline`` is the hub's name of the model's task, ``flags`` are those that
    stay true of the weights whatever they are trained on next.
    """

    base_model: str | None = None
    hub_model: str | None = None
    weights_sha256: str | None = None
    pipeline: str | None = None
    adaptation: str | None = None
    parameters: Count | None = None
    trainable_parameters: Count | None = None
    flags: Flags | None = None


class _Named(_Section):
    name: str


class _Clip(_Section):
    style: str


class _Decode(_Section):
    split: str


class Config(_Section):
    """The settings that readers ask for, among all others (`dpft.config.schema.Run`)."""

    task: _Named
    clip: _Clip
    decode: _Decode
    model: dict[str, Any] | None = None
    seed: Count


class MechanismFacts(_Section):
    """What readers ask of ``Mechanism.to_dict``, among more."""

    private: bool | None = None
    noise_multiplier: NonNegative | None = None
    total_noise_multiplier: NonNegative | None = None
    count_noise: NonNegative | None = None
    sampling: str | None = None
    sampling_rate: NonNegative | None = None
    steps: Count | None = None
    repeated: Count | None = None
    max_batch: Count | None = None
    overflow: NonNegative | None = None
    dataset_size: Count | None = None
    groups: Count | None = None
    delta: NonNegative | None = None
    target_epsilon: NonNegative | None = None
    thresholds: list[NonNegative] | None = None
    quantiles: dict[str, Any] | None = None
    allocation: str | None = None


class Audit(_Section):
    """What an audit's canaries prove; ``epsilon_lower`` is None where it is infinite."""

    epsilon_lower: float | None
    confidence: float
    refuted: bool


class Evaluation(_Section):
    """Evaluations on held-out records during training, and what was chosen by them.

    ``of`` is a split, or ``file``. ``chosen`` is the step whose weights were kept, the best by
    ``metric``. ``scored``: records of the file are also scored. ``history`` (figures by step) and
    ``baseline`` (accuracy of the most frequent class) exist only where the records are ``public``.
    """

    of: str
    public: bool
    records: Count
    every: Count
    evaluations: Count
    metric: str | None
    chosen: Count | None
    scored: bool | None = None
    history: list[dict[str, float | None]] | None = None
    baseline: NonNegative | None = None


class Selection(_Section):
    """How `dpft select` chose the run, whose ``privacy`` is then that of the whole selection.

    ``mean`` and ``shape`` (``"inf"``: Poisson) are of the number of trials, ``mechanisms`` what the
    candidates spend, as arguments of `dpft.privacy.accounting.run_curve`.
    """

    metric: str
    best: str
    candidates: Count
    mean: float
    shape: float | str
    mechanisms: list[dict[str, Any]]


class Plugin(_Section):
    """A part of the run that another package brought; ``sha256`` is of its module."""

    kind: str
    name: str
    package: str
    version: str
    sha256: str


class Origin(_Section):
    """Settings that neither the command nor ``conf/`` gave, and where they are from."""

    values: dict[str, Any]
    source: str


class RunRecord(_Section):
    """``record.json``. ``mechanism`` is None where nothing is guaranteed.

    ``seeds["noise"]`` is the explicit seed, or None where the run's secret key was used. ``flags``
    says what is special about the run (`dpft.config.flags`).
    """

    model_config = ConfigDict(extra="forbid")

    schema_version: int
    stage: str | None = None
    dpft: Code
    config: Config
    config_hash: str
    origin: Origin | None = None
    environment: dict[str, Any]
    plugins: list[Plugin] | None = None
    seeds: dict[str, Count | None]
    dataset: Dataset
    model: Model | None = None
    mechanism: MechanismFacts | None
    privacy: Guarantee
    training: Training
    scores: dict[str, Score] | None = None
    audit: Audit | None = None
    evaluation: Evaluation | None = None
    generations: dict[str, str] | None = None
    flags: Flags | None = None
    selection: Selection | None = None

    @model_validator(mode="after")
    def _guarantee_fits(self) -> Self:
        if (self.mechanism is None) is not (self.privacy.kind == "none"):
            raise ValueError(f"the guarantee {self.privacy.kind!r} does not fit the mechanism")
        return self


def write_record(run: RunDirectory, record: Mapping[str, Any]) -> None:
    """Write ``record.json``, whole or not at all; numbers that JSON lacks become null.

    Raises:
        RecordError: it is not of the form of `RunRecord`, is of another run, holds training
            statistics that are not private, or cannot be written.
    """
    if record.get("config_hash") != run.config_hash:
        raise RecordError(
            f"the record is of run {record.get('config_hash')}, but {run.path} holds run "
            f"{run.config_hash}: give `write_record` the directory that the record is of"
        )
    private = noiseless_names(record.get("training"), "training")
    if private:
        raise RecordError(
            f"run record holds {', '.join(private)}, computed from private data without noise; "
            f"expected them only in {run.metrics}: log them with MetricsLog"
        )
    body = {"schema_version": SCHEMA_VERSION, **finite(record)}
    try:
        text = json.dumps(body, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    except TypeError as error:
        raise RecordError(
            f"run record cannot be written ({error}); expected plain numbers, strings, lists and "
            f"mappings: convert tensors with `.item()` and paths with `str`"
        ) from error
    if wrong := _fault(text):
        raise RecordError(f"the record cannot be written: {wrong}; expected dpft.runs.RunRecord")
    try:
        with replacing(run.path, run.record, text + "\n"):
            write_atomic(run.record, text + "\n")
    except OSError as error:
        raise RecordError(
            f"could not write {run.record}: {disk_report(run.path, error)}. What was there before "
            f"is unchanged: free some space and run the same command again"
        ) from error


def update_record(run: RunDirectory, **sections: Any) -> dict[str, Any]:
    """Put sections into an existing record, as decoding and scoring do, and write it.

    ``scores`` and ``generations`` are merged split by split, other sections are replaced. Scores of
    another number of instances than was published get a flag.

    Returns:
        The whole record, as read back.
    """
    record = read_record(run.record)
    for name, section in sections.items():
        merged = name in ("scores", "generations")
        record[name] = {**record.get(name, {}), **section} if merged else section
    if "scores" in sections:
        record["flags"] = with_part_flags(record)
    write_record(run, record)
    return read_record(run.record)


def read_record(path: Path) -> dict[str, Any]:
    """Read the record at ``path``: a ``record.json`` or the run directory around it.

    Returns:
        A mapping with the keys of `RunRecord`.

    Raises:
        RecordError: there is none, or it is not one that this version can read.
    """
    file = path / "record.json" if path.is_dir() else path
    try:
        record = parse_json(regular(file).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        advice = (
            "look at it with dpft report, or run its `dpft train` command again, which continues "
            "where it stopped"
        )
        if not (path / "config.yaml").exists():  # no run was started there
            advice = runs_beside(path)
        raise RecordError(
            f"{file} does not exist; expected a run that was trained: {advice}"
        ) from None
    except OSError as error:
        raise RecordError(
            f"{file} cannot be read ({error.strerror}); expected a run record: restore it from a "
            "copy"
        ) from error
    except ValueError as error:
        if file.suffix != ".json":
            raise RecordError(
                f"{file} is a file; expected a run's folder: {runs_beside(path)}"
            ) from None
        raise RecordError(
            f"{file} is not JSON ({error}); expected a run record: restore it from a copy"
        ) from error
    return check_record(record, file)


def check_record(record: Any, place: Path) -> dict[str, Any]:
    """Return what was read as a record, as a mapping with the keys of `RunRecord`.

    Raises:
        RecordError: it is not one that this version can read; ``place`` is named.
    """
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{place} has schema version {version!r}; this dpft reads version {SCHEMA_VERSION}: "
            "use the dpft version that wrote it, or train again"
        )
    if wrong := _fault(json.dumps(record)):
        raise RecordError(
            f"{place} is no run record that dpft wrote ({wrong}): restore it from a copy, or train "
            "again"
        )
    return dict(record)


def _fault(text: str) -> str | None:
    """Return the first thing that is wrong with a record's JSON, with its place; None if valid."""
    try:
        RunRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the record"
        return f"{place}: {first['msg']}, got {str(first['input'])[:60]!r}"
    return None


def finite(value: Any) -> Any:
    """Return plain data with null for each number that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
