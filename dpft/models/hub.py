"""What others call a model, and whether one of that name can be loaded; torch is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from dpft.config.errors import ModelError
from dpft.config.offline import endpoint, is_downloaded, is_offline
from dpft.models.needs import Needs
from dpft.models.packaged import PACKAGES, find

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


def check_model(path: str) -> None:
    """Refuse a ``model.path`` whose files are on this machine nowhere, if no hub can be asked.

    Raises:
        ModelError: naming what to type.
    """
    kind, colon, name = path.partition(":")
    if kind == "package":
        find(name)
    elif colon or Path(path).is_dir() or path == "???":
        return
    elif is_place(path) or (is_offline() and not is_downloaded("models", path)):
        raise not_found(path, f"{endpoint()} does not answer, or HF_HUB_OFFLINE is set")


def is_place(path: str) -> bool:
    """Return whether a path is that of a folder, since no hub id is spelt so."""
    return path.startswith(("/", "~", ".")) or ".." in path or path.count("/") > 1


def not_found(path: str, why: str) -> ModelError:
    """Return the error of a folder that does not exist, or of a model of the hub, and why."""
    if is_place(path):
        return ModelError(
            f"model.path is {path!r}, and there is no such folder; expected a folder in "
            "save_pretrained form, or a hub id such as gpt2 or OWNER/NAME"
        )
    minilm, smollm2 = (PACKAGES[name].install for name in ("minilm", "smollm2"))
    return ModelError(
        f"hub model {path} could not be loaded ({why}), and there is no folder of that name here: "
        "go online once so that it is downloaded, type model.path=FOLDER if you have it in "
        "save_pretrained form, or choose a model that needs no hub: model=tiny is bundled, "
        f"model=minilm (classes) needs {minilm}, model=smollm2-135m (text) needs {smollm2}"
    )


def pipeline_of(needs: Needs, config: Any) -> str:
    """What the hub calls the task of a model, which finds it the right class.

    Args:
        needs: what the objective works with.
        config: of the model, of transformers.
    """
    if needs.kind == "causal" and config.is_encoder_decoder:
        return "text2text-generation"
    return _PIPELINES[needs.kind]
