"""Adaptation: which parameters of a model are trained, or what is put beside them."""

from __future__ import annotations

from dpft.config import Adapt
from dpft.models.load import LoadedModel, Needs


def adapt(loaded: LoadedModel, settings: Adapt, needs: Needs, seed: int) -> LoadedModel:
    """The model with ``requires_grad`` set, or wrapped, as ``conf/adapt`` says.

    Args:
        loaded: as `load_model` made it, every parameter trainable.
        settings: ``conf/adapt``.
        needs: what the task's objective works with: a new classification head is always trained.
        seed: for drawn weights.
    """
    return loaded
