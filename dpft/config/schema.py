"""The settings of a run: their types and ranges, and the effect of each.

The comments in the files of ``conf/`` explain them; ``dpft ls optim=adam`` shows such a file.

A group of settings is a frozen pydantic dataclass: it refuses unknown keys and wrong types, so that
no setting is silently without effect. ``Annotated`` adds a range and an `Effect`. What makes two
configs the same run, or repetitions of one experiment, follows from the effects (`experiment`).
"""

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar, get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, ValidationError, create_model
from pydantic.dataclasses import dataclass

from dpft.config.errors import Missing, SettingError, one_of, suggestion
from dpft.config.flags import Flag, Stored, flag
from dpft.privacy.spec import (
    CLIP_FUNCTIONS,
    HIGHEST,
    LOWEST,
    PARTITIONS,
    PLANS,
    Accountant,
    Allocation,
    Partition,
    Sampling,
    Style,
    misfit,
    style_of,
)

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
HUGE = 1e30  # products with larger numbers overflow in float32
Count = Annotated[int, Gt(0)]
Whole = Annotated[int, Ge(0)]
Seed = Annotated[int, Ge(0), Lt(2**63)]  # what random generators have room for
Positive = Annotated[float, Gt(0), Le(HUGE)]
NonNegative = Annotated[float, Ge(0), Le(HUGE)]
Threshold = Annotated[float, Ge(LOWEST), Le(HIGHEST)]
Fraction = Annotated[float, Ge(0), Lt(1)]
Share = Annotated[float, Gt(0), Lt(1)]
Processes = Annotated[int, Gt(0), Le(4096)]
Canaries = Annotated[int, Ge(0), Le(1e6)]  # their scores are arrays in memory

# Other names of settings of ``privacy``, where their values stand too.
SHORTHANDS: Mapping[str, str] = {"eps": "privacy.epsilon", "sampling": "privacy.sampling"}


class Effect(Enum):
    """The kind of change that a setting makes. Without one, it is part of the identity."""

    IDENTITY = "what is computed: another value is another experiment"
    REPETITION = "which run of an experiment it is: scores of all of them stand for one cell"
    EXECUTION = "where and how it is computed, which may change when a run is resumed"
    PLACE = "where a run is stored, and what it is called"


@dataclass(frozen=True, config=STRICT)
class Model:
    """``conf/model``: which model, and how it is built."""

    name: str
    path: Annotated[str, Effect.REPETITION]
    revision: Annotated[str | None, Effect.REPETITION] = None
    tied: bool | None = None
    init: Literal["pretrained", "scratch"] = "pretrained"
    dropout: Fraction | None = None
    checkpointing: Annotated[bool, Effect.REPETITION] = False
    dtype: Literal["float32", "bfloat16", "nf4"] = "float32"
    pooling: Literal["mean"] | None = None


# Each adaptation with the settings that it must have, and those that it may have.
_ADAPTATIONS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(("full", "scratch", "linear", "bias", "attention"), ((), ())),
    "top2": (("blocks",), ()),
    "lora": (("rank", "alpha"), ("dropout", "targets")),
    "prefix": (("length",), ("hidden",)),
    "rgp": (("rank", "follow"), ()),
}
ADAPTATIONS = tuple(_ADAPTATIONS)
# Those that train a head on what was pooled, as the pilots of docs/reference/optimisation.md did.
_POOLED = ("linear", "bias", "lora", "full")


@dataclass(frozen=True, config=STRICT)
class Adapt:
    """``conf/adapt``: which parameters are trained, or what is added to them."""

    name: str
    blocks: Count | None = None
    rank: Count | None = None
    alpha: Count | None = None
    dropout: Fraction | None = None
    targets: tuple[str, ...] | None = None
    length: Count | None = None
    hidden: Count | None = None
    follow: Literal["update", "weight"] | None = None

    def __post_init__(self) -> None:
        one_of("adapt.name", self.name, ADAPTATIONS)
        needs, may_have = _ADAPTATIONS[self.name]
        for name in needs:
            if getattr(self, name) is None:
                advice = f"type adapt={self.name}, whose file sets it"
                raise SettingError(f"adapt.{name}", Missing.UNSET, advice=advice)
        others = [n for n in _hints(Adapt) if n not in ("name", *needs, *may_have)]
        _check_unchanged("adapt", self, others, "on another adapt")


