"""The run record: everything that tables, cards and other readers know about a run."""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpft.config.errors import RecordError
from dpft.config.flags import sentence
from dpft.config.foreign import regular
from dpft.config.published import with_part_flags
from dpft.privacy.guarantee import Guarantee
from dpft.runs.atomic import disk_report, parse_json, write_atomic
from dpft.runs.directory import RunDirectory
from dpft.runs.folders import meant, replacing
from dpft.runs.log import finite, noiseless_names

SCHEMA_VERSION = 2
TABLE = "records.jsonl.gz"

NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


def _known(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a flag of which a sentence can be made."""
    try:
        sentence(stored)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks a parameter or has a wrong one: {error}") from error
    return stored


def _optional() -> Any:  # a key that may be left out, but not be null
    return Field(default=None)


Flags = list[Annotated[dict[str, Any], AfterValidator(_known)]]


class _Section(BaseModel):
    """A part of the record. Further keys are kept."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Task(_Section):
    name: str


class _Clip(_Section):
    plan: str


class _Decode(_Section):
    split: str


class Settings(_Section):
    """The settings that readers use, among those of `dpft.config.schema.Run.recorded`."""

    task: _Task
    clip: _Clip
    decode: _Decode
    seed: int


class Mechanism(_Section):
    """The parts of ``Mechanism.to_dict`` that readers use."""

    noise_multiplier: NonNegative = _optional()
    total_noise_multiplier: NonNegative = _optional()
    count_noise: NonNegative | None = None
    sampling: str = _optional()
    sampling_rate: NonNegative = _optional()
    steps: Count = _optional()
    repeated: Count = _optional()
    max_batch: Count = _optional()
    overflow: NonNegative = _optional()
    dataset_size: Count = _optional()
    groups: Count = _optional()
    delta: NonNegative = _optional()
    target_epsilon: NonNegative | None = None
    thresholds: list[NonNegative] = _optional()
    quantiles: dict[str, Any] | None = None
    allocation: str = _optional()


class Code(_Section):
    """Which dpft ran; ``commit`` and ``dirty`` are None outside a git checkout."""

    version: str
    commit: str | None
    dirty: bool | None


class Dataset(_Section):
    """The data: ``fingerprint`` is keyed if they are private; ``counts`` of records or users."""

    task: str
    source: str
    hub_revision: str | None = None  # the commit that was downloaded
    fingerprint: str
    counts: dict[str, Count]


class Epsilon(_Section):
    """Epsilon at delta by each accountant; None where there is no finite number."""

    class PRV(_Section):
        """Bounds and estimate by numerical composition; ``note`` where something was unusual."""

        lower: NonNegative | None
        estimate: NonNegative | None
        upper: NonNegative | None
        note: str = _optional()

    pld: NonNegative | None = None
    rdp: NonNegative | None
    gdp_clt: NonNegative | None
    prv: PRV | None


class Training(_Section):
    """The cost of training. Losses and norms are noiseless and stay under ``private/``."""

    steps: Count
    seconds: NonNegative
    peak_memory_bytes: Count | None  # of the first of several processes
    device: str
    ranks: Count = _optional()  # processes that trained together, where there were several


class Score(_Section):
    """Scores of one split over ``examples`` examples, by the metric that ``signature`` names."""

    metrics: dict[str, float | None]
    examples: Count
    signature: str
    lower: list[str] = _optional()  # metrics of a user's task that are better the lower they are
    distinct: Count = _optional()  # how many answers differ
    baselines: dict[str, float] = _optional()  # by metric, of always giving the commonest class
    confusion: dict[str, dict[str, Count]] = _optional()  # by true class, then by answer
    references: str = _optional()  # a plain hash of them, only where they are published
    correct: str = _optional()  # likewise, which answers are right (`metrics.shown`)
    unfinished: Count = _optional()
    cut_prompts: Count = _optional()


class Model(_Section):
    """The model that was trained."""

    base_model: str | None = None
    hub_model: str | None = None  # None for a base that is not on the hub
    hub_revision: str | None = None  # the commit that was downloaded
    weights_sha256: str | None = None  # of the first weights; None where they were drawn
    pipeline: str = _optional()  # the hub's name of the model's task
    adaptation: str = _optional()
    parameters: Count = _optional()
    trainable_parameters: Count = _optional()
    flags: Flags = _optional()  # those that stay true whatever the weights are trained on next


class Audit(_Section):
    """The lower bound that an audit's canaries prove; ``epsilon_lower`` None is infinite."""

    epsilon_lower: float | None
    confidence: float
    refuted: bool


class Evaluation(_Section):
    """Evaluations on held-out records during training."""

    of: str  # a split
    public: bool
    records: Count
    every: Count
    evaluations: Count
    history: list[dict[str, float | None]] = _optional()  # figures by step, of public records


class Selection(_Section):
    """How `dpft sweep --select` chose the run; ``privacy`` is then that of the whole selection."""

    metric: str
    best: str
    candidates: Count
    mean: float  # of the number of trials
    orders: list[float]  # the whole selection is Renyi DP at these orders ...
    rdp: list[float | None]  # ... with these values; None: infinite


class Plugin(_Section):
    """A part of the run that another package brought; ``sha256`` is of its module."""

    kind: str
    name: str
    package: str
    version: str
    sha256: str


class RunRecord(_Section):
    """``record.json``. ``flags`` says what is special about the run (`dpft.config.flags`)."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int
    stage: str = _optional()
    dpft: Code
    config: Settings
    config_hash: str
    origin: dict[str, Any] = _optional()  # settings that neither the command nor ``conf/`` gave
    environment: dict[str, Any]
    plugins: list[Plugin] = _optional()
    seeds: dict[str, Count | None]  # of the noise: None where the run's secret key was used
    dataset: Dataset
    model: Model = _optional()
    mechanism: Mechanism | None  # None where nothing is guaranteed
    privacy: Guarantee
    training: Training
    scores: dict[str, Score] = _optional()
    audit: Audit = _optional()
    evaluation: Evaluation = _optional()
    generations: dict[str, str] = _optional()
    flags: Flags = _optional()
    selection: Selection = _optional()

    @model_validator(mode="after")
    def _guarantee_fits(self) -> Self:
        if (self.mechanism is None) is not (self.privacy.kind == "none"):
            raise ValueError(f"the guarantee {self.privacy.kind!r} does not fit the mechanism")
        if self.privacy.epsilon is not None:
            Epsilon.model_validate(self.privacy.epsilon)
        if min(self.privacy.delta or 0, self.privacy.stated or 0, self.privacy.steps_taken) < 0:
            raise ValueError("delta, epsilon or the number of steps is negative")
        return self


def write_record(run: RunDirectory, record: Mapping[str, Any]) -> None:
    """Write ``record.json``, whole or not at all; numbers that JSON lacks become null."""
    if record.get("config_hash") != run.config_hash:
        raise RecordError(
            f"the record is of run {record.get('config_hash')}, but {run.path} holds run "
            f"{run.config_hash}: give `write_record` the directory that the record is of"
        )
    if private := noiseless_names(record.get("training"), "training"):
        raise RecordError(
            f"run record holds {', '.join(private)}, computed from private data without noise; "
            f"expected them only in {run.metrics}: log them with MetricsLog"
        )
    body = {"schema_version": SCHEMA_VERSION, **finite(record)}
    try:
        text = json.dumps(body, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
        wrong = _fault(text)
    except TypeError as error:
        wrong = f"{error}"
    if wrong:
        raise RecordError(f"the record cannot be written: {wrong}; expected dpft.runs.RunRecord")
    try:
        with replacing(run.path, run.record, text + "\n"):
            write_atomic(run.record, text + "\n")
    except OSError as error:
        raise RecordError(
            f"could not write {run.record}: {disk_report(run.path, error)}. What was there before "
            "is unchanged: free some space and run the same command again"
        ) from error


def update_record(run: RunDirectory, **sections: Any) -> dict[str, Any]:
    """Put sections into an existing record, as decoding and scoring do, and write it.

    ``scores`` and ``generations`` are merged split by split, other sections are replaced. Scores of
    another number of instances than was published get a flag. Returns the whole record.
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
    """Return the record at ``path``: a ``record.json`` or the run directory around it."""
    file = path / "record.json" if path.is_dir() else path
    try:
        record = parse_json(regular(file).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(
            f"{file} does not exist; expected a run that was trained: run its `dpft train` command "
            "again, which continues where it stopped, or give another folder, such as runs/NAME"
            f"{meant(path)}"
        ) from None
    except (OSError, ValueError) as error:
        problem = "is not JSON" if isinstance(error, ValueError) else "cannot be read"
        raise RecordError(
            f"{file} {problem} ({error}); expected a run record: restore it from a copy"
        ) from error
    return check_record(record, file)


def check_record(record: Any, place: Path) -> dict[str, Any]:
    """Return what was read as a record, as a mapping with the keys of `RunRecord`."""
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


def read_table(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records in a folder's table of finished runs, by name, GROUP/NAME.

    The table is compressed by gzip and has a line of JSON for each run. Records are not checked
    (`check_record`). Without a table there are none.
    """
    file = folder / TABLE
    try:
        lines = [parse_json(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
        return {line["path"]: line["record"] for line in lines}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, EOFError, TypeError, KeyError, ValueError, zlib.error) as error:
        raise RecordError(
            f"{file} cannot be read ({error!r}); expected a line of JSON for each run, compressed "
            "by gzip: restore it from a copy"
        ) from error


def write_table(folder: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a folder's table: equal records give equal bytes, in whatever order they come."""
    lines = [
        json.dumps({"path": path, "record": records[path]}, sort_keys=True, ensure_ascii=False)
        for path in sorted(records, key=PurePosixPath)
    ]
    text = "".join(f"{line}\n" for line in lines)
    write_atomic(folder / TABLE, gzip.compress(text.encode(), mtime=0))
