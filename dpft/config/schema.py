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
from typing import Annotated, Any, Literal, get_args

from dpft.config.audit import Audit
from dpft.config.checks import (
    HUGE,
    Bounds,
    Count,
    Effect,
    Fraction,
    NonNegative,
    Positive,
    Seed,
    Share,
    Whole,
    build,
    names_with,
    one_of,
)
from dpft.config.clip import Clip
from dpft.config.errors import ConfigError
from dpft.config.evaluate import Evaluate
from dpft.config.track import Track
from dpft.privacy.spec import TWO_BACKWARDS, Accountant, Sampling

Optimizer = Literal["adam", "adamw", "adam_bc", "sgd", "lamb"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
# Each adaptation with the settings that it must have, and those that it may have.
_ADAPTATIONS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "full": ((), ()),
    "scratch": ((), ()),
    "linear": ((), ()),
    "bias": ((), ()),
    "attention": ((), ()),
    "top2": (("blocks",), ()),
    "lora": (("rank", "alpha"), ("dropout", "targets")),
    "prefix": (("length",), ("hidden",)),
    "prompt": (("length",), ("hidden",)),
    "rgp": (("rank", "follow"), ()),
}
ADAPTATIONS = tuple(_ADAPTATIONS)
# Those that train a head on what was pooled, as the pilots of docs/reference/optimisation.md did.
_POOLED = ("linear", "bias", "lora", "full")
# Those that train positions before a text, and leave the model's weights as they are.
VIRTUAL_TOKENS = ("prefix", "prompt")
# Other names of settings of ``privacy``, where their values stand too.
SHORTHANDS: Mapping[str, str] = {"eps": "privacy.epsilon", "sampling": "privacy.sampling"}


_BUDGET = ", for instance eps=3. For training without privacy type clip=none"


@dataclass(frozen=True)
class Privacy:
    """``conf/privacy``: the budget, and how it is spent.

    Attributes:
        epsilon: the budget; ``noise_multiplier`` takes its place.
        delta: None: ``1/(2N)``.
        accountant: which one calibrates the noise.
        noise_multiplier: ``sigma`` of all that a step releases.
        sampling: how records come into batches, see `dpft.privacy.sampling`.
        max_batch: ``truncated_poisson``: the size that every batch is cut or filled up to; None:
            `dpft.privacy.accounting.fitting_size`.
        noise_seed: a public seed in place of a secret key.
    """

    epsilon: Annotated[float, Bounds(above=0, most=HUGE, hint=_BUDGET)] | None = None
    delta: Share | None = None
    accountant: Accountant = "pld"
    noise_multiplier: Positive | None = None
    sampling: Sampling = "poisson"
    max_batch: Count | None = None
    noise_seed: Annotated[Seed | None, Effect.REPETITION] = None

    def __post_init__(self) -> None:
        if self.max_batch is not None and self.sampling != "truncated_poisson":
            raise ConfigError(
                f"privacy.max_batch is {self.max_batch}, which has no effect on "
                f"sampling={self.sampling}; type sampling=truncated_poisson, or leave it out"
            )
        if self.noise_multiplier is not None and self.noise_multiplier * HUGE < 1:
            raise ConfigError(
                f"privacy.noise_multiplier is {self.noise_multiplier}, which bounds no epsilon; "
                "expected more. For training without privacy type clip=none"
            )


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
        microbatch_tokens: most padded tokens in memory at once; ``auto``: as many as fit a GPU, or
            1,024 on a CPU, found when the run begins and kept from then on.
        weight_decay: decoupled from the gradient for ``adamw`` and ``lamb``.
        betas: decay of both moments, of Adam and LAMB.
        adam_epsilon: in the denominator of Adam and LAMB.
        adam_gamma: ``adam_bc``: the least second moment once the noise's variance is taken off,
            ``gamma'`` of Tang et al. (2023); None: a tenth of that variance.
        momentum: of ``sgd``.
        schedule: after the warm-up, ``constant`` or ``linear`` to zero.
        warmup_steps: steps in which the rate rises from zero to its peak.
        warmup_ratio: the same as a share of all steps.
    """

    name: Optimizer
    lr: Positive
    epochs: NonNegative
    batch_size: Count | None = None
    sampling_rate: Annotated[float, Bounds(above=0, most=1)] | None = None
    rate_like: str | None = None
    steps: Whole | None = None
    microbatch_tokens: Annotated[Count | Literal["auto"], Effect.REPETITION] = 2048
    weight_decay: NonNegative = 0.0
    betas: Annotated[tuple[float, ...], Bounds(least=0, below=1)] = (0.9, 0.999)
    adam_epsilon: Positive = 1e-8
    adam_gamma: Positive | None = None
    momentum: Fraction = 0.0
    schedule: Literal["constant", "linear"] = "constant"
    warmup_steps: Whole = 0
    warmup_ratio: Annotated[float, Bounds(least=0, most=1)] | None = None

    @property
    def token_budget(self) -> int:
        """``microbatch_tokens`` once it is a number: see `dpft.training.microbatch`."""
        if self.microbatch_tokens == "auto":
            raise ConfigError(
                "optim.microbatch_tokens is 'auto'; expected a number, since only dpft train and "
                "dpft plan find one: type optim.microbatch_tokens=4096"
            )
        return self.microbatch_tokens

    def __post_init__(self) -> None:
        if len(self.betas) != 2:
            raise ConfigError(f"optim.betas is {list(self.betas)}; expected two numbers")
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
        if self.rate_like is not None and self.batch_size is None:
            raise ConfigError(
                f"optim.rate_like is {self.rate_like} beside a sampling rate; it scales the batch "
                "size that was chosen for that task: type optim.rate_like=null, or "
                "optim.batch_size=1024 optim.sampling_rate=null"
            )
        if self.warmup_ratio is not None and self.warmup_steps:
            raise ConfigError(
                f"optim.warmup_steps is {self.warmup_steps} beside optim.warmup_ratio="
                f"{self.warmup_ratio}; expected one of them: type optim.warmup_steps=0, or "
                "optim.warmup_ratio=null"
            )
        if self.momentum and self.name != "sgd":
            raise ConfigError(
                f"optim.momentum is {self.momentum}, which has no effect on optim={self.name}; "
                "expected 0, or optim=sgd"
            )
        if self.adam_gamma is not None and self.name != "adam_bc":
            raise ConfigError(
                f"optim.adam_gamma is {self.adam_gamma}, which has no effect on optim={self.name}; "
                "type optim=adam_bc"
            )
        if self.name == "adam_bc" and self.adam_epsilon != 1e-8:
            raise ConfigError(
                f"optim.adam_epsilon is {self.adam_epsilon}, which has no effect on optim=adam_bc; "
                "type optim.adam_gamma, or leave it out"
            )
        if self.name == "sgd" and self.betas != (0.9, 0.999):
            raise ConfigError(
                f"optim.betas is {list(self.betas)}, which has no effect on optim=sgd; type "
                "optim.momentum, or leave it out"
            )


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
        pooling: ``mean``: a classifier reads the mean over the tokens, see `dpft.models.pooling`;
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
        length: ``prefix``, ``prompt``: positions that it takes.
        hidden: ``prefix``, ``prompt``: width of the network that it comes out of; None: no network.
        follow: ``rgp``: what the carriers follow, the ``update`` since the start (Yu et al. 2021c)
            or the ``weight`` (the code they published).
    """

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
        takes = (*needs, *may_have)
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


