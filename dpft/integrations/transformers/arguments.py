"""What privacy is asked for, and what of a Trainer or its model cannot go with it."""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from dpft.config.errors import ConfigError, DivergedError, NotInstalledError, suggestion
from dpft.privacy import Clipper, Mechanism, make_clipper
from dpft.privacy.spec import ACCOUNTANTS, STYLES, default_delta

TESTED = 5
"""The major version of transformers whose Trainer this is written for."""

# Arguments of `make_clipper` that have others here.
_NOT_CLIPPING = frozenset({"model", "style", "threshold", "cohort"})
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrivacyArguments:
    """The privacy of a `PrivateTrainer`.

    Attributes:
        epsilon: budget of the whole run, from which the noise follows.
        noise_multiplier: standard deviation of the noise over the sensitivity, in place of
            ``epsilon``.
        delta: failure probability; None: `dpft.privacy.spec.default_delta` of own data.
        threshold: clipping threshold on the norm of one record's gradient. Not
            ``TrainingArguments.max_grad_norm``, which clips the whole batch's.
        style: clipping style, see `dpft.privacy.make_clipper`; not ``none``.
        clipping: further arguments of `dpft.privacy.make_clipper`, such as ``clip_function``.
        quantile_budget: where thresholds adapt: the noisy counts' share of the budget.
        batch_size: expected records of a logical batch; None: ``per_device_train_batch_size *
            gradient_accumulation_steps``. Microbatches have ``per_device_train_batch_size``.
        accountant: that the noise is calibrated with: ``pld`` or ``rdp``.
        noise_seed: for repeatable research: batches and noise follow from it, and hide nothing from
            whoever knows it. None: a secret key, made at the first step.

    Raises:
        ConfigError: for an impossible value, or a choice that is missing.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    threshold: float = 0.1
    style: str = "bk"
    clipping: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    quantile_budget: float = 0.01
    batch_size: int | None = None
    accountant: str = "pld"
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigError(
                f"epsilon is {self.epsilon} and noise_multiplier is {self.noise_multiplier}; "
                "expected one of them: type PrivacyArguments(epsilon=3)"
            )
        for name, kind, most, expected in (
            ("epsilon", Real, math.inf, "a finite number above 0"),
            ("noise_multiplier", Real, math.inf, "a finite number above 0"),
            ("threshold", Real, math.inf, "a finite number above 0"),
            ("delta", Real, 1, "a number between 0 and 1, or None"),
            ("batch_size", Integral, math.inf, "a whole number above 0, or None"),
        ):
            value = getattr(self, name)  # a text, as YAML reads 1e-5, is no number
            number = isinstance(value, kind) and not isinstance(value, bool)
            if (value is not None or name == "threshold") and not (number and 0 < value < most):
                raise ConfigError(f"{name} is {value!r}; expected {expected}")
        known = [name for name in signature(make_clipper).parameters if name not in _NOT_CLIPPING]
        for said, given, allowed in (
            ("style is", [self.style], [name for name in STYLES if name != "none"]),
            ("accountant is", [self.accountant], list(ACCOUNTANTS)),
            ("clipping has", self.clipping, known),
        ):
            for name in given:
                if name not in allowed:
                    raise ConfigError(
                        f"{said} {name!r}{suggestion(str(name), allowed)}; expected one of "
                        f"{', '.join(allowed)}"
                    )

    def mechanism(self, dataset_size: int, batch_size: int, steps: int) -> Mechanism:
        """Return the mechanism of a run, over one group as long as there is no clipper.

        Raises:
            ConfigError: for a batch that the data set cannot give, or a budget out of reach.
        """
        if not 1 <= batch_size <= dataset_size:
            raise ConfigError(
                f"the expected batch is {batch_size} of {dataset_size} training records; expected "
                f"between 1 and {dataset_size}: type PrivacyArguments(batch_size=...), or smaller "
                "per_device_train_batch_size and gradient_accumulation_steps"
            )
        delta = default_delta(dataset_size, False) if self.delta is None else self.delta
        thresholds = (float(self.threshold),)
        try:
            if self.noise_multiplier is not None:
                sigma = float(self.noise_multiplier)
                return Mechanism(dataset_size, batch_size, steps, sigma, thresholds, delta)
            assert self.epsilon is not None
            return Mechanism.calibrate(
                dataset_size=dataset_size,
                batch_size=batch_size,
                steps=steps,
                thresholds=thresholds,
                delta=delta,
                target_epsilon=self.epsilon,
                accountant=self.accountant,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error


def expected_batch(privacy: PrivacyArguments, args: Any) -> int:
    """Return the records of a logical batch on average.

    Raises:
        ConfigError: if it is given twice, and differently.
    """
    product = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if privacy.batch_size is None:
        return int(product)
    if args.gradient_accumulation_steps > 1 and product != privacy.batch_size:
        raise ConfigError(
            f"PrivacyArguments.batch_size is {privacy.batch_size}, and per_device_train_batch_size "
            f"* gradient_accumulation_steps is {product}; expected one of them: leave out "
            "batch_size, or gradient_accumulation_steps (a batch is cut into microbatches of "
            "per_device_train_batch_size whatever its size)"
        )
    return privacy.batch_size


class Refusal(NamedTuple):
    """An argument of Trainer or TRL that cannot go with privacy: its only values, and why."""

    name: str
    allowed: tuple[Any, ...]
    why: str


_COUPLES = "a record's gradient would depend on the others of its batch"
_OUR_LOSS = "the loss is formed here, one number for each record; give per_example_loss="
_OWN_LOOP = "several processes: use dpft train with torchrun, or one process"
_STAYS_HALF = "evaluate() leaves the model in half precision, to be trained or saved so"
_ROUNDED = "records would be rounded by the shapes of their microbatch, and so by one another"

REFUSALS = (
    Refusal("max_grad_norm", (0, 0.0), "it clips the batch; records have threshold="),
    Refusal("packing", (False,), "a row would hold parts of several records"),
    Refusal("padding_free", (False,), "the records of a batch would become one row"),
    Refusal("neftune_noise_alpha", (None, 0), f"its noise scales with the padding: {_COUPLES}"),
    Refusal("label_smoothing_factor", (0, 0.0), _OUR_LOSS),
    Refusal("loss_type", ("nll", None), _OUR_LOSS),
    Refusal("train_sampling_strategy", ("random",), "Poisson samples are drawn here"),
    Refusal("group_by_length", (False,), "Poisson samples are drawn here"),
    Refusal("dataloader_drop_last", (False,), "batches vary in size; none is dropped"),
    Refusal("ignore_data_skip", (False,), "a step that is resumed has its own batch"),
    Refusal("auto_find_batch_size", (False,), "the microbatch is part of what a replay repeats"),
    Refusal("fp16", (False,), _ROUNDED),
    Refusal("bf16", (False, None), _ROUNDED),
    Refusal("bf16_full_eval", (False,), _STAYS_HALF),
    Refusal("fp16_full_eval", (False,), _STAYS_HALF),
    Refusal("torch_compile", (False,), "hooks would not see the layers"),
    Refusal("use_liger_kernel", (False,), "it replaces layers and losses"),
    Refusal("activation_offloading", (False,), "its hooks are bypassed here"),
    Refusal("deepspeed", (None,), _OWN_LOOP),
    Refusal("fsdp", (None, "", [], False), _OWN_LOOP),
    Refusal("parallelism_config", (None,), _OWN_LOOP),
    Refusal(
        "include_num_input_tokens_seen",
        ("no", False),
        "it counts tokens of private batches without noise",
    ),
    Refusal("debug", ([], "", ()), "it prints activations of private records, and stops by them"),
    Refusal("skip_memory_metrics", (True,), "memory follows from the records of private batches"),
    Refusal("enable_jit_checkpoint", (False,), "its checkpoints could not be told from torn ones"),
    Refusal("push_to_hub", (False,), "output_dir holds private/; upload the saved model itself"),
)

# What trackers take besides the logs where a variable of the environment has one of these values.
_UPLOADED = "it uploads output_dir, which holds private/ with the key of the noise"
_ON = ("1", "on", "yes", "true")
TAKEN = {
    "comet_ml": ("COMET_LOG_ASSETS", _ON, _UPLOADED),
    "dagshub": ("HF_DAGSHUB_LOG_ARTIFACTS", _ON, _UPLOADED),
    "dvclive": ("HF_DVCLIVE_LOG_MODEL", ("all",), _UPLOADED),
    "wandb": ("WANDB_WATCH", ("gradients", "all"), "it logs gradients, which may lack noise"),
}
# What the mixin takes the place of. A subclass that overrides it would be run instead of it, or
# its own version not at all.
_OURS = ("get_train_dataloader", "training_step", "train", "log")
_UNUSED = ("compute_loss", "_get_train_sampler", "get_batch_samples", "_prepare_inputs")
_REPLACED = ("get_train_dataloader", "training_step")  # of the Trainer beneath


def refused(args: Any, callbacks: Sequence[Any] = ()) -> list[str]:
    """Return what of Trainer's arguments cannot go with privacy, a line each."""
    lines = []
    for name, allowed, why in REFUSALS:
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            lines.append(f"{name}={value!r}: {why}. Type {name}={allowed[0]!r}")
    optimizer = str(getattr(args.optim, "value", args.optim))
    if "lomo" in optimizer or "layerwise" in optimizer:
        lines.append(
            f"optim={optimizer!r}: it moves weights within the backward, before there is noise. "
            "Type optim='adamw_torch'"
        )
    trackers = set(args.report_to)
    if callbacks:
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK as KINDS

        trackers |= {k for k, kind in KINDS.items() if any(isinstance(x, kind) for x in callbacks)}
    for tracker, (variable, values, why) in TAKEN.items():
        value = os.environ.get(variable, "")
        if tracker in trackers and value.lower() in values:
            lines.append(f"{variable}={value} with {tracker}: {why}. Type unset {variable}")
    if any(getattr(callback, "_log_model", None) == "all" for callback in callbacks):  # of dvclive
        lines.append(f"a callback with log_model='all': {_UPLOADED}. Leave it out")
    return lines


