"""Load a causal language model and its tokenizer: bundled, from a folder, or from the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from dpft.config import Model
from dpft.errors import ModelError

# Its bars for loading and writing a few files would break into those of the run.
disable_progress_bar()

BUNDLED = Path(__file__).resolve().parent
_PREFIX = "bundled:"
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout_prob")


@dataclass(frozen=True)
class LoadedModel:
    """A model in float32, its tokenizer, and the words that its numbers must carry."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    labels: tuple[str, ...]


def load_tokenizer(settings: Model) -> PreTrainedTokenizerBase:
    """The model's tokenizer, checked to have an end token."""
    tokenizer: PreTrainedTokenizerBase = _from_hub(
        AutoTokenizer.from_pretrained, settings, _location(settings)
    )
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {settings.path} has no end token; expected one")
    return tokenizer


def load_model(settings: Model, seed: int) -> LoadedModel:
    """Load or build the model of ``conf/model``.

    Args:
        settings: ``path`` is a hub id, a folder, or ``bundled:NAME``; ``init=scratch`` keeps the
            architecture and draws new weights; ``tied=False`` gives the output head a copy of the
            input embedding as a parameter of its own, as in the published GPT-2 runs.
        seed: for drawn weights.

    Raises:
        ModelError: if the model cannot be had, or tokenizer and model do not fit.
    """
    location = _location(settings)
    tokenizer = load_tokenizer(settings)
    config = _from_hub(AutoConfig.from_pretrained, settings, location)
    for name in _DROPOUTS:
        if settings.dropout is not None and hasattr(config, name):
            setattr(config, name, settings.dropout)
    if settings.init == "scratch":
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    else:
        # Transformers would else take the type that the file was saved in.
        model = _from_hub(
            AutoModelForCausalLM.from_pretrained,
            settings,
            location,
            config=config,
            dtype=torch.float32,
        )
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer of {settings.path} has {len(tokenizer)} tokens for {rows} embeddings; "
            "expected at most as many"
        )
    if settings.tied is False:
        untie(model)
    if settings.tied is True and not is_tied(model):
        raise ModelError(f"model.tied=true, but {settings.path} has separate head and embedding")
    labels = []
    if settings.path.startswith(_PREFIX):
        labels.append(f"bundled {settings.name} model")
    if settings.init == "scratch":
        labels.append("random initialisation")
    return LoadedModel(model, tokenizer, tuple(labels))


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the output head and the input embedding are one parameter."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def untie(model: PreTrainedModel) -> None:
    """Make the head a parameter of its own, equal to the embedding at first."""
    if is_tied(model):
        head: Any = model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False


def _location(settings: Model) -> str:
    if not settings.path.startswith(_PREFIX):
        return settings.path
    folder = BUNDLED / settings.path.removeprefix(_PREFIX)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"no bundled model {settings.path!r}: {folder} is not there; expected "
            f"{_PREFIX}tiny, a folder, or a hub id"
        )
    return str(folder)


def _from_hub(load: Any, settings: Model, location: str, **options: Any) -> Any:
    try:
        return load(location, **options)
    except (OSError, ValueError) as error:
        place = "folder" if Path(location).is_dir() else "hub model"
        raise ModelError(
            f"{place} {location} could not be loaded ({type(error).__name__}): go online once so "
            "that it is downloaded, type model.path=FOLDER if you have it in save_pretrained form, "
            "or model=tiny for the bundled model"
        ) from error
