"""The privacy that is asked for, and arguments of Trainer that cannot be used with it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
import transformers
from pydantic.dataclasses import dataclass
from torch import nn
from torch.utils.data import IterableDataset

from dpft.config.errors import ConfigError, one_of
from dpft.config.schema import STRICT, Positive, Seed, Share
from dpft.privacy import Clipper, Mechanism
from dpft.privacy.spec import STYLES, default_delta

TESTED = 5  # the major version of transformers whose Trainer this is written for


@dataclass(frozen=True, config=STRICT)
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
        noise_seed: for repeatable research: batches and noise follow from it, and hide nothing from
            those who know it. None: a secret key, made at the first step.

    Raises:
        ConfigError: for a missing choice or an unknown style.
        pydantic.ValidationError: for a value of another type or out of range.
    """

    epsilon: Positive | None = None
    noise_multiplier: Positive | None = None
    delta: Share | None = None
    threshold: Positive = 0.1
    style: str = "bk"
    clipping: Mapping[str, Any] = field(default_factory=dict)
    noise_seed: Seed | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigError(
                f"epsilon is {self.epsilon} and noise_multiplier is {self.noise_multiplier}; "
                "expected one of them: type PrivacyArguments(epsilon=3)"
            )
        one_of("style", self.style, [name for name in STYLES if name != "none"])

    def mechanism(self, dataset_size: int, args: Any) -> Mechanism:
        """Return the mechanism of a run, over one group as long as there is no clipper.

        Args:
            dataset_size: records of the training set.
            args: of Trainer, whose batch, steps and epochs count. A microbatch has
                ``per_device_train_batch_size`` records, and a batch
                ``gradient_accumulation_steps`` times as many on average.

        Raises:
            ConfigError: for a batch that the data set cannot give, or a budget out of reach.
        """
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
        try:
            mechanism = Mechanism.calibrate(
                dataset_size=dataset_size,
                batch_size=batch,
                steps=args.max_steps if args.max_steps > 0 else None,
                epochs=args.num_train_epochs,
                thresholds=(self.threshold,),
                delta=default_delta(dataset_size, False) if self.delta is None else self.delta,
                target_epsilon=self.epsilon,
                noise_multiplier=self.noise_multiplier,
            )
        except ValueError as error:  # whose settings have the names of the command line
            raise ConfigError(str(error).replace("optim.", "")) from error
        if not mechanism.steps:
            raise ConfigError(f"num_train_epochs={args.num_train_epochs} is no step; expected one")
        return mechanism


_COUPLES = "a record's gradient would depend on the other records of its batch"
_OUR_LOSS = "losses are formed here, one number for each record; give per_example_loss="
_ONE = "several processes: use dpft train with torchrun, or one process"
_ROUNDED = "records would be rounded by the shapes of their microbatch, and so by one another"
_UPLOADED = "it uploads output_dir, which holds private/ with the key of the noise"
_DRAWN = "Poisson samples are drawn here"

