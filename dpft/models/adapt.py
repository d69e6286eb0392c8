"""Adaptation: which parameters of a model are trained, or what is added to them."""

from dpft.config.errors import ModelError
from dpft.config.flags import Flag, has
from dpft.config.schema import Adapt
from dpft.models.load import LoadedModel
from dpft.models.needs import Needs


def adapt(loaded: LoadedModel, settings: Adapt, needs: Needs, seed: int) -> LoadedModel:
    """Return the model with ``requires_grad`` set, or wrapped, as ``conf/adapt`` says.

    A new classification head is trained whatever the method.

    Args:
        loaded: as `load_model` made it, every parameter trainable. It is changed.
        settings: ``conf/adapt``.
        needs: what the task's objective works with.
        seed: for drawn weights.

    Raises:
        ModelError: if the method does not fit the model.
    """
    match settings.name:
        case "full":
            return loaded
        case "scratch":
            if not has(loaded.flags, Flag.RANDOM_WEIGHTS):
                raise ModelError(
                    "adapt=scratch trains drawn weights, and the model has pretrained ones; "
                    "expected model.init=scratch"
                )
            return loaded
        # Each imports its own: peft takes a second.
        case "lora":
            from dpft.models.adapters import with_lora

            return with_lora(loaded, settings, needs, seed)
        case "prefix":
            from dpft.models.adapters import with_prefix

            return with_prefix(loaded, settings, needs, seed)
        case "rgp":
            from dpft.models.rgp import with_rgp

            return with_rgp(loaded, settings, needs, seed)
        case _:
            from dpft.models.trained_part import select

            select(loaded.model, settings, needs)
            return loaded