_QUANTILE = ("quantile", "quantile_lr", "quantile_budget", "quantile_noise", "rescale")


@dataclass(frozen=True, config=STRICT)
class Clip:
    """``conf/clip``: how per-example gradients are clipped, and where noise and budget go."""

    plan: Annotated[str, Effect.REPETITION]
    groups: str = "flat"
    threshold: Threshold | None = None
    thresholds: tuple[Threshold, ...] | None = None
    clip_function: str = "abadi"
    count: Count | None = None
    boundary: Count | None = None
    patterns: tuple[Any, ...] | None = None
    adaptive: bool = False
    quantile: Share | None = None
    quantile_lr: Positive | None = None
    quantile_budget: Annotated[float, Gt(0), Le(0.9)] | None = None
    quantile_noise: Positive | None = None
    rescale: Threshold | None = None
    allocation: Allocation = "global"

    def __post_init__(self) -> None:
        one_of("clip.plan", self.plan, PLANS)
        for name, known in (("groups", tuple(PARTITIONS)), ("clip_function", CLIP_FUNCTIONS)):
            value = getattr(self, name)
            if ":" not in value:
                one_of(f"clip.{name}", value, (*known, "your.module:name"))
        reason = misfit(self._parts)
        if reason is not None:
            other = "clip.plan=bk" if self.own_groups else f"clip={self.style} with its own plan"
            said = f"{reason}: type {other}"
            raise SettingError("clip.plan", self.plan, f"another plan for {self.groups}", said)
        if not self.private:
            return
        if not self.own_groups:
            try:
                object.__setattr__(self, "patterns", self.partition.patterns)
            except ValueError as error:
                advice = f"{error}; its settings are typed as ++clip.count=4"
                raise SettingError("clip.groups", self.groups, advice=advice) from error
        if (self.threshold is None) == (self.thresholds is None):
            advice = "type clip.threshold=0.1, or clip.threshold=null next to clip.thresholds"
            raise SettingError("clip.threshold", self.threshold, "one of both", advice)
        if not self.adaptive:
            return
        for name, example in (("quantile", "0.5"), ("quantile_lr", "0.3")):
            if getattr(self, name) is None:
                raise SettingError(f"clip.{name}", None, "a number", f"type clip.{name}={example}")
        if (self.quantile_budget is None) == (self.quantile_noise is None):
            advice = "type clip.quantile_budget=0.01 clip.quantile_noise=null"
            expected = f"exactly one of it and clip.quantile_noise={self.quantile_noise}"
            raise SettingError("clip.quantile_budget", self.quantile_budget, expected, advice)

    @property
    def private(self) -> bool:
        """True if gradients are clipped."""
        return self.plan != "none"

    @property
    def style(self) -> str:
        """The name of plan, groups, and fixed or adaptive thresholds in run names and tables."""
        return style_of(self._parts)

    @property
    def own_groups(self) -> bool:
        """True if a rule of the user groups the parameters."""
        return self.groups not in PARTITIONS

    @property
    def partition(self) -> Partition:
        """How parameters are grouped, but for `own_groups`; ValueError: not with these settings."""
        return Partition(self.groups, self.count, self.boundary, self.patterns)

    @property
    def _parts(self) -> Style:
        return Style(self.plan, self.groups, self.adaptive)  # type: ignore[arg-type]


@dataclass(frozen=True, config=STRICT)
class Privacy:
    """``conf/privacy``: the budget, and how it is spent."""

    epsilon: Positive | None = None
    delta: Share | None = None
    accountant: Accountant = "pld"
    noise_multiplier: Annotated[float, Ge(1 / HUGE), Le(HUGE)] | None = None
    sampling: Sampling = "poisson"
    max_batch: Count | None = None
    noise_seed: Annotated[Seed | None, Effect.REPETITION] = None