# Arguments of Trainer or TRL that cannot be used with privacy: their only values, and why.
REFUSALS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("max_grad_norm", (0, 0.0), "it clips the batch; records have threshold="),
    ("packing", (False,), "a row would hold parts of several records"),
    ("padding_free", (False,), "the records of a batch would become one row"),
    ("neftune_noise_alpha", (None, 0), f"its noise scales with the padding: {_COUPLES}"),
    ("label_smoothing_factor", (0, 0.0), _OUR_LOSS),
    ("loss_type", ("nll", None), _OUR_LOSS),
    ("train_sampling_strategy", ("random",), _DRAWN),
    ("group_by_length", (False,), _DRAWN),
    ("dataloader_drop_last", (False,), _DRAWN),
    ("ignore_data_skip", (False,), "a step that is resumed has its own batch"),
    ("auto_find_batch_size", (False,), "a repeated step needs the same microbatches"),
    ("fp16", (False,), _ROUNDED),
    ("bf16_full_eval", (False,), "evaluate() leaves the model in half precision"),
    ("fp16_full_eval", (False,), "evaluate() leaves the model in half precision"),
    ("torch_compile", (False,), "hooks would not see the layers"),
    ("use_liger_kernel", (False,), "it replaces layers and losses"),
    ("activation_offloading", (False,), "its hooks are bypassed here"),
    ("deepspeed", (None,), _ONE),
    ("fsdp", (None, "", [], False), _ONE),
    ("parallelism_config", (None,), _ONE),
    ("include_num_input_tokens_seen", ("no", False), "it counts tokens of private batches"),
    ("debug", ([], "", ()), "it prints activations of private records, and stops by them"),
    ("skip_memory_metrics", (True,), "memory follows from the records of private batches"),
    ("enable_jit_checkpoint", (False,), "its checkpoints have no manifest"),
    ("push_to_hub", (False,), f"{_UPLOADED}; upload the saved model itself"),
)
# Variables of the environment by which trackers take more than the logs: values, and why not.
_ON = ("1", "on", "yes", "true")
TAKEN = (
    ("COMET_LOG_ASSETS", _ON, _UPLOADED),
    ("HF_DAGSHUB_LOG_ARTIFACTS", _ON, _UPLOADED),
    ("HF_DVCLIVE_LOG_MODEL", ("all",), _UPLOADED),
    ("WANDB_WATCH", ("gradients", "all"), "it logs gradients, which may lack noise"),
)
# Methods that must be the mixin's, and methods that no subclass may override.
_OURS = ("get_train_dataloader", "training_step", "train", "log")
_UNUSED = ("compute_loss", "_get_train_sampler", "get_batch_samples", "_prepare_inputs")


def refused(args: Any, callbacks: Sequence[Any] = ()) -> list[str]:
    """Return a line for each of Trainer's arguments that cannot be used with privacy."""
    lines = []
    if int(transformers.__version__.split(".")[0]) != TESTED:
        lines.append(
            f"transformers {transformers.__version__}: parts of Trainer that are replaced here may "
            f"have other names in it. Type pip install 'transformers>={TESTED},<{TESTED + 1}'"
        )
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
    # Whatever trackers there are: a callback may be one.
    for variable, values, why in TAKEN:
        value = os.environ.get(variable, "")
        if value.lower() in values:
            lines.append(f"{variable}={value}: {why}. Type unset {variable}")
    if any(getattr(callback, "_log_model", None) == "all" for callback in callbacks):  # of dvclive
        lines.append(f"a callback with log_model='all': {_UPLOADED}. Leave it out")
    return lines