def of_trainer(trainer: Any, mixin: type) -> list[str]:
    """Return what of a Trainer cannot go with privacy; ``mixin``: the class whose methods run."""
    lines = refused(trainer.args, trainer.callback_handler.callbacks)
    devices = max(trainer.args.n_gpu, trainer.accelerator.num_processes)
    if devices > 1:
        lines.append(
            f"{devices} devices: one process on one device trains here. Type "
            "CUDA_VISIBLE_DEVICES=0, or use dpft train with torchrun"
        )
    if trainer.accelerator.mixed_precision not in (None, "no"):
        lines.append(
            f"mixed precision {trainer.accelerator.mixed_precision!r} of accelerate: {_ROUNDED}. "
            "Type ACCELERATE_MIXED_PRECISION=no"
        )
    plugin = getattr(trainer.accelerator.state, "dynamo_plugin", None)
    if plugin is not None and getattr(plugin.backend, "value", "NO") != "NO":
        lines.append("torch.compile of accelerate: type ACCELERATE_DYNAMO_BACKEND=NO")
    if trainer.compute_loss_func is not None:
        lines.append(
            "compute_loss_func: it forms one loss of a batch. Pass per_example_loss=, a function "
            "of (model, inputs) that returns shape (B,)"
        )
    lines += same_data(trainer.train_dataset, trainer.eval_dataset)
    if trainer.model_init is not None:
        lines.append("model_init: it is for a search, whose trials each spend. Pass model=")
    kind = type(trainer)
    lines += [
        f"{kind.__name__}.{name}: it takes the place of PrivacyMixin's. Put PrivacyMixin first, "
        "and leave the method as it is"
        for name in _OURS
        if getattr(kind, name) is not getattr(mixin, name)
    ]
    beneath = [*((name, getattr(kind, name, None)) for name in _UNUSED)]
    beneath += [(name, getattr(super(mixin, kind), name)) for name in _REPLACED]
    # Trainer's own, or those of the trainer of TRL whose arguments are looked at.
    known = ("transformers.", "trl.trainer.sft_trainer.")
    lines += [
        f"{kind.__name__}.{name}: it would not be called. Losses are given by per_example_loss=, "
        "batches are drawn here"
        for name, found in beneath
        if found is not None and not f"{found.__module__}.{found.__qualname__}".startswith(known)
    ]
    return lines