Optimizer = Literal["adam", "adamw", "sgd"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)


@dataclass(frozen=True, config=STRICT)
class Optim:
    """``conf/optim``: the optimizer, the expected batch size, and how long it runs."""

    name: Optimizer
    lr: Positive
    epochs: NonNegative
    batch_size: Count | None = None
    sampling_rate: Annotated[float, Gt(0), Le(1)] | None = None
    rate_like: str | None = None
    steps: Whole | None = None
    microbatch_tokens: Annotated[Count | Literal["auto"], Effect.REPETITION] = "auto"
    weight_decay: NonNegative = 0.0
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    adam_epsilon: Positive = 1e-8
    momentum: Fraction = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Whole = 0
    warmup_ratio: Annotated[float, Ge(0), Le(1)] | None = None

    def __post_init__(self) -> None:
        if self.batch_size is None and self.sampling_rate is None:
            advice = "type it, or optim.sampling_rate: type optim.batch_size=1024"
            raise SettingError("optim.batch_size", Missing.UNSET, advice=advice)

    @property
    def tokens(self) -> int:
        """The tokens of a microbatch; where ``auto`` was not replaced by what fits, 4,096."""
        return 4096 if self.microbatch_tokens == "auto" else self.microbatch_tokens


def warmup_steps(settings: Optim, steps: int) -> int:
    """Return the steps of the warm-up in a run of ``steps``; a share is rounded up."""
    if settings.warmup_ratio is None:
        return settings.warmup_steps
    return math.ceil(settings.warmup_ratio * steps)


def lr_factor(settings: Optim, step: int, steps: int) -> float:
    """Return the learning rate over its peak: a linear warm-up, then the schedule.

    ``linear`` and ``cosine`` (half a period) fall to zero at the end of the run.
    """
    warmup = warmup_steps(settings, steps)
    if step < warmup:
        return (step + 1) / warmup
    if settings.schedule == "constant":
        return 1.0
    left = max(0.0, (steps - step) / max(1, steps - warmup))
    return left if settings.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2


@dataclass(frozen=True, config=STRICT)
class Decode:
    """``conf/decode``: beam search or sampling."""

    beams: Annotated[int, Gt(0), Le(1000)] = 5
    sample: bool = False
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    max_new_tokens: Count = 100
    length_penalty: float = 1.0
    batch_size: Annotated[Count | Literal["auto"], Effect.REPETITION] = "auto"
    precision: Annotated[Literal["float32", "bfloat16"], Effect.EXECUTION] = "float32"
    split: Annotated[Literal["dev", "test"], Effect.REPETITION] = "test"

    def __post_init__(self) -> None:
        if self.sample and self.beams > 1:
            advice = "with decode.sample=true: type decode.beams=1, or decode.sample=false"
            raise SettingError("decode.beams", self.beams, "one beam", advice)

    @property
    def rows(self) -> int:
        """The prompts of a batch; where ``auto`` was not replaced by what fits, 32."""
        return 32 if self.batch_size == "auto" else self.batch_size


@dataclass(frozen=True, config=STRICT)
class Evaluate:
    """``conf/evaluate``: when the model is evaluated on held-out records; it changes no result."""

    every: Count | Literal["epoch"] | None = None
    split: Literal["dev", "test"] = "dev"
    max_records: Count | None = None
    public: bool = False

    def steps_between(self, epoch: int) -> int:
        """Return ``every`` as a number of steps, of which an epoch has so many."""
        return epoch if self.every == "epoch" else self.every or 0


