"""Load a model and its tokenizer: bundled, from a folder, or from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils.logging import disable_progress_bar

from dpft.config import Model
from dpft.errors import ModelError

# Its bars for loading and writing a few files would break into those of the run.
disable_progress_bar()

BUNDLED = Path(__file__).resolve().parent
_PREFIX = "bundled:"
_WORDS = {
    "causal": "causal language model",
    "classifier": "text encoder",
    "masked": "masked language model",
    "image": "model of images",
}
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout_prob")


@dataclass(frozen=True)
class Needs:
    """The kind of model that a task's objective works with.

    Attributes:
        kind: ``causal`` (writes text), ``classifier`` (of text), ``masked`` (fills in words) or
            ``image`` (classifier of images).
        classes: names of the classes of a classifier.
    """

    kind: str
    classes: tuple[str, ...] = ()


# What transformers calls each kind, and which models are of it.
_KINDS: Mapping[str, tuple[type, Mapping[str, Any], str]] = MappingProxyType(
    {
        "causal": (AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "gpt2"),
        "classifier": (
            AutoModelForSequenceClassification,
            MODEL_FOR_MASKED_LM_MAPPING_NAMES,
            "roberta-base",
        ),
        "masked": (AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING_NAMES, "roberta-base"),
        "image": (
            AutoModelForImageClassification,
            MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
            "vit-base",
        ),
    }
)


class Reparametrisation(Protocol):
    """Gradients, norms and noise are of carrier parameters; what they carry moves others."""

    def moved(self) -> Mapping[str, nn.Parameter]:
        """The parameters that the optimizer moves and a checkpoint keeps, by name."""
        ...

    def begin(self, step: int) -> None:
        """Before the forward of a step: derive the carriers from the moved parameters.

        They are a function of those and of ``step`` alone, so that a resumed run repeats them.
        """
        ...

    def transfer(self) -> None:
        """After noise was added: turn the carriers' ``.grad`` into that of the moved ones."""
        ...


@dataclass(frozen=True)
class LoadedModel:
    """A model in float32, its tokenizer, and the words that its numbers must carry.

    Attributes:
        model: the model.
        tokenizer: its tokenizer; None for a model of images.
        labels: what every number of it must say, such as "random initialisation".
        reparametrisation: where gradients are taken of other parameters than those that move.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    labels: tuple[str, ...]
    reparametrisation: Reparametrisation | None = None

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of a model of text."""
        if self.tokenizer is None:
            raise ModelError("the model has no tokenizer; expected a model of text")
        return self.tokenizer


def load_model(settings: Model, needs: Needs, seed: int) -> LoadedModel:
    """Load or build the model of ``conf/model``.

    Args:
        settings: ``path`` is a hub id, a folder, or ``bundled:NAME``; ``init=scratch`` keeps the
            architecture and draws new weights; ``tied=False`` gives the output head a copy of the
            input embedding as a parameter of its own, as in the published GPT-2 runs.
        needs: what the task's objective works with.
        seed: for drawn weights, a new head's among them.

    Raises:
        ModelError: if the model cannot be had, is of another kind, or tokenizer and model do not
            fit.
    """
    location = _location(settings)
    config = _from_hub(AutoConfig.from_pretrained, settings, location)
    auto = _auto_class(settings, needs, config.model_type)
    if needs.classes:
        config.num_labels = len(needs.classes)
        config.id2label = dict(enumerate(needs.classes))
        config.label2id = {name: i for i, name in enumerate(needs.classes)}
    for name in _DROPOUTS:
        if settings.dropout is not None and hasattr(config, name):
            setattr(config, name, settings.dropout)
    torch.manual_seed(seed)
    if settings.init == "scratch":
        model = auto.from_config(config, dtype=torch.float32)
    else:
        # Transformers would else take the type that the file was saved in.
        model = _from_hub(
            auto.from_pretrained, settings, location, config=config, dtype=torch.float32
        )
    tokenizer = None
    if needs.kind != "image":
        tokenizer = load_tokenizer(settings, needs)
        rows = model.get_input_embeddings().num_embeddings
        if len(tokenizer) > rows:
            raise ModelError(
                f"the tokenizer of {settings.path} has {len(tokenizer)} tokens for {rows} "
                "embeddings; expected at most as many"
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


def save_model(loaded: LoadedModel, folder: Path) -> None:
    """Write model and tokenizer in ``save_pretrained`` form."""
    loaded.model.save_pretrained(folder)
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(folder)


def load_tokenizer(settings: Model, needs: Needs) -> PreTrainedTokenizerBase:
    """The model's tokenizer, checked to have the special tokens that the kind of model needs."""
    tokenizer: PreTrainedTokenizerBase = _from_hub(
        AutoTokenizer.from_pretrained, settings, _location(settings)
    )
    required = {"causal": ("eos",), "masked": ("mask", "pad"), "classifier": ("pad",)}
    for name in required[needs.kind]:
        if getattr(tokenizer, f"{name}_token_id") is None:
            raise ModelError(f"the tokenizer of {settings.path} has no {name} token; expected one")
    return tokenizer


def _auto_class(settings: Model, needs: Needs, model_type: str) -> Any:
    """The class that loads a model of the needed kind.

    Encoders count as such even where transformers also has a decoder of them.
    """
    auto, models, example = _KINDS[needs.kind]
    encoder = model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if model_type not in models or (needs.kind == "causal" and encoder):
        raise ModelError(
            f"model {settings.name} ({model_type}) is no {_WORDS[needs.kind]}, which this task "
            f"needs; expected one such as model={example}"
        )
    return auto


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