@dataclass(frozen=True)
class Decode:
    """``conf/decode``: beam search or sampling.

    Attributes:
        beams: how many texts are kept at each step; 1 is greedy search, or sampling.
        sample: whether tokens are drawn.
        top_p: of sampling: only the likeliest tokens that have this probability together.
        max_new_tokens: where a text is stopped.
        length_penalty: of beam search: a text's log-probability is divided by its length to the
            power of this.
        batch_size: prompts that are answered together.
        split: whose prompts.
    """

    beams: Count = 5
    sample: bool = False
    top_p: Annotated[float, Bounds(above=0, most=1)] = 1.0
    max_new_tokens: Count = 100
    length_penalty: float = 1.0
    batch_size: Count = 32
    split: Annotated[Literal["dev", "test"], Effect.REPETITION] = "test"

    def check(self, usual: Decode | None = None) -> None:
        """Refuse what has no effect, and beams that sample.

        Not when it is made: runs of earlier versions have such settings, and can be read.

        Args:
            usual: what stands there was not typed, and is not refused; None: all was.

        Raises:
            ConfigError: for the first setting without effect.
        """

        def typed(*names: str) -> bool:
            return usual is None or any(getattr(self, n) != getattr(usual, n) for n in names)

        if self.sample and self.beams > 1 and typed("beams", "sample"):
            raise ConfigError(
                f"decode.beams is {self.beams} with decode.sample=true, which would be neither "
                "beam search nor texts as the model has them; expected one beam: type "
                "decode.beams=1, or decode.sample=false"
            )
        if not self.sample and self.top_p != 1 and typed("top_p"):
            raise ConfigError(
                f"decode.top_p is {self.top_p}, which has no effect on decode.sample=false; type "
                "decode.sample=true decode.beams=1, or decode.top_p=1"
            )
        if self.beams == 1 and self.length_penalty != 1 and typed("length_penalty"):
            raise ConfigError(
                f"decode.length_penalty is {self.length_penalty}, which has no effect on "
                "decode.beams=1; type decode.beams=5, or decode.length_penalty=1"
            )