@dataclass(frozen=True, config=STRICT)
class Audit:
    """``conf/audit``: canaries of a run; all numbers zero: none."""

    gradients: Canaries = 0
    secrets: Canaries = 0
    repetitions: Annotated[int, Gt(0), Le(1e6)] = 1
    candidates: Annotated[int, Ge(100), Le(1e6)] = 1000

    @property
    def planted(self) -> int:
        """How many records the secrets add to the training data."""
        return self.secrets * self.repetitions

    @property
    def canaries(self) -> int:
        """How many more units of privacy the run has than its data."""
        return self.planted + self.gradients

    @property
    def active(self) -> bool:
        """True if the run has canaries."""
        return bool(self.gradients or self.secrets)

    def flags(self) -> list[Stored]:
        """Return what is special about a run with these canaries."""
        flags = []
        if self.gradients:
            flags.append(flag(Flag.CANARIES, count=self.gradients))
        if self.secrets:
            flags.append(flag(Flag.CANARY_TEXTS, count=self.secrets, repetitions=self.repetitions))
        return flags

    def caveats(self, noun: str) -> list[str]:
        """Return what the guarantee of a run does not cover; ``noun`` is of its unit of privacy."""
        caveats = []
        if self.secrets and self.repetitions > 1:
            caveats.append(
                f"epsilon is for one {noun}, and each of the {self.secrets} secrets is in the data "
                f"{self.repetitions} times: it has the influence of {self.repetitions} {noun}s, "
                "which epsilon does not cover"
            )
        if self.gradients:
            caveats.append(
                "the audit's figures (right guesses, epsilon spent at least) are computed from the "
                "noise itself, which is no part of the release, so that no epsilon covers them: "
                "leave them out wherever all that is published must be covered"
            )
        return caveats


@dataclass(frozen=True, config=STRICT)
class Parallel:
    """``conf/parallel``: how processes share model and batch.

    ``data``: each has a copy of the model; ``fsdp``: a part of every parameter; ``pipeline``: some
    of its blocks.
    """

    name: Literal["data", "fsdp", "pipeline"] = "data"
    microbatches: Count | None = None


SERVICES = ("wandb", "mlflow")


@dataclass(frozen=True, config=STRICT)
class Track:
    """``conf/track``: a tracker, which gets what the guarantee covers."""

    name: Literal["none", "csv", "tensorboard", "wandb", "mlflow"] = "none"
    project: str = "dpft"


@dataclass(frozen=True, config=STRICT)
class Sweep:
    """Settings that ``dpft sweep`` passes to its jobs; they change no result."""

    folder: str | None = None
    list: str | None = None
    point: int | None = None


# Settings of tasks that are not part of the identity: where published data are, memory, what other
# groups repeat, and weights of metrics, which recorded runs have.
TASK_EFFECTS: Mapping[str, Effect] = dict.fromkeys(
    ("data_dir", "revision", "train_size", "beams", "eval_split", "bertscore", "bleurt"),
    Effect.REPETITION,
)


