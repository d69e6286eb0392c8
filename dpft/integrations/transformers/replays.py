"""What a step follows from beside its records and the key, which must be the same to repeat it.

On a CPU the digest of a step would tell; on a GPU there is none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from dpft.integrations.transformers.arguments import PrivacyArguments

# Of `TrainingArguments`.
_DECISIVE = (
    "per_device_train_batch_size",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "optim",
    "optim_args",
    "optim_target_modules",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
)
# Of a model's configuration what says where it lay, and who wrote it; and what saving writes there
# of the model's own class and numbers.
_INCIDENTAL = ("_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype")


def decisive(
    args: Any, arguments: PrivacyArguments, optimizer: str | None, forward: Mapping[str, str]
) -> dict[str, Any]:
    """All of it, for the head of the ledger.

    Args:
        args: ``TrainingArguments``.
        arguments: of the mechanism's clipping.
        optimizer: one of one's own, as `spelled`.
        forward: as of `forward_of`.
    """
    return {
        **{name: _plain(getattr(args, name)) for name in _DECISIVE},
        "optimizer": optimizer,
        "style": arguments.style,
        "clipping": {name: _plain(x) for name, x in arguments.clipping.items()},
        "forward": forward,
    }


def forward_of(model: Any, loss: Any, collate: Any, own_loss: bool) -> dict[str, str]:
    """What a record's loss follows from beside the weights.

    Args:
        model: whose layers and configuration count.
        loss: per example.
        collate: the data collator.
        own_loss: whether the loss is the user's, not the model's.
    """
    config = model.config.to_dict() if hasattr(model, "config") else {}
    told = {name: config[name] for name in sorted(config) if name not in _INCIDENTAL}
    if own_loss and "problem_type" in told:  # a forward with labels, as in evaluate(), fills it in
        told["problem_type"] = None
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{model!r}\n{told!r}")
    return {
        "model": hashlib.sha256(text.encode()).hexdigest()[:16],
        "loss": _qualified(loss),
        "collator": _qualified(collate),
    }


def _qualified(called: Any) -> str:
    """The name of a function, or of an object's class, as it is imported."""
    named = called if hasattr(called, "__qualname__") else type(called)
    return f"{named.__module__}.{named.__qualname__}"


def _plain(value: Any) -> Any:
    """An argument as JSON has it."""
    value = getattr(value, "value", value)
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def spelled(optimizer: Any, made_by: Any) -> str | None:
    """An optimizer of one's own, as text; None if Trainer makes its own.

    Args:
        optimizer: that was passed.
        made_by: or its class and settings, as of ``optimizer_cls_and_kwargs``.
    """
    if optimizer is not None:
        defaults = optimizer.defaults
        own = [
            {
                name: value
                for name, value in {**group, "lr": group.get("initial_lr", group.get("lr"))}.items()
                if name not in ("params", "initial_lr") and value != defaults.get(name)
            }
            for group in optimizer.param_groups
        ]
        return f"{type(optimizer).__name__} {defaults}" + (f" {own}" if any(own) else "")
    if made_by is not None:
        kind, settings = made_by
        plain = {k: v for k, v in settings.items() if isinstance(v, str | int | float | tuple)}
        return f"{getattr(kind, '__name__', type(kind).__name__)} {plain}"
    return None
