"""What others call a model: its name on the hub, and the task that the hub files it under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from dpft.models.needs import Needs
from dpft.models.packaged import PACKAGES

_PIPELINES = {
    "causal": "text-generation",
    "classifier": "text-classification",
    "masked": "fill-mask",
    "image": "image-classification",
}


def hub_name(path: str) -> str | None:
    """Where a stranger finds the model of ``model.path``; None if on no hub, such as a folder.

    Of a package it is the model that its file was made from.
    """
    kind, colon, name = path.partition(":")
    if colon:
        return PACKAGES[name].hub if kind == "package" and name in PACKAGES else None
    try:
        validate_repo_id(path)
    except HFValidationError:
        return None
    return None if Path(path).is_dir() else path


def pipeline_of(needs: Needs, config: Any) -> str:
    """What the hub calls the task of a model, which finds it the right class.

    Args:
        needs: what the objective works with.
        config: of the model, of transformers.
    """
    if needs.kind == "causal" and config.is_encoder_decoder:
        return "text2text-generation"
    return _PIPELINES[needs.kind]