@dataclass(frozen=True, config=STRICT)
class Run:
    """All settings of one run. ``raw`` is the composed config."""

    task: Mapping[str, Any]
    model: Model
    adapt: Adapt
    clip: Clip
    privacy: Privacy
    optim: Optim
    decode: Decode
    seed: Annotated[Seed, Effect.REPETITION]
    name: Annotated[str | None, Effect.PLACE]
    runs_dir: Annotated[str, Effect.PLACE]
    device: Annotated[str, Effect.EXECUTION]
    threads: Annotated[Processes | None, Effect.EXECUTION]
    checkpoint_every: Annotated[Count, Effect.EXECUTION]
    resume: Annotated[str | None, Effect.EXECUTION]
    force: Annotated[bool, Effect.EXECUTION]
    raw: Annotated[Mapping[str, Any], Effect.PLACE]
    sweep: Annotated[Sweep, Effect.PLACE] = dataclasses.field(default_factory=Sweep)
    parallel: Annotated[Parallel, Effect.EXECUTION] = dataclasses.field(default_factory=Parallel)
    audit: Audit = dataclasses.field(default_factory=Audit)
    evaluate: Annotated[Evaluate, Effect.EXECUTION] = dataclasses.field(default_factory=Evaluate)
    track: Annotated[Track, Effect.EXECUTION] = dataclasses.field(default_factory=Track)
    record_norms: Annotated[Count | None, Effect.EXECUTION] = None
    ranks: Annotated[Processes | None, Effect.EXECUTION] = None
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: Annotated[bool | Literal["auto"], Effect.EXECUTION] = "auto"
    verbosity: Annotated[Literal["quiet", "normal", "steps"], Effect.EXECUTION] = "normal"
    checkpoint_minutes: Annotated[Positive | None, Effect.EXECUTION] = 5.0
    origin: Annotated[Mapping[str, Any], Effect.PLACE] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if "name" not in self.task:
            raise SettingError("task.name", Missing.UNSET, advice="type task=e2e")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise SettingError("device", self.device, "auto, cpu or cuda")
        path = PurePath("unnamed" if self.name is None else self.name)
        # Files in a folder private/ are never shown, and no run is looked for there.
        if path.is_absolute() or not path.name or {"..", "private"}.intersection(path.parts):
            expected = "a folder below runs_dir, not in a private/, such as name=first"
            raise SettingError("name", self.name, expected)
        budget = (self.privacy.epsilon, self.privacy.noise_multiplier)
        if self.clip.private and budget == (None, None):
            advice = "type eps=3, privacy.noise_multiplier=1, or clip=none for no privacy"
            raise SettingError("privacy.epsilon", Missing.UNSET, advice=advice)
        pipeline, prefix = self.parallel.name == "pipeline", self.adapt.name == "prefix"
        if self.adapt.name == "scratch" and self.model.init != "scratch":
            advice = "adapt=scratch trains drawn weights: type model.init=scratch, or adapt=full"
            raise SettingError("model.init", self.model.init, advice=advice)
        trained = (self.adapt.name, self.precision, self.parallel.name)
        if self.model.dtype != "float32" and trained != ("lora", "bfloat16", "data"):
            advice = (
                "only a frozen model may be rounded, and where its products are: type adapt=lora "
                "precision=bfloat16 parallel=data"
            )
            raise SettingError("model.dtype", self.model.dtype, "float32", advice)
        if self.model.checkpointing and (prefix or pipeline):
            advice = (
                "transformers drops the prefix under checkpointing: type another adapt"
                if prefix
                else "stages of a pipeline keep the activations of several microbatches: type "
                "parallel=data or parallel=fsdp"
            )
            raise SettingError("model.checkpointing", True, "false", advice)
        if self.model.pooling is not None and self.adapt.name not in _POOLED:
            advice = f"adapt={self.adapt.name} would train the block that pools"
            expected = f"null, or one of adapt={', '.join(_POOLED)}"
            raise SettingError("model.pooling", self.model.pooling, expected, advice)
        if self.compile is True and (self.parallel.name != "data" or self.model.checkpointing):
            advice = (
                "a step with model.checkpointing, or over fsdp or pipeline, is no single program"
            )
            raise SettingError("compile", True, "auto or false", advice)
        if self.evaluate.every is not None and self.parallel.name != "data":
            advice = "no rank has the whole model: type parallel=data"
            raise SettingError("evaluate.every", self.evaluate.every, "null", advice)

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide what is computed, of which a run's hash is made.

        They do not depend on how they were typed: otherwise one run could be trained, and paid for,
        twice.
        """
        return experiment(vars(self), Effect.IDENTITY, Effect.REPETITION)

    def recorded(self) -> dict[str, Any]:
        """Return the settings that a record keeps, defaults included."""
        privacy = dataclasses.asdict(_spent(self.clip, self.privacy))
        return {
            name: privacy if name == "privacy" else self.raw[name]
            for name in self.raw
            if name in names_with(Run, Effect.IDENTITY, Effect.REPETITION)
            and getattr(getattr(self, name), "active", True)
        }


def parse(raw: Mapping[str, Any]) -> Run:
    """Check a composed config and turn it into settings.

    Raises:
        ConfigError: for the first setting that is unknown or impossible.
    """
    given: dict[str, Any] = {key: value for key, value in raw.items() if key not in SHORTHANDS}
    for name, group in GROUPS.items():
        if name in given:
            given[name] = build(group, given[name], name)
    return build(Run, given, raw=raw)


def experiment(settings: Mapping[str, Any], *effects: Effect) -> dict[str, Any]:
    """Return the settings with one of these effects that are not null or their default.

    Two runs for which they are equal are the same (`Run.identity`), or repetitions of one
    experiment (`dpft.reproduce.tables.record_index.match_key`).

    Args:
        settings: of a `Run` by name; a group may be a mapping, and a missing one has its defaults.
        effects: those of the returned settings.
    """
    groups = {name: settings.get(name, {}) for name in GROUPS}
    built = {n: build(GROUPS[n], g, n) if isinstance(g, Mapping) else g for n, g in groups.items()}
    built["privacy"] = _spent(built["clip"], built["privacy"])
    kept: dict[str, Any] = {
        "task": {
            key: value
            for key, value in settings["task"].items()
            if value is not None and TASK_EFFECTS.get(key, Effect.IDENTITY) in effects
        }
    }
    for name in names_with(Run, *effects) - {"task"}:
        if name not in GROUPS:
            value, default = settings.get(name), _defaults(Run).get(name)
            kept |= {} if value in (None, default) else {name: value}
        elif getattr(built[name], "active", True):
            group, chosen = built[name], names_with(type(built[name]), *effects)
            kept[name] = {key: v for key, v in _changed(group).items() if key in chosen}
    return {key: value for key, value in kept.items() if value != {}}


def _spent(clip: Clip, privacy: Privacy) -> Privacy:
    """Return the settings of privacy without a budget that has no effect."""
    if not clip.private:
        return Privacy(sampling=privacy.sampling, max_batch=privacy.max_batch)
    if privacy.noise_multiplier is not None:  # epsilon follows from it
        return dataclasses.replace(privacy, epsilon=None)
    return privacy


def names_with(cls: Any, *effects: Effect) -> frozenset[str]:
    """Return the settings of a group that have one of these effects."""
    return frozenset(name for name, effect in effects_of(cls).items() if effect in effects)


@functools.cache
def effects_of(cls: Any) -> Mapping[str, Effect]:
    """Return the effect of each setting of a group."""
    return {
        name: next(
            (e for e in getattr(hint, "__metadata__", ()) if isinstance(e, Effect)), Effect.IDENTITY
        )
        for name, hint in _hints(cls).items()
    }


def build(cls: type[T], mapping: Any, where: str = "", **others: Any) -> T:
    """Build a group, or another dataclass, from a mapping, and check keys and values.

    Args:
        cls: a pydantic dataclass of this file, or a plain one such as a task.
        mapping: its settings.
        where: the group as it is typed; empty for the whole config.
        others: fields of ``cls`` that are no settings.

    Raises:
        SettingError: for the first wrong setting, with its key as it is typed.
    """
    if not isinstance(mapping, Mapping):
        example = "a group of settings, as in conf/config.yaml"
        raise SettingError(where, str(mapping)[:60], example)
    dot = where and f"{where}."
    group: Any = cls
    known = [name for name in _hints(group) if name not in others]
    for key, value in mapping.items():
        if key not in known:
            listed = ", ".join(f"{dot}{name}" for name in known)
            advice = f"known: {listed}{suggestion(str(key), known)}"
            raise SettingError(f"{dot}{key}", Missing.UNKNOWN, advice=advice)
        if value == "???":  # a value that a file of conf/ leaves to the user
            raise SettingError(f"{dot}{key}", Missing.UNSET, advice=f"type {dot}{key}=VALUE")
    try:
        values = {key: _tuples(value) for key, value in mapping.items()}
        if not hasattr(cls, "__pydantic_config__"):
            checked = _checker(group)(**values)
            values = {key: getattr(checked, key) for key in values}
        built = cls(**values, **others)
    except ValidationError as error:
        errors, missing = error.errors(include_url=False), ("missing", "missing_argument")
        first = min(errors, key=lambda one: one["type"] in missing)
        key, advice = str(first["loc"][0]), ""
        typed = f"{dot}{key}"
        if first["type"] in missing:
            raise SettingError(typed, Missing.UNSET, advice=f"type {typed}=VALUE") from error
        texts = [e["msg"].removeprefix("Input should be ") for e in errors if e["loc"][0] == key]
        expected = re.sub("^(?=greater|less)", "a number ", " or ".join(dict.fromkeys(texts)))
        if first["type"] == "string_type" and type(mapping[key]) in (int, float):
            advice = f"as text, type \"{typed}='{mapping[key]}'\""
        expected = expected.replace("tuple", "list")
        expected = re.sub(r"0\.000\d+", lambda found: f"{float(found[0]):g}", expected)
        raise SettingError(typed, mapping[key], expected, advice) from error
    for of, names, when, has_effect in _CASES:
        if of == where and not has_effect(built):
            _check_unchanged(where, built, names, when)
    return built


def _check_unchanged(group: str, settings: Any, names: Iterable[str], where: str) -> None:
    """Raise SettingError if one of these settings, which have no effect, is not its default."""
    changed, cls = _changed(settings), settings.__class__
    for name in names:
        if name in changed:
            default = _defaults(cls)[name]
            expected = "null" if default is None else str(default)
            advice = f"it has an effect only {where}: leave it out"
            raise SettingError(f"{group}.{name}", changed[name], expected, advice)


def _tuples(value: Any) -> Any:
    """Return the value with tuples in place of lists, which strict types and hashes need."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


