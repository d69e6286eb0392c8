"""From Hydra's composed config to typed, checked settings.

Hydra rejects unknown keys unless they are added with ``+``; the dataclasses here reject those too,
and wrong types, so that no setting is silently without effect.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

from dpft.config.adapt import Adapt
from dpft.config.audit import Audit
from dpft.config.checks import (
    Bounds,
    Count,
    Effect,
    Fraction,
    Positive,
    Seed,
    build,
    names_with,
)
from dpft.config.clip import Clip
from dpft.config.decode import Decode
from dpft.config.errors import ConfigError
from dpft.config.evaluate import Evaluate
from dpft.config.optim import Optim
from dpft.config.parallel import Parallel
from dpft.config.privacy import Privacy
from dpft.config.track import Track
from dpft.privacy.spec import TWO_BACKWARDS

# Those that train a head on what was pooled, as the pilots of docs/reference/optimisation.md did.
_POOLED = ("linear", "bias", "lora", "full")
# Other names of settings of ``privacy``, where their values stand too.
SHORTHANDS: Mapping[str, str] = {"eps": "privacy.epsilon", "sampling": "privacy.sampling"}


@dataclass(frozen=True)
class Model:
    """``conf/model``: which model, and how it is built.

    Attributes:
        name: in tables and names of runs.
        path: a hub id, a folder, or one of the other forms of docs/reference/models.md.
        tied: ``false`` gives the output head a copy of the embedding; None: as the model is.
        init: ``scratch`` draws all weights.
        dropout: of all its layers; None: the model's own.
        checkpointing: whether each block's activations are computed again in the backward, and not
            kept from the forward.
        pooling: ``mean``: a classifier reads the mean over the tokens, see `pool_mean`;
            None: what the model's own head reads.
    """

    name: str
    path: Annotated[str, Effect.REPETITION]
    tied: bool | None = None
    init: Literal["pretrained", "scratch"] = "pretrained"
    dropout: Fraction | None = None
    checkpointing: Annotated[bool, Effect.REPETITION] = False
    pooling: Literal["mean"] | None = None


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
    seed: Annotated[Seed, Effect.REPETITION]
    name: Annotated[str | None, Effect.PLACE]
    runs_dir: Annotated[str, Effect.PLACE]
    # Whether there is such a device is asked where it is used: a run may be checked elsewhere.
    device: Annotated[str, Effect.EXECUTION]
    threads: Annotated[int, Bounds(above=0, most=4096), Effect.EXECUTION] | None
    checkpoint_every: Annotated[Count, Effect.EXECUTION]  # steps; whichever of the two comes first
    resume: Annotated[str | None, Effect.EXECUTION]
    force: Annotated[bool, Effect.EXECUTION]
    raw: Mapping[str, Any]
    sweep: Annotated[Sweep, Effect.PLACE] = Sweep()
    parallel: Annotated[Parallel, Effect.EXECUTION] = dataclasses.field(default_factory=Parallel)
    audit: Audit = dataclasses.field(default_factory=Audit)
    evaluate: Evaluate = dataclasses.field(default_factory=Evaluate)
    track: Annotated[Track, Effect.EXECUTION] = dataclasses.field(default_factory=Track)
    record_norms: Annotated[Count | None, Effect.EXECUTION] = None
    ranks: Annotated[int, Bounds(above=0, most=4096), Effect.EXECUTION] | None = None
    cache: Annotated[str, Effect.EXECUTION] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    verbosity: Annotated[Literal["quiet", "normal", "steps"], Effect.EXECUTION] = "normal"
    # As checkpoint_every, by the first rank's clock; None: by steps alone.
    checkpoint_minutes: Annotated[Positive | None, Effect.EXECUTION] = 5.0
    # Other kernels give other bits, by which a replayed step would be another release.
    compile: bool = False
    # What `dpft.config.defaults` chose, and why; the values stand in their groups too.
    origin: Annotated[Mapping[str, Any], Effect.PLACE] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {**self.raw["clip"], "style": self.clip.style}
        object.__setattr__(self, "raw", {**self.raw, "clip": named})
        if "name" not in self.task:
            raise ConfigError("task.name is not set; expected a task: type task=e2e")
        if not self.runs_dir.strip():
            raise ConfigError("runs_dir is empty; expected a folder, as in runs_dir=runs")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device is {self.device!r}; expected auto, cpu or cuda")
        path = None if self.name is None else PurePath(self.name)
        if path is not None and (path.is_absolute() or not path.name or ".." in path.parts):
            raise ConfigError(
                f"name is {self.name!r}; expected the name of a folder below runs_dir, such as "
                "name=first"
            )
        if path is not None and "private" in path.parts:
            raise ConfigError(
                f"name is {self.name!r}; what lies in a folder private/ is never shown, and no run "
                "is looked for there: expected another name"
            )
        budget = (self.privacy.epsilon, self.privacy.noise_multiplier)
        if self.clip.private and budget == (None, None):
            raise ConfigError(
                "neither privacy.epsilon nor privacy.noise_multiplier is set; type eps=3, or "
                "clip=none for training without privacy"
            )
        if self.compile:
            self._check_compile()
        if self.adapt.name == "scratch" and self.model.init != "scratch":
            raise ConfigError(
                f"model.init is {self.model.init} with adapt=scratch, which trains drawn weights; "
                "type model.init=scratch, or adapt=full to go on from pretrained ones"
            )
        if self.model.checkpointing and self.adapt.name == "prefix":
            raise ConfigError(
                "model.checkpointing=true with adapt=prefix, whose prefix reaches the blocks as "
                "keys and values of earlier positions, which transformers drops under "
                "checkpointing; expected false: type model.checkpointing=false, or another adapt"
            )
        if self.model.pooling is not None and self.adapt.name not in _POOLED:
            raise ConfigError(
                f"model.pooling={self.model.pooling} with adapt={self.adapt.name}, which would "
                f"train the block that pools as one of the model's; expected one of "
                f"{', '.join(_POOLED)}: type adapt=linear, or model.pooling=null"
            )
        if self.evaluate.every is not None and self.parallel.name == "pipeline":
            raise ConfigError(
                f"evaluate.every={self.evaluate.every} with parallel=pipeline, where no rank has "
                "the whole model before the end; expected parallel=data or parallel=fsdp, or leave "
                "evaluate.every out"
            )
        if self.model.checkpointing and self.parallel.name == "pipeline":
            raise ConfigError(
                "model.checkpointing=true with parallel=pipeline, whose stages keep the "
                "activations of several microbatches by themselves; expected false, or "
                "parallel=data or parallel=fsdp"
            )

    def _check_compile(self) -> None:
        """Refuse what compiled blocks do not go together with."""
        for wrong, got, instead in (
            (self.clip.private and self.clip.plan in TWO_BACKWARDS, "clip.plan", "clip=bk"),
            (self.precision != "float32", "precision", "precision=float32"),
            (self.parallel.name != "data", "parallel", "parallel=data"),
            (self.adapt.name == "prefix", "adapt", "adapt=lora"),
            (self.model.checkpointing, "model.checkpointing", "model.checkpointing=false"),
        ):
            if wrong:
                owner, _, key = got.partition(".")
                value = getattr(self, owner)
                value = getattr(value, key or "name", value)
                raise ConfigError(
                    f"compile=true with {got}={value}, whose blocks cannot be compiled exactly; "
                    f"type {instead}, or compile=false"
                )

    def identity(self) -> dict[str, Any]:
        """The part of the config that decides what is computed: what the run's hash is taken of.

        However it was typed: one run under two names would be trained, and paid for, twice.
        """
        beside = names_with(Run, Effect.PLACE, Effect.EXECUTION) | SHORTHANDS.keys()
        # Runs from before there were these settings keep their hash.
        if not self.audit.active:
            beside |= {"audit"}
        if self.evaluate.best is None:  # then it is only looked on
            beside |= {"evaluate"}
        if self.precision == "float32":
            beside |= {"precision"}
        if not self.compile:
            beside |= {"compile"}
        kept = {key: value for key, value in self.raw.items() if key not in beside}
        if "evaluate" in kept:
            kept["evaluate"] = {k: v for k, v in kept["evaluate"].items() if k != "public"}
        if not self.model.checkpointing:
            kept["model"] = {k: v for k, v in kept["model"].items() if k != "checkpointing"}
        if self.model.pooling is None:
            kept["model"] = {k: v for k, v in kept["model"].items() if k != "pooling"}
        if not self.clip.private:
            kept["privacy"] = {
                "sampling": self.privacy.sampling,
                "max_batch": self.privacy.max_batch,
            }
        elif self.privacy.noise_multiplier is not None:
            kept["privacy"] = {**kept["privacy"], "epsilon": None}
        if self.privacy.max_batch is None:
            kept["privacy"] = {k: v for k, v in kept["privacy"].items() if k != "max_batch"}
        return kept


def audit_of(raw: Mapping[str, Any]) -> Audit:
    """The audit of a composed config; none of one that was made before there were such sections."""
    return build(Audit, raw.get("audit") or {}, "audit")


def parse(raw: Mapping[str, Any], stored: bool = False) -> Run:
    """Check a composed config and turn it into settings.

    Args:
        raw: the config.
        stored: whether it is a run's, which an earlier version may have begun.

    Raises:
        ConfigError: for the first setting that is unknown or impossible.
    """
    # Configs of runs that were made before there were such sections have none, or null.
    later = ("sweep", "audit", "evaluate", "parallel", "track")
    absent = [key for key in later if raw.get(key) is None]
    given = {key: raw[key] for key in raw if key not in (*SHORTHANDS, *absent)}
    run = build(Run, given, raw=raw)
    if not stored and run.resume is None:  # what is resumed is stored too
        run.decode.check()
    return run
