"""The run record: all that tables, cards and readers may know of a run."""

# No postponed annotations here: they would hide NotRequired from `RunRecord.__required_keys__`.

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from dpft.config.files import regular
from dpft.config.published import with_part_labels
from dpft.runs.atomic import write_atomic
from dpft.runs.directory import RunDirectory
from dpft.runs.environment import CodeVersion
from dpft.runs.errors import RecordError, disk_report
from dpft.runs.finished import replacing
from dpft.runs.guard import noiseless_names
from dpft.runs.stored import runs_beside
from dpft.runs.wellformed import NonNegative, fault, parse_json

SCHEMA_VERSION = 2


class DatasetRecord(TypedDict):
    """``fingerprint`` should be keyed if the data is private; ``counts``: records or users."""

    task: str
    source: str
    fingerprint: str
    counts: dict[str, int]


class PRVEpsilon(TypedDict):
    """Bounds and estimate by numerical composition; ``note`` where something was unusual."""

    lower: NonNegative | None
    estimate: NonNegative | None
    upper: NonNegative | None
    note: NotRequired[str]


class EpsilonRecord(TypedDict):
    """Epsilon at delta by each accountant; None where there is no finite number."""

    pld: NotRequired[NonNegative | None]  # None also where it was not computed
    rdp: NonNegative | None
    gdp_clt: NonNegative | None
    prv: PRVEpsilon | None


class PrivacyRecord(TypedDict):
    """What is guaranteed: `dpft.privacy.guarantee.Guarantee`, which computes and reads it."""

    kind: str
    noun: str
    unit: str
    neighbouring: str
    steps_taken: int
    delta: NonNegative | None
    epsilon: EpsilonRecord | None
    stated: NonNegative | None
    accountant: str | None
    statement: str
    strength: str
    meaning: str
    voided_by: list[str]
    warnings: list[str]
    caveats: list[str]
    selected: bool


class TrainingRecord(TypedDict):
    """What training cost; no loss, no norms: those are noiseless and stay private.

    ``ranks``: how many processes trained together, where there were several; the peak is the first
    one's.
    """

    steps: int
    seconds: NonNegative
    peak_memory_bytes: int | None
    device: str
    ranks: NotRequired[int]


class ScoreRecord(TypedDict):
    """Scores of one split, over ``examples`` examples, by the metric that ``signature`` names.

    ``references``: a digest of them, where they are published; a plain hash, hence of no others.
    ``correct``: likewise, which of them were answered rightly (`dpft.tasks.metrics.correct`).
    ``distinct``: how many answers differ. ``baselines``: by metric, what the most frequent class
    scores everywhere. ``confusion``: counts by true class, then by answer.
    """

    metrics: dict[str, float | None]
    examples: int
    distinct: NotRequired[int]
    baselines: NotRequired[dict[str, float]]
    confusion: NotRequired[dict[str, dict[str, int]]]
    references: NotRequired[str]
    correct: NotRequired[str]
    signature: str
    unfinished: NotRequired[int]
    cut_prompts: NotRequired[int]


class ModelRecord(TypedDict, total=False):
    """What was trained: ``hub_model`` is None for a base that no hub has.

    ``weights_sha256``: of the files that training began with; None where weights were drawn.
    ``pipeline``: what the hub calls the model's task.
    """

    base_model: str | None
    hub_model: NotRequired[str | None]
    weights_sha256: NotRequired[str | None]
    pipeline: NotRequired[str]
    adaptation: str
    parameters: int
    trainable_parameters: int
    labels: NotRequired[list[str]]


class Named(TypedDict):
    """A part of the configuration that readers ask for its name."""

    name: str


class Clipping(TypedDict):
    """What readers ask of the clipping style."""

    plan: str


class Decoding(TypedDict):
    """What readers ask of decoding: ``split`` is the one whose scores count."""

    split: str


class ConfigRecord(TypedDict):
    """The settings that readers ask for, among all others; see `dpft.config.schema.Run`."""

    task: Named
    clip: Clipping
    decode: Decoding
    model: NotRequired[Mapping[str, Any]]
    seed: int


class MechanismRecord(TypedDict, total=False):
    """What readers ask of ``Mechanism.to_dict``, among more."""

    private: bool
    noise_multiplier: NonNegative
    total_noise_multiplier: NonNegative
    count_noise: NonNegative | None
    sampling: str
    sampling_rate: NonNegative
    steps: int
    repeated: int
    max_batch: int
    overflow: NonNegative
    dataset_size: int
    groups: int
    delta: NonNegative
    target_epsilon: NonNegative | None
    thresholds: list[NonNegative]
    quantiles: Mapping[str, Any] | None
    allocation: str


class AuditRecord(TypedDict):
    """What an audit's canaries prove; ``epsilon_lower`` is None where it is infinite."""

    epsilon_lower: float | None
    confidence: float
    refuted: bool


class EvaluationRecord(TypedDict):
    """Evaluations on held-out records while the run trained, and what was chosen by them.

    ``of``: a split, or ``file``. ``chosen``: the step whose weights were kept, the best by
    ``metric``. ``scored``: records of the file are also scored. ``history``: figures by step, and
    ``baseline``, the accuracy of the most frequent class everywhere, only where the records are
    ``public``.
    """

    of: str
    public: bool
    records: int
    every: int
    evaluations: int
    metric: str | None
    chosen: int | None
    scored: NotRequired[bool]
    history: NotRequired[list[dict[str, float | None]]]
    baseline: NotRequired[NonNegative | None]


