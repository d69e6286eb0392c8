"""The optimizer, the expected batch size, and how long training takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from dpft.config.checks import Bounds, Count, Effect, Fraction, NonNegative, Positive, Whole
from dpft.config.errors import ConfigError

Optimizer = Literal["adam", "adamw", "sgd", "lamb"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)


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
        microbatch_tokens: most padded tokens in memory at once; ``dpft plan --largest`` finds the
            most that fit a device.
        weight_decay: decoupled from the gradient for ``adamw`` and ``lamb``.
        betas: decay of both moments, of Adam and LAMB.
        adam_epsilon: in the denominator of Adam and LAMB.
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
    microbatch_tokens: Annotated[Count, Effect.REPETITION] = 2048
    weight_decay: NonNegative = 0.0
    betas: Annotated[tuple[float, ...], Bounds(least=0, below=1)] = (0.9, 0.999)
    adam_epsilon: Positive = 1e-8
    momentum: Fraction = 0.0
    schedule: Literal["constant", "linear"] = "constant"
    warmup_steps: Whole = 0
    warmup_ratio: Annotated[float, Bounds(least=0, most=1)] | None = None

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
        if self.name == "sgd" and self.betas != (0.9, 0.999):
            raise ConfigError(
                f"optim.betas is {list(self.betas)}, which has no effect on optim=sgd; type "
                "optim.momentum, or leave it out"
            )