def of_trainer(trainer: Any, mixin: type, mechanism: Mechanism | None = None) -> list[str]:
    """Return a line for each property of a Trainer that cannot be used with privacy.

    Args:
        trainer: a `PrivateTrainer`.
        mixin: the class whose methods must run.
        mechanism: that the noise was calibrated for, once it is known.
    """
    kind, accelerator, data = type(trainer), trainer.accelerator, trainer.train_dataset
    devices = max(trainer.args.n_gpu, accelerator.num_processes)
    plugin = accelerator.state.dynamo_plugin
    checks = [
        (devices > 1, f"{devices} devices: {_ONE}. Type CUDA_VISIBLE_DEVICES=0"),
        (
            accelerator.mixed_precision not in (None, "bf16" if trainer.args.bf16 else "no"),
            f"mixed precision {accelerator.mixed_precision!r} of accelerate: {_ROUNDED}. Type "
            "ACCELERATE_MIXED_PRECISION=no, and bf16=True for bfloat16",
        ),
        (
            plugin is not None and plugin.backend.value != "NO",
            "torch.compile of accelerate: type ACCELERATE_DYNAMO_BACKEND=NO",
        ),
        (trainer.compute_loss_func is not None, f"compute_loss_func: {_OUR_LOSS}"),
        (
            # A stream may know its length, and inherits an access by number that only raises.
            isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"),
            "train_dataset: a stream has no records by number, which are drawn one by one. Pass a "
            "map-style data set",
        ),
        (
            trainer.model_init is not None,
            "model_init: it is for a search, whose trials each spend. Pass model=",
        ),
    ]
    known = ("transformers.", "trl.trainer.sft_trainer.")
    own = (f"{mixin.__module__}.{mixin.__qualname__}.",)
    for name, method, places in (
        *((name, getattr(kind, name), own) for name in _OURS),
        *((name, getattr(kind, name, None), known) for name in _UNUSED),
        # Replaced by the mixin: of the Trainer beneath.
        *((name, getattr(super(mixin, kind), name), known) for name in _OURS[:2]),
    ):
        place = "transformers." if method is None else f"{method.__module__}.{method.__qualname__}"
        line = (
            f"{kind.__name__}.{name}: it would not be called, or in place of PrivacyMixin's. Put "
            "PrivacyMixin first, leave the method out, and give losses by per_example_loss="
        )
        checks.append((not place.startswith(tuple(places)), line))
    if mechanism is not None:
        for name, value in (("max_steps", mechanism.steps), ("gradient_accumulation_steps", 1)):
            now = getattr(trainer.args, name)
            line = f"trainer.args.{name}={now}: the noise was calibrated for {value}. Make it anew"
            checks.append((now != value, line))
        size = mechanism.dataset_size
        line = f"train_dataset: the noise was calibrated for {size} records. Make the trainer anew"
        checks.append((hasattr(data, "__len__") and len(data) != size, line))
    lines = [line for wrong, line in checks if wrong]
    return [*refused(trainer.args, trainer.callback_handler.callbacks), *lines]


def refuse(lines: Sequence[str]) -> None:
    """Raise ConfigError that lists everything that cannot be used with privacy, if there is any."""
    if lines:
        listed = "\n  ".join(lines)
        raise ConfigError(f"these cannot go with privacy:\n  {listed}")


def check_precision(model: nn.Module, bf16: bool | None) -> None:
    """Raise ConfigError for half precision and quantised weights.

    With ``bf16`` microbatches have fixed shapes, and frozen weights may be in bfloat16 too.
    """
    if torch.is_autocast_enabled(next(model.parameters()).device.type):
        raise ConfigError(
            f"train() is called under torch.autocast; expected float32: {_ROUNDED}. Leave out the "
            "context"
        )
    if not bf16 and "_original_forward" in vars(model):  # which accelerate leaves there
        raise ConfigError(
            "an earlier training in bfloat16 or float16 has left autocast in the model's forward; "
            f"expected float32: {_ROUNDED}. Load the model anew, or type bf16=True"
        )
    tensors = [*model.parameters(), *model.buffers()]
    low = {str(x.dtype) for x in tensors if x.is_floating_point() and x.dtype.itemsize < 4}
    low -= {"torch.bfloat16"} if bf16 else set()
    if low or getattr(model, "is_quantized", False):
        raise ConfigError(
            f"the model has tensors of {', '.join(sorted(low)) or 'a quantised type'}; expected "
            f"float32: {_ROUNDED}. Load it with dtype=torch.float32"
        )


def check_trained(clipper: Clipper, model: nn.Module, optimizer: Any) -> None:
    """Raise ConfigError if a step would move other parameters than those that are clipped.

    Callbacks may freeze, unfreeze and replace parameters, and an optimizer may hold others.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    own = clipper.parameters
    other = [name for name in {**own, **trained} if own.get(name) is not trained.get(name)]
    if other:
        raise ConfigError(
            f"{', '.join(other[:3])} changed during training (frozen, unfrozen or replaced, by a "
            "callback); expected the same trained parameters at every step: freeze before train(), "
            "or train the phases one after the other, each with a separate output_dir and budget"
        )
    clipped = {id(p) for p in own.values()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    strange = sum(p.grad is not None and id(p) not in clipped for p in held)
    if strange:
        raise ConfigError(
            f"the optimizer holds {strange} parameters with a gradient that are not the model's "
            "trained ones; expected none, since these gradients are not clipped. Make them "
            "parameters of the model, or leave them out of the optimizer"
        )
