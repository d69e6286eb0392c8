"""From Hydra's composed config to typed, checked settings.

Hydra rejects unknown keys unless they are added with ``+``; the dataclasses here reject those too,
and wrong types, so that no setting is silently without effect.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from dpft.config.audit import Audit
from dpft.config.checks import HUGE, check_seed, one_of, positive
from dpft.config.clip import Clip
from dpft.config.errors import ConfigError, suggestion
from dpft.privacy.spec import ACCOUNTANTS, SAMPLINGS

# What is done where memory runs out (`out_of_memory`).
STOP, HALVE = "stop", "halve"

T = TypeVar("T")

OPTIMIZERS = ("adam", "adamw", "sgd", "lamb")
ADAPTATIONS = (
    "full",
    "scratch",
    "linear",
    "bias",
    "attention",
    "top2",
    "lora",
    "prefix",
    "rgp",
)
PRECISIONS = ("float32", "bfloat16")
# Settings that an adaptation must have, and those that it may have.
_NEEDS_SETTING = {
    "top2": ("blocks",),
    "lora": ("rank", "alpha"),
    "prefix": ("length",),
    "rgp": ("rank", "follow"),
}
_MAY_HAVE = {"lora": ("dropout", "targets"), "prefix": ("hidden",)}


def build(cls: type[T], mapping: Mapping[str, Any], where: str) -> T:
    """Build dataclass ``cls`` from a config group, refusing unknown keys and wrong types.

    Raises:
        ConfigError: naming the key as the user would type it.
    """
    _check_group(mapping, where)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _type_hints(cls)
    values = {}
    for key, value in mapping.items():
        if key not in fields:
            raise ConfigError(
                f"unknown setting {where}.{key}{suggestion(key, fields)}; known: "
                f"{', '.join(f'{where}.{name}' for name in fields)}"
            )
        values[key] = _checked(value, hints[key], f"{where}.{key}")
    for name, field in fields.items():
        needed = field.init and field.default is field.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise ConfigError(
                f"{where}.{name} is not set; expected a value: type {where}.{name}=VALUE"
            )
    return cls(**values)


# A table builds hundreds of configs, and resolving annotations takes half of that time.
_type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def _check_group(value: Any, name: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} is {str(value)[:60]!r}; expected a group of settings, as in conf/config.yaml"
        )


def _checked(value: Any, hint: Any, name: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{name} is nan, which is not a number; expected one")
    if isinstance(value, float) and math.isinf(value):
        raise ConfigError(f"{name} is {value}; expected a finite number")
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(value)
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, origin) and (origin is bool or not isinstance(value, bool)):
            return value
    expected = " or ".join(
        "null" if o is type(None) else getattr(o, "__name__", str(o)) for o in options
    )
    number = str in options and isinstance(value, int | float) and not isinstance(value, bool)
    quoted = f"; as text, type \"{name}='{value}'\"" if number else ""
    raise ConfigError(f"{name} is {value!r} ({type(value).__name__}); expected {expected}{quoted}")


@dataclass(frozen=True)
class Privacy:
    """``conf/privacy``: the budget, and how it is spent."""

    epsilon: float | None = None
    delta: float | None = None
    accountant: str = "pld"
    noise_multiplier: float | None = None
    sampling: str = "poisson"
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.epsilon > 0:
            raise ConfigError(
                f"privacy.epsilon is {self.epsilon}; expected a number > 0, for instance eps=3. "
                "For training without privacy type clip=none"
            )
        if self.delta is not None and not 0 < self.delta < 1:
            raise ConfigError(f"privacy.delta is {self.delta}; expected between 0 and 1")
        positive("privacy.epsilon", self.epsilon, at_most=HUGE)
        positive("privacy.noise_multiplier", self.noise_multiplier, at_most=HUGE)
        if self.noise_multiplier is not None and self.noise_multiplier * HUGE < 1:
            raise ConfigError(
                f"privacy.noise_multiplier is {self.noise_multiplier}, which bounds no epsilon; "
                "expected more. For training without privacy type clip=none"
            )
        if self.noise_seed is not None:
            check_seed("privacy.noise_seed", self.noise_seed)
        one_of("privacy.accountant", self.accountant, ACCOUNTANTS)
        one_of("privacy.sampling", self.sampling, SAMPLINGS)


@dataclass(frozen=True)
class Optim:
    """``conf/optim``: the optimizer, the expected batch size, and how long it runs.

    Attributes:
        name: one of `OPTIMIZERS`.
        lr: peak learning rate.
        epochs: passes over the data in expectation.
        batch_size: expected records in a logical batch; None where ``sampling_rate`` is given.
        sampling_rate: ``q``, the chance of a record to be in a batch, in place of ``batch_size``.
        rate_like: a task whose published size the batch size was chosen for: it is scaled to this
            task's size, so that the sampling rate stays the same (Li et al. 2022, appendix L).
        steps: overrides ``epochs``.
        microbatch_tokens: most padded tokens in memory at once.
        weight_decay: decoupled from the gradient for ``adamw`` and ``lamb``.
        betas: decay of both moments, of Adam and LAMB.
        adam_epsilon: in the denominator of Adam and LAMB.
        momentum: of ``sgd``.
        schedule: after the warm-up, ``constant`` or ``linear`` to zero.
        warmup_steps: steps in which the rate rises from zero to its peak.
        warmup_ratio: the same as a share of all steps.
    """

    name: str
    lr: float
    epochs: float
    batch_size: int | None = None
    sampling_rate: float | None = None
    rate_like: str | None = None
    steps: int | None = None
    microbatch_tokens: int = 2048
    weight_decay: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    momentum: float = 0.0
    schedule: str = "constant"
    warmup_steps: int = 0
    warmup_ratio: float | None = None

    def __post_init__(self) -> None:
        one_of("optim.name", self.name, OPTIMIZERS)
        one_of("optim.schedule", self.schedule, ("constant", "linear"))
        positive("optim.lr", self.lr, at_most=HUGE)
        positive("optim.adam_epsilon", self.adam_epsilon, at_most=HUGE)
        if not 0 <= self.weight_decay <= HUGE:
            raise ConfigError(f"optim.weight_decay is {self.weight_decay}; expected 0 or more")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"optim.momentum is {self.momentum}; expected 0 or more, below 1")
        positive("optim.batch_size", self.batch_size)
        positive("optim.microbatch_tokens", self.microbatch_tokens)
        if self.epochs < 0:
            raise ConfigError(f"optim.epochs is {self.epochs}; expected 0 or more")
        if self.steps is not None and self.steps < 0:
            raise ConfigError(f"optim.steps is {self.steps}; expected 0 or more, or null")
        self._check_batch_size()
        self._check_schedule()
        if self.momentum and self.name != "sgd":
            raise ConfigError(
                f"optim.momentum is {self.momentum}, which has no effect on optim={self.name}; "
                "expected 0, or optim=sgd"
            )
        if self.name == "sgd" and self.betas != (0.9, 0.999):
            raise ConfigError(
                f"optim.betas is {list(self.betas)}, which has no effect on optim=sgd; type "
                "optim.momentum, or leave it out"
            )

    def _check_batch_size(self) -> None:
        if self.batch_size is None and self.sampling_rate is None:
            raise ConfigError(
                "neither optim.batch_size nor optim.sampling_rate is set; expected one of them: "
                "type optim.batch_size=1024"
            )
        if self.batch_size is not None and self.sampling_rate is not None:
            raise ConfigError(
                f"optim.batch_size is {self.batch_size} beside optim.sampling_rate="
                f"{self.sampling_rate}; expected one of them: type optim.batch_size=null for the "
                "rate, or optim.sampling_rate=null"
            )
        if self.sampling_rate is not None and not 0 < self.sampling_rate <= 1:
            raise ConfigError(
                f"optim.sampling_rate is {self.sampling_rate}; expected above 0 and at most 1"
            )
        if self.rate_like is not None and self.batch_size is None:
            raise ConfigError(
                f"optim.rate_like is {self.rate_like} beside a sampling rate; it scales the batch "
                "size that was chosen for that task: type optim.rate_like=null, or "
                "optim.batch_size=1024 optim.sampling_rate=null"
            )

    def _check_schedule(self) -> None:
        if len(self.betas) != 2 or not all(
            isinstance(b, int | float) and 0 <= b < 1 for b in self.betas
        ):
            raise ConfigError(f"optim.betas is {self.betas}; expected two numbers from 0 to 1")
        if self.warmup_steps < 0:
            raise ConfigError(f"optim.warmup_steps is {self.warmup_steps}; expected 0 or more")
        if self.warmup_ratio is None:
            return
        if not 0 <= self.warmup_ratio <= 1:
            raise ConfigError(f"optim.warmup_ratio is {self.warmup_ratio}; expected 0 to 1")
        if self.warmup_steps:
            raise ConfigError(
                f"optim.warmup_steps is {self.warmup_steps} beside optim.warmup_ratio="
                f"{self.warmup_ratio}; expected one of them: type optim.warmup_steps=0, or "
                "optim.warmup_ratio=null"
            )


@dataclass(frozen=True)
class Model:
    """``conf/model``: which model, and how it is built."""

    name: str
    path: str
    tied: bool | None = None
    init: str = "pretrained"
    dropout: float | None = None

    def __post_init__(self) -> None:
        one_of("model.init", self.init, ("pretrained", "scratch"))
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"model.dropout is {self.dropout}; expected 0 or more, below 1")


@dataclass(frozen=True)
class Adapt:
    """``conf/adapt``: which parameters are trained, or what is put beside them.

    Attributes:
        name: one of `ADAPTATIONS`.
        blocks: ``top2``: how many of the last transformer blocks.
        rank: ``lora``, ``rgp``: of an update, or of the carriers.
        alpha: ``lora``: the update is scaled by ``alpha / rank``.
        dropout: ``lora``: of the adapters' inputs.
        targets: ``lora``: names of the layers to adapt; None: queries and values, see
            `dpft.models.lora.targets_of`.
        length: ``prefix``: positions that it takes.
        hidden: ``prefix``: width of the network that it comes out of; None: no network.
        follow: ``rgp``: what the carriers follow, the ``update`` since the start (Yu et al. 2021c)
            or the ``weight`` (the code they published).
    """

    name: str
    blocks: int | None = None
    rank: int | None = None
    alpha: int | None = None
    dropout: float | None = None
    targets: tuple[str, ...] | None = None
    length: int | None = None
    hidden: int | None = None
    follow: str | None = None

    def __post_init__(self) -> None:
        one_of("adapt.name", self.name, ADAPTATIONS)
        needs = _NEEDS_SETTING.get(self.name, ())
        takes = (*needs, *_MAY_HAVE.get(self.name, ()))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in needs and value is None:
                raise ConfigError(
                    f"adapt.{field.name} is not set; type adapt={self.name}, whose file sets it"
                )
            if field.name not in ("name", *takes) and value is not None:
                raise ConfigError(
                    f"adapt.{field.name} is {value}, which has no effect on adapt={self.name}; "
                    f"expected of this kind: {', '.join(f'adapt.{t}' for t in takes) or 'nothing'}"
                )
        for name in ("blocks", "rank", "alpha", "length", "hidden"):
            positive(f"adapt.{name}", getattr(self, name))
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"adapt.dropout is {self.dropout}; expected 0 or more, below 1")
        if self.follow is not None:
            one_of("adapt.follow", self.follow, ("update", "weight"))


@dataclass(frozen=True)
class Decode:
    """``conf/decode``: beam search or sampling."""

    beams: int = 5
    sample: bool = False
    top_p: float = 1.0
    max_new_tokens: int = 100
    length_penalty: float = 1.0
    batch_size: int = 32
    split: str = "test"

    def __post_init__(self) -> None:
        for name in ("beams", "max_new_tokens", "batch_size"):
            positive(f"decode.{name}", getattr(self, name))
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"decode.top_p is {self.top_p}; expected above 0 and at most 1")
        one_of("decode.split", self.split, ("dev", "test"))


@dataclass(frozen=True)
class Sweep:
    """What ``dpft sweep`` tells the jobs that it starts; no part of what a run computes.

    Attributes:
        folder: of the sweep; None: the run belongs to none.
        keep_going: whether the other points run after one failed.
        list: a file of points, one line of overrides each.
        point: which of its lines, from 0.
        metric: the score that a job returns to the sweeper; None: the first of the split.
    """

    folder: str | None = None
    keep_going: bool = True
    list: str | None = None
    point: int | None = None
    metric: str | None = None


@dataclass(frozen=True)
class Run:
    """Everything that one run is made of. ``raw`` is the composed config, with the style named."""

    task: Mapping[str, Any]
    model: Model
    adapt: Adapt
    clip: Clip
    privacy: Privacy
    optim: Optim
    decode: Decode
    seed: int
    name: str | None
    runs_dir: str
    device: str
    threads: int | None
    checkpoint_every: int
    resume: str | None
    force: bool
    raw: Mapping[str, Any]
    sweep: Sweep = Sweep()
    audit: Audit = dataclasses.field(default_factory=Audit)
    record_norms: int | None = None
    cache: str = "auto"
    precision: str = PRECISIONS[0]
    out_of_memory: str = STOP

    def identity(self) -> dict[str, Any]:
        """The part of the config that decides what is computed: what the run's hash is taken of.

        However it was typed: one run under two names would be trained, and paid for, twice.
        """
        beside: tuple[str, ...] = (*_WHERE_AND_HOW, *_SHORTHANDS, "sweep")
        # Runs from before there were these settings keep their hash.
        if not self.audit.active:
            beside = (*beside, "audit")
        if self.precision == PRECISIONS[0]:
            beside = (*beside, "precision")
        kept = {key: value for key, value in self.raw.items() if key not in beside}
        if not self.clip.private:
            kept["privacy"] = {"sampling": self.privacy.sampling}
        elif self.privacy.noise_multiplier is not None:
            kept["privacy"] = {**kept["privacy"], "epsilon": None}
        return kept


_WHERE_AND_HOW = (
    *("runs_dir", "name", "resume", "force"),
    *("device", "threads", "checkpoint_every", "record_norms", "out_of_memory", "cache"),
)
# Other names of settings of ``privacy``, where their values stand too.
_SHORTHANDS = ("eps", "sampling")
# Whether there is such a GPU is asked where it is used: a run may be checked elsewhere.
_DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")
_MOST_THREADS = 4096
_PLAIN = ("seed", "name", "runs_dir", "device", "threads", "checkpoint_every", "resume", "force")
_GROUPS: dict[str, type] = {
    "model": Model,
    "adapt": Adapt,
    "clip": Clip,
    "privacy": Privacy,
    "optim": Optim,
    "decode": Decode,
}
_OTHER = (
    *(*_SHORTHANDS, "task", "sweep", "audit", "record_norms"),
    *("precision", "out_of_memory", "cache"),
)


def _check_name(name: str | None) -> None:
    """Refuse names that are no folder of their own below ``runs_dir``."""
    path = None if name is None else PurePath(name)
    if path is not None and (path.is_absolute() or not path.name or ".." in path.parts):
        raise ConfigError(
            f"name is {name!r}; expected the name of a folder below runs_dir, such as name=first"
        )


def audit_of(raw: Mapping[str, Any]) -> Audit:
    """The audit of a composed config; none of one that was made before there were such sections."""
    return build(Audit, raw.get("audit") or {}, "audit")


def parse(raw: Mapping[str, Any]) -> Run:
    """Check a composed config and turn it into settings.

    Raises:
        ConfigError: for the first setting that is unknown or impossible.
    """
    known = (*_PLAIN, *_GROUPS, *_OTHER)
    for key in raw:
        if key not in known:
            raise ConfigError(f"unknown setting {key}{suggestion(key, known)}")
    for key in (*_PLAIN, *_GROUPS, "task"):
        if key not in raw:
            raise ConfigError(f"{key} is not set; expected every setting of conf/config.yaml")
    _check_group(raw["task"], "task")
    if "name" not in raw["task"]:
        raise ConfigError("task.name is not set; expected a task: type task=e2e")
    groups: dict[str, Any] = {name: build(cls, raw[name], name) for name, cls in _GROUPS.items()}
    hints = _type_hints(Run)
    plain: dict[str, Any] = {name: _checked(raw[name], hints[name], name) for name in _PLAIN}
    # Configs of runs that were made before there were such sections have none.
    sweep = build(Sweep, raw.get("sweep") or {}, "sweep")
    audit = audit_of(raw)
    every = _checked(raw.get("record_norms"), int | None, "record_norms")
    positive("record_norms", every)
    cache = _checked(raw.get("cache", "auto"), str, "cache")
    precision = _checked(raw.get("precision", PRECISIONS[0]), str, "precision")
    one_of("precision", precision, PRECISIONS)
    out_of_memory = _checked(raw.get("out_of_memory", STOP), str, "out_of_memory")
    one_of("out_of_memory", out_of_memory, (STOP, HALVE))
    check_seed("seed", plain["seed"])
    positive("threads", plain["threads"], at_most=_MOST_THREADS)
    positive("checkpoint_every", plain["checkpoint_every"])
    if not plain["runs_dir"].strip():
        raise ConfigError("runs_dir is empty; expected a folder, as in runs_dir=runs")
    if not _DEVICES.fullmatch(plain["device"]):
        raise ConfigError(f"device is {plain['device']!r}; expected auto, cpu or cuda")
    _check_name(plain["name"])
    run = Run(
        task=raw["task"],
        raw={**raw, "clip": {**raw["clip"], "style": groups["clip"].style}},
        **groups,
        **plain,
        sweep=sweep,
        audit=audit,
        record_norms=every,
        cache=cache,
        precision=precision,
        out_of_memory=out_of_memory,
    )
    if run.clip.private and run.privacy.epsilon is None and run.privacy.noise_multiplier is None:
        raise ConfigError(
            "neither privacy.epsilon nor privacy.noise_multiplier is set; type eps=3, or clip=none "
            "for training without privacy"
        )
    if run.adapt.name == "scratch" and run.model.init != "scratch":
        raise ConfigError(
            f"model.init is {run.model.init} with adapt=scratch, which trains drawn weights; type "
            "model.init=scratch, or adapt=full to go on from pretrained ones"
        )
    return run