def changed(args: Any, mechanism: Mechanism) -> list[str]:
    """Return what of Trainer's counting has changed since the noise was calibrated."""
    counted = {"max_steps": mechanism.steps, "gradient_accumulation_steps": 1}
    return [
        f"trainer.args.{name}={getattr(args, name)}: the noise was calibrated for other steps when "
        "the trainer was made. Make it anew"
        for name, value in counted.items()
        if getattr(args, name) != value
    ]


def same_data(train: Any, evaluation: Any) -> list[str]:
    """Return a line if scores, which are computed without noise, are of the training records."""
    several = evaluation.values() if isinstance(evaluation, dict) else [evaluation]
    if train is None or all(one is not train for one in several):
        return []
    return [
        "eval_dataset: it is train_dataset, and scores of private records would be logged without "
        "noise. Pass records that are not trained on"
    ]


def refuse(lines: Sequence[str]) -> None:
    """Raise ConfigError that names everything that cannot go with privacy, if there is anything."""
    if lines:
        listed = "\n  ".join(lines)
        raise ConfigError(f"these cannot go with privacy:\n  {listed}")


def check_version() -> None:
    """Raise NotInstalledError for a transformers whose Trainer this was not written for."""
    import transformers

    if int(transformers.__version__.split(".")[0]) != TESTED:
        raise NotInstalledError(
            f"transformers is {transformers.__version__}; expected version {TESTED}: "
            "PrivateTrainer replaces parts of Trainer, which other versions may call otherwise. "
            f"Type pip install 'transformers>={TESTED},<{TESTED + 1}'"
        )