@dataclass(frozen=True)
class Parallel:
    """``conf/parallel``: how the processes that torchrun started share model and batch.

    Attributes:
        name: ``data``: a copy of the model each; ``fsdp``: a part of every parameter each;
            ``pipeline``: some of its blocks each.
        shards: ``fsdp``: ranks that one copy of the model is spread over; None: all.
        length: ``pipeline``: ranks of one; None: all.
        schedule: ``pipeline``: in which order the stages take microbatches; None: ``1f1b``.
        microbatches: ``pipeline``: how many a schedule sends at a time; None: four for each rank.
    """

    name: Literal["data", "fsdp", "pipeline"] = "data"
    shards: Count | None = None
    length: Count | None = None
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"] | None = None
    microbatches: Count | None = None

    def __post_init__(self) -> None:
        for key, of in _OF_LAYOUT.items():
            if self.name != of and (value := getattr(self, key)) is not None:
                raise ConfigError(
                    f"parallel.{key} is {value}, which has no effect on parallel={self.name}; "
                    f"type parallel={of}"
                )


_OF_LAYOUT = {
    "shards": "fsdp",
    "length": "pipeline",
    "schedule": "pipeline",
    "microbatches": "pipeline",
}


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
    parallel: Annotated[Parallel, Effect.EXECUTION] = Parallel()
    audit: Audit = dataclasses.field(default_factory=Audit)
    evaluate: Evaluate = dataclasses.field(default_factory=Evaluate)
    track: Annotated[Track, Effect.EXECUTION] = dataclasses.field(default_factory=Track)
    record_norms: Annotated[Count | None, Effect.EXECUTION] = None
    ranks: Annotated[int, Bounds(above=0, most=4096), Effect.EXECUTION] | None = None
    cache: Annotated[str, Effect.EXECUTION] = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    out_of_memory: Annotated[Literal["stop", "halve"], Effect.EXECUTION] = "stop"
    replay: Annotated[Literal["exact", "charge"], Effect.EXECUTION] = "exact"
    verbosity: Annotated[Literal["quiet", "normal", "steps"], Effect.EXECUTION] = "normal"
    # As checkpoint_every, by the first rank's clock; None: by steps alone.
    checkpoint_minutes: Annotated[Positive | None, Effect.EXECUTION] = 5.0
    # Other kernels give other bits, by which a replayed step would be another release.
    compile: bool = False
    loss_scale: Annotated[int, Bounds(least=2, most=2**24)] = 1024
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
        if self.optim.name == "adam_bc" and not self.clip.private:
            raise ConfigError(
                "optim=adam_bc with clip=none: there is no noise whose variance could be taken "
                "off; type optim=adam"
            )
        if self.optim.name == "adam_bc" and self.adapt.name == "rgp":
            raise ConfigError(
                "optim=adam_bc with adapt=rgp: noise is on the carriers, and what of it reaches a "
                "coordinate of the weights differs from one to the next; type optim=adam"
            )
        if self.compile:
            self._check_compile()
        self._check_float16()
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

    @property
    def scale(self) -> int:
        """What losses are multiplied with before a backward."""
        return self.loss_scale if self.precision == "float16" else 1

    def _check_float16(self) -> None:
        """Refuse a scale that rounds or does nothing, and what float16 does not go with."""
        if self.precision != "float16":
            if self.loss_scale != Run.loss_scale:
                raise ConfigError(
                    f"loss_scale is {self.loss_scale} with precision={self.precision}, whose "
                    "losses are not scaled; type precision=float16, or leave loss_scale out"
                )
            return
        if self.loss_scale & (self.loss_scale - 1):
            raise ConfigError(
                f"loss_scale is {self.loss_scale}; expected a power of two, since dividing by "
                "another number rounds: type loss_scale=1024"
            )
        if self.parallel.name == "pipeline":
            raise ConfigError(
                "precision=float16 with parallel=pipeline, whose stages do not hand on scaled "
                "gradients; type precision=bfloat16, or parallel=data or parallel=fsdp"
            )
        if self.audit.records:
            raise ConfigError(
                f"precision=float16 with audit.records={self.audit.records}, whose losses have a "
                "large weight: their gradients overflow, and would be left out of what they are to "
                "audit; type precision=bfloat16, or audit.records=0 audit.gradients=1000"
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
        if self.precision != "float16":
            beside |= {"loss_scale"}
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
