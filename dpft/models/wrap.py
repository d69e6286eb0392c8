"""Putting one of peft's wrappers around a model."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import cast

from torch import nn
from transformers import PreTrainedModel

from dpft.models.load import LoadedModel


def wrapped(loaded: LoadedModel, wrap: Callable[[nn.Module], nn.Module]) -> LoadedModel:
    """The model behind ``wrap``, which passes on whatever it lacks to the model within."""
    with warnings.catch_warnings():
        # peft 0.21 asks every model for an attribute that transformers 5 has renamed.
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated")
        model = wrap(loaded.model)
    return dataclasses.replace(loaded, model=cast(PreTrainedModel, model))