def check_precision(model: nn.Module) -> None:
    """Raise ConfigError for half precision and quantised weights."""
    if torch.is_autocast_enabled(next(model.parameters()).device.type):
        raise ConfigError(
            f"train() is called under torch.autocast; expected float32: {_ROUNDED}. Leave out the "
            "context"
        )
    tensors = [*model.named_parameters(), *model.named_buffers()]
    low = sorted(
        {str(x.dtype) for _, x in tensors if x.is_floating_point() and x.dtype.itemsize < 4}
    )
    if low or getattr(model, "is_quantized", False):
        raise ConfigError(
            f"the model has tensors of {', '.join(low) or 'a quantised type'}; expected float32: "
            f"{_ROUNDED}. Load it with dtype=torch.float32"
        )


def check_finite(clipper: Clipper, step: int) -> None:
    """Raise DivergedError for weights that are not finite: those are released anyway."""
    finite = torch.stack([torch.isfinite(p).all() for p in clipper.parameters.values()])
    if not bool(finite.all()):
        raise DivergedError(
            f"the weights are not finite after step {step - 1}; expected finite numbers. Type a "
            "smaller learning_rate and another output_dir; what this run spent stays in its ledger"
        )


def check_trained(clipper: Clipper, model: nn.Module, optimizer: Any) -> None:
    """Refuse a step that would move anything but the clipped parameters, or not all of them.

    Callbacks may freeze, unfreeze and replace parameters, and an optimizer may hold others than
    the model's.

    Raises:
        ConfigError: naming them.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    own = clipper.parameters
    other = [name for name in {**own, **trained} if own.get(name) is not trained.get(name)]
    if other:
        raise ConfigError(
            f"{', '.join(other[:3])} changed during training (frozen, unfrozen or replaced, by a "
            "callback); expected the same trained parameters at every step, since a record's "
            "gradient is clipped over all of them: freeze before train(), or train the phases one "
            "after the other, each with an output_dir and a budget of its own"
        )
    clipped = {id(p) for p in own.values()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    strange = sum(p.grad is not None and id(p) not in clipped for p in held)
    if strange:
        raise ConfigError(
            f"the optimizer holds {strange} parameters with a gradient that are not the model's "
            "trained ones; expected none: what they learn of the records nothing clips. Make them "
            "parameters of the model, or leave them out of the optimizer"
        )


def warn_of_unmoved(model: nn.Module, optimizer: Any) -> None:
    """Name the trained parameters that the optimizer does not hold."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if left:
        _LOGGER.warning(
            "The optimizer does not hold %s: clipping counts their gradients, and they never "
            "move. Freeze them (requires_grad_(False)), or give them to the optimizer",
            ", ".join(left[:3]),
        )