class SelectionRecord(TypedDict):
    """How `dpft select` chose the run, whose ``privacy`` is then that of the whole selection.

    ``mean`` and ``shape`` (``"inf"``: Poisson) are of the number of trials, ``mechanisms`` what the
    candidates spend, as arguments of `dpft.privacy.accounting.run_curve`.
    """

    metric: str
    best: str
    candidates: int
    mean: float
    shape: float | str
    mechanisms: list[dict[str, Any]]


class PluginRecord(TypedDict):
    """A part of the run that another package brought; ``sha256`` of the module that has it."""

    kind: str
    name: str
    package: str
    version: str
    sha256: str


class OriginRecord(TypedDict):
    """Settings that nobody typed and that are not those of ``conf/``, and where they are from."""

    values: dict[str, Any]
    source: str


class RunRecord(TypedDict):
    """``record.json``. ``mechanism`` is None where nothing is guaranteed.

    ``seeds["noise"]`` is the explicit seed, or None where the run's secret key was used.
    ``nulls`` is filled in on writing: dotted key to the number that JSON could not hold.
    """

    schema_version: NotRequired[int]
    stage: NotRequired[str]
    dpft: CodeVersion
    config: ConfigRecord
    config_hash: str
    origin: NotRequired[OriginRecord]
    environment: Mapping[str, Any]
    plugins: NotRequired[list[PluginRecord]]
    seeds: Mapping[str, int | None]
    dataset: DatasetRecord
    model: NotRequired[ModelRecord]
    mechanism: MechanismRecord | None
    privacy: PrivacyRecord
    training: TrainingRecord
    scores: NotRequired[dict[str, ScoreRecord]]
    audit: NotRequired[AuditRecord]
    evaluation: NotRequired[EvaluationRecord]
    generations: NotRequired[dict[str, str]]
    labels: NotRequired[list[str]]
    selection: NotRequired[SelectionRecord]
    nulls: NotRequired[dict[str, str]]


def write_record(run: RunDirectory, record: Mapping[str, Any]) -> None:
    """Write ``record.json``, whole or not at all.

    Numbers that JSON lacks become null, and ``nulls`` says which they were.

    Raises:
        RecordError: a section is missing or unknown, the record is of another run, it holds
            training statistics that are not private, or the disk refused.
    """
    known, required = RunRecord.__annotations__.keys(), RunRecord.__required_keys__
    missing, unknown = sorted(required - record.keys()), sorted(record.keys() - known)
    if missing or unknown:
        raise RecordError(
            f"run record lacks {missing} and has unknown {unknown}; expected the sections of "
            f"dpft.runs.RunRecord: {', '.join(known)}"
        )
    if record["config_hash"] != run.config_hash:
        raise RecordError(
            f"record of run {record['config_hash']} cannot be written into {run.path}, which holds "
            f"run {run.config_hash}: give `write_record` the directory that the record is of"
        )
    private = noiseless_names(record["training"], "training")
    if private:
        raise RecordError(
            f"run record holds {', '.join(private)}, computed from private data without noise; "
            f"expected them only in {run.metrics}: log them with MetricsLog"
        )
    nulls: dict[str, str] = {}
    body = {"schema_version": SCHEMA_VERSION, **finite(record, nulls)}
    body["nulls"] = nulls | {
        key: why for key, why in dict(record.get("nulls", {})).items() if _is_null(body, key)
    }
    try:
        text = json.dumps(body, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    except TypeError as error:
        raise RecordError(
            f"run record cannot be written ({error}); expected plain numbers, strings, lists and "
            f"mappings: convert tensors with `.item()` and paths with `str`"
        ) from error
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
    another number of instances than was published get a label.

    Returns:
        The whole record, as read back.
    """
    record = read_record(run.record)
    for name, section in sections.items():
        merged = name in ("scores", "generations")
        record[name] = {**record.get(name, {}), **section} if merged else section
    if "scores" in sections:
        record["labels"] = with_part_labels(record)
    write_record(run, record)
    return read_record(run.record)


def read_record(path: Path) -> dict[str, Any]:
    """The record at ``path``: a ``record.json`` or the run directory around it.

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
            "look at it with dpft report, or run its `dpft train` command again, it continues "
            "where it stopped"
        )
        if not (path / "config.yaml").exists():  # no run was begun there
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
    wrong = fault(record, RunRecord)
    if wrong is None and (record["mechanism"] is None) is not (record["privacy"]["kind"] == "none"):
        kind = record["privacy"]["kind"]
        wrong = f"its guarantee is {kind!r}, which does not fit its mechanism"
    if wrong is not None:
        raise RecordError(
            f"{place} is no run record that dpft wrote ({wrong}): restore it from a copy, or train "
            "again"
        )
    return dict(record)


def finite(value: Any, nulls: dict[str, str], where: str = "") -> Any:
    """A value with null for what JSON has no number for.

    Args:
        value: plain data.
        nulls: takes up, by dotted key, what such numbers were.
        where: the key of the value itself.
    """
    if isinstance(value, float) and not math.isfinite(value):
        nulls[where] = str(float(value))
        return None
    if isinstance(value, Mapping):
        prefix = f"{where}." if where else ""
        return {str(key): finite(item, nulls, f"{prefix}{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, nulls, f"{where}.{index}") for index, item in enumerate(value)]
    return value


def _is_null(body: Any, dotted: str) -> bool:
    """Whether a place that was null when the record was last written still is."""
    for part in dotted.split("."):
        if isinstance(body, Mapping):
            body = body.get(part, 0)
        elif isinstance(body, list) and part.isdigit() and int(part) < len(body):
            body = body[int(part)]
        else:
            return False
    return body is None