# A table builds hundreds of configs, and resolving annotations takes half of that time.
@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the settings of a group, or of a task, with their types."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@functools.cache
def _defaults(cls: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(cls)}


def _changed(group: Any) -> dict[str, Any]:
    """Return the settings of a group that are neither null nor their default."""
    cls: Any = type(group)
    defaults = _defaults(cls)
    values = {name: getattr(group, name) for name in _hints(cls)}
    return {name: v for name, v in values.items() if v is not None and v != defaults[name]}


@functools.cache
def _checker(cls: Any) -> Any:
    """Return a pydantic model with the fields of a plain dataclass, such as a task."""
    fields = {name: (hint, None) for name, hint in _hints(cls).items()}
    return create_model(cls.__name__, __config__=STRICT, **fields)  # type: ignore[call-overload]


GROUPS: Mapping[str, Any] = {
    name: cls
    for name, hint in _hints(Run).items()  # some are Annotated
    if dataclasses.is_dataclass(cls := getattr(hint, "__origin__", hint))
}
# Settings that have an effect in some cases only, and must keep their defaults in all others.
_CASES: Sequence[tuple[str, Sequence[str], str, Callable[[Any], bool]]] = (
    ("clip", ("threshold", "thresholds"), "with clipping", lambda s: s.private),
    ("clip", _QUANTILE, "on adaptive thresholds", lambda s: s.private and s.adaptive),
    ("clip", ("count", "boundary", "patterns"), "on groups of dpft", lambda s: not s.own_groups),
    ("clip", ("thresholds",), "on groups of dpft", lambda s: not s.own_groups),
    ("clip", ("thresholds", "rescale"), "on several groups", lambda s: s.groups != "flat"),
    ("clip", ("allocation",), "on several groups", lambda s: s.groups != "flat"),
    (
        "privacy",
        ("max_batch",),
        "on truncated_poisson",
        lambda s: s.sampling == "truncated_poisson",
    ),
    ("optim", ("sampling_rate",), "on optim.batch_size=null", lambda s: s.batch_size is None),
    ("optim", ("rate_like",), "next to a batch size", lambda s: s.batch_size is not None),
    ("optim", ("warmup_steps",), "on optim.warmup_ratio=null", lambda s: s.warmup_ratio is None),
    ("optim", ("momentum",), "on optim=sgd", lambda s: s.name == "sgd"),
    ("decode", ("top_p",), "on decode.sample=true", lambda s: s.sample),
    ("evaluate", tuple(_hints(Evaluate)), "with evaluate.every", lambda s: s.every is not None),
    ("parallel", ("microbatches",), "on parallel=pipeline", lambda s: s.name == "pipeline"),
)
