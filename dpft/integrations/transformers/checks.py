"""What of a Trainer, its model and its optimizer cannot go with privacy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dpft.config.errors import ConfigError, DivergedError
from dpft.integrations.transformers.arguments import PrivacyArguments, refused
from dpft.privacy import Clipper, Mechanism

_LOGGER = logging.getLogger(__name__)

# What the mixin takes the place of. A subclass that overrides it would be run instead of it, or
# its own version not at all.
_OURS = ("get_train_dataloader", "training_step", "train", "log")
_UNUSED = ("compute_loss", "_get_train_sampler", "get_batch_samples", "_prepare_inputs")
_REPLACED = ("get_train_dataloader", "training_step")  # of the Trainer beneath


def refuse(lines: Sequence[str]) -> None:
    """Name everything that cannot go with privacy, if there is anything.

    Raises:
        ConfigError: with the lines.
    """
    if lines:
        listed = "\n  ".join(lines)
        raise ConfigError(f"these cannot go with privacy:\n  {listed}")


def of_trainer(trainer: Any, mixin: type, privacy: PrivacyArguments) -> list[str]:
    """What of a Trainer, made by now, cannot go with privacy.

    Args:
        trainer: with its arguments and callbacks.
        mixin: whose methods are to be called.
        privacy: what is asked for.
    """
    lines = refused(trainer.args, privacy, trainer.callback_handler.callbacks)
    if trainer.args.n_gpu > 1 or trainer.accelerator.num_processes > 1:
        lines.append(
            f"{max(trainer.args.n_gpu, trainer.accelerator.num_processes)} devices: one process on "
            "one device trains here. Type CUDA_VISIBLE_DEVICES=0, or use dpft train with torchrun"
        )
    if trainer.accelerator.mixed_precision not in (None, "no"):
        lines.append(
            f"mixed precision {trainer.accelerator.mixed_precision!r} of accelerate: records would "
            "be rounded by the shapes of their microbatch. Type ACCELERATE_MIXED_PRECISION=no"
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
    lines += [
        f"{kind.__name__}.{name}: it would not be called. Losses are given by per_example_loss=, "
        "batches are drawn here"
        for name, found in (
            *((name, getattr(kind, name, None)) for name in _UNUSED),
            *((name, getattr(super(mixin, kind), name)) for name in _REPLACED),
        )
        if not _of_libraries(found)
    ]
    return lines


def changed(args: Any, mechanism: Mechanism) -> list[str]:
    """What of Trainer's counting is no longer as it was when the noise was calibrated."""
    counted = {"max_steps": mechanism.steps, "gradient_accumulation_steps": 1}
    return [
        f"trainer.args.{name}={getattr(args, name)}: the noise was calibrated for other steps when "
        "the trainer was made. Make it anew"
        for name, value in counted.items()
        if getattr(args, name) != value
    ]


def same_data(train: Any, evaluation: Any) -> list[str]:
    """That scores, which are computed without noise, are of other records."""
    if train is None or all(one is not train for one in several(evaluation)):
        return []
    return [
        "eval_dataset: it is train_dataset, and scores of private records would be logged without "
        "noise. Pass records that are not trained on"
    ]


def several(evaluation: Any) -> list[Any]:
    """One data set, or several by name."""
    found = evaluation.values() if isinstance(evaluation, dict) else [evaluation]
    return [one for one in found if one is not None]


def _of_libraries(function: Any) -> bool:
    """Whether a method is Trainer's, or of the trainer of TRL whose arguments are looked at."""
    owner = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    return (
        function is None
        or owner.startswith("transformers.")
        or owner.startswith("trl.trainer.sft_trainer.")
    )


def check_precision(model: nn.Module) -> None:
    """Refuse half precision and quantised weights.

    Raises:
        ConfigError: naming the types.
    """
    if torch.is_autocast_enabled(next(model.parameters()).device.type):
        raise ConfigError(
            "train() is called under torch.autocast; expected float32: in half precision a "
            "record's gradient is rounded by its microbatch's shapes. Leave out the context"
        )
    tensors = [*model.named_parameters(), *model.named_buffers()]
    low = sorted(
        {str(x.dtype) for _, x in tensors if x.is_floating_point() and x.dtype.itemsize < 4}
    )
    if low or getattr(model, "is_quantized", False):
        raise ConfigError(
            f"the model has tensors of {', '.join(low) or 'a quantised type'}; expected float32: "
            "in half precision a record's gradient is rounded by its microbatch's shapes. Load it "
            "with dtype=torch.float32"
        )


def check_finite(clipper: Clipper, step: int) -> None:
    """Weights are released: that training stops for their sake gives nothing away.

    Raises:
        DivergedError: if they are not finite.
    """
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
            f"{_listed(other)} changed during training (frozen, unfrozen or replaced, by a "
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
    """Say which trained parameters the optimizer does not hold."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if left:
        _LOGGER.warning(
            "The optimizer does not hold %s: clipping counts their gradients, and they never "
            "move. Freeze them (requires_grad_(False)), or give them to the optimizer",
            _listed(left),
        )


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
