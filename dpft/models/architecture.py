"""The architecture of a model: its kind, its head, and what settings change of it.

A run that is trained and one that is only planned are made by the same functions.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from dpft.config.errors import ModelError
from dpft.config.schema import Model
from dpft.models.needs import Needs

DROPOUTS = (
    *("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout_prob"),
    *("attention_probs_dropout_prob", "classifier_dropout", "seq_classif_dropout", "dropout"),
    *("dropout_rate", "hidden_dropout", "activation_dropout", "embedding_dropout"),
)
# Of whole layers, and of their branches.
LAYERDROPS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "drop_path_rate")


# How much the mean outweighs the token's own vector, which the block adds to it.
_MEAN = 1000.0


class ModelKind(NamedTuple):
    """A kind of `Needs`: its name, class of transformers, an example, and tokens that it needs."""

    name: str
    auto: Any
    example: str
    tokens: tuple[str, ...] = ()


_MASKED = ("mask", "pad", "cls", "sep")
KINDS: Mapping[str, ModelKind] = {
    "causal": ModelKind("causal language model", AutoModelForCausalLM, "gpt2", ("eos",)),
    "classifier": ModelKind(
        "text encoder", AutoModelForSequenceClassification, "roberta-base", ("pad",)
    ),
    "masked": ModelKind("masked language model", AutoModelForMaskedLM, "roberta-base", _MASKED),
    "image": ModelKind("model of images", AutoModelForImageClassification, "vit-base"),
}
ENCODER_DECODER = ModelKind(
    "model with encoder and decoder", AutoModelForSeq2SeqLM, "t5-small", ("eos", "pad")
)


def kind_of(settings: Model, needs: Needs, config: Any) -> ModelKind:
    """Return what the model is, of the kinds that the task can do with.

    Encoders count as such even where transformers also has a decoder of them, and models with both
    even where it can take the decoder alone.
    """
    kind = KINDS[needs.kind]
    both = config.is_encoder_decoder and type(config) in AutoModelForSeq2SeqLM._model_mapping
    if needs.source and both:
        if getattr(config, "decoder_start_token_id", None) is None:
            raise ModelError(
                f"the config.json of {settings.path} has no decoder_start_token_id; expected "
                "that of pretraining, such as that of the padding for T5"
            )
        return ENCODER_DECODER
    encoder = type(config) in AutoModelForMaskedLM._model_mapping
    fits = type(config) in kind.auto._model_mapping
    if needs.kind in ("causal", "classifier"):
        fits = fits and encoder == (needs.kind == "classifier")
        # Bart's classifier fails on a batch whose records have different numbers of end tokens.
        fits = fits and not both
    if not fits:
        name, example = kind.name, f"model={kind.example}"
        if needs.source:
            name += f" or {ENCODER_DECODER.name}"
            example += f" or model={ENCODER_DECODER.example}"
        raise ModelError(
            f"model {settings.name} ({config.model_type}) is no {name}, which this task "
            f"needs; expected one such as {example}"
        )
    return kind


def positions(kind: ModelKind, config: Any) -> int | None:
    """Return the tokens of a text that a model of this kind has positions for; None: no limit."""
    if kind not in (KINDS["classifier"], KINDS["masked"]):
        return cast("int | None", getattr(config, "max_position_embeddings", None))
    with torch.device("meta"):
        modules = kind.auto.from_config(config, trust_remote_code=False).named_modules()
    for name, module in modules:
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa's positions begin after that of the padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    return None


def suit(config: Any, needs: Needs, dropout: float | None) -> None:
    """Give a configuration the task's classes, and all its dropouts one rate, in place.

    None keeps the model's own rates. At 0 whole layers are not dropped either.
    """
    if needs.classes:
        config.num_labels = len(needs.classes)
        config.id2label = dict(enumerate(needs.classes))
        config.label2id = {name: i for i, name in enumerate(needs.classes)}
        # By that of the base, others would give the new classes sigmoids or bare logits.
        config.problem_type = "single_label_classification"
    for name in (*DROPOUTS, *(LAYERDROPS if dropout == 0 else ())):
        if dropout is not None and hasattr(config, name):
            setattr(config, name, dropout)


def draw(auto: Any, config: Any) -> PreTrainedModel:
    """Make a model in float32 with drawn weights, and a copy of the configuration."""
    model: PreTrainedModel = auto.from_config(
        copy.deepcopy(config), dtype=torch.float32, trust_remote_code=False
    )
    return model


def without_weights(auto: Any, config: Any) -> PreTrainedModel | None:
    """Make a model whose parameters and buffers have room, and no values yet.

    Room that nothing was written to takes no memory: a process that is to hold a part of a model
    never holds more of it.

    Returns:
        None for a model that keeps tensors elsewhere, which no other process would send.
    """
    with torch.device("meta"):
        model: PreTrainedModel = auto.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    if any(
        isinstance(value, Tensor) and value.is_meta
        for module in model.modules()
        for value in vars(module).values()
    ):
        return None
    roomy: dict[int, Any] = {}  # by the tensor that it replaces: tied parameters stay one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                room = torch.empty_like(parameter, device="cpu")
                fresh = nn.Parameter(room, requires_grad=parameter.requires_grad)
                module._parameters[name] = roomy.setdefault(id(parameter), fresh)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                room = torch.empty_like(buffer, device="cpu")
                module._buffers[name] = roomy.setdefault(id(buffer), room)
    return model


def finish(model: PreTrainedModel, settings: Model, needs: Needs) -> None:
    """Tie or untie, pool, checkpoint and round as the settings say, in place.

    Raises:
        ModelError: if the model cannot be changed so.
    """
    _tie(model, settings, needs)
    if settings.pooling == "mean":
        pool_mean(model, settings.name)
    if settings.checkpointing:
        checkpoint(model, settings.name)
    if settings.dtype != "float32":
        # Buffers, such as rotary frequencies, stay as they are.
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()


def checkpoint(model: PreTrainedModel, name: str) -> None:
    """Have each block's activations computed again in the backward, rather than kept.

    Not by reentrant checkpoints: they run a block in a separate backward, where nothing is
    captured.
    """
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"model.checkpointing=true, but model {name} ({type(model).__name__}) has no blocks "
            "that transformers can checkpoint; type model.checkpointing=false"
        )
    model.activation_checkpointing_enable({"use_reentrant": False})


def _tie(model: PreTrainedModel, settings: Model, needs: Needs) -> None:
    """Tie or untie as ``model.tied`` says."""
    if settings.tied is not None and needs.classes:
        raise ModelError(
            f"model.tied={str(settings.tied).lower()}, but a classifier has no output embedding "
            "that could be tied; type model.tied=null"
        )
    if settings.tied is False and is_tied(model) and model.config.is_encoder_decoder:
        raise ModelError(
            f"model.tied=false, but encoder, decoder and head of {type(model).__name__} share one "
            "table, which transformers reads from files for all of them or for none; type "
            "model.tied=null"
        )
    if settings.tied is False:
        if is_tied(model):
            head: Any = model.get_output_embeddings()
            head.weight = nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False
    if settings.tied is True and not is_tied(model):
        raise ModelError(f"model.tied=true, but {settings.path} has separate head and embedding")
    if model.config.is_encoder_decoder and not is_tied(model):
        # For later T5s transformers 5 says the contrary, by which earlier versions would go.
        model.config.tie_word_embeddings = False
    if needs.kind == "masked" and not is_tied(model):
        # transformers registers a bias of an untied head that is trained on noise alone.
        raise ModelError(
            f"model {settings.name} has a head apart from its embedding, and fills in words; "
            "expected one whose head is its embedding: type model.tied=null, or another model"
        )


@torch.no_grad()
def draw_head(model: PreTrainedModel, auto: Any, config: Any) -> None:
    """Draw all layers of a head that was not of these classes, as those of a model drawn whole."""
    drawn = auto.from_config(config, dtype=torch.float32, trust_remote_code=False).state_dict()
    for name, weight in model.state_dict().items():
        if of_classes(model, name):
            weight.copy_(drawn[name])


def of_classes(model: PreTrainedModel, name: str) -> bool:
    """Return whether a parameter is in the head proper, whose outputs are classes."""
    return in_head(model, name) and ".pooler." not in name


def in_head(model: PreTrainedModel, name: str) -> bool:
    """Return whether a parameter comes after the encoder; a pooler counts as part of the head."""
    base = model.base_model_prefix
    if not base or not hasattr(model, base):
        return name.split(".")[0] in ("classifier", "head")
    return not name.startswith(f"{base}.") or name.startswith(f"{base}.pooler.")


def is_tied(model: PreTrainedModel) -> bool:
    """Return whether the output head and the input embedding are one parameter."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


@torch.no_grad()
def pool_mean(model: PreTrainedModel, name: str) -> None:
    """Have a classifier read ``tanh`` of the normalised mean over all tokens, in place.

    `BertForSequenceClassification` reads the first token. A further block makes it the mean of
    sentence-transformers (special tokens count, padding does not): its queries and keys are zero,
    so that it attends to all tokens evenly. What a run saves is an ordinary model with one more
    block. Nothing of what is added is trained.

    Raises:
        ModelError: if it is no BERT with its pooler.
    """
    body: Any = getattr(model, "bert", None)
    if getattr(body, "pooler", None) is None:
        raise ModelError(
            f"model.pooling=mean, but model {name} is a {type(model).__name__}; expected a BERT "
            "with a new head: type model.pooling=null"
        )
    block = copy.deepcopy(body.encoder.layer[-1])
    attention, outer = block.attention, block.output
    for parameter in block.parameters():
        parameter.zero_()
    torch.nn.init.eye_(attention.self.value.weight)
    torch.nn.init.eye_(attention.output.dense.weight).mul_(_MEAN)
    for norm in (attention.output.LayerNorm, outer.LayerNorm):
        norm.weight.fill_(1)
    torch.nn.init.eye_(body.pooler.dense.weight)
    body.pooler.dense.bias.zero_()
    block.requires_grad_(False)
    body.pooler.requires_grad_(False)
    body.encoder.layer.append(block)
    model.config.num_hidden_layers += 1


@dataclass(frozen=True)
class ImageInput:
    """The images of a model; its mean and deviation are no statistics of the training images."""

    size: int  # pixels a side
    mean: tuple[float, ...]  # subtracted from each channel of values between 0 and 1
    std: tuple[float, ...]  # divides each channel after that
    patch: int  # pixels a side of what one position of the model reads


def image_input(config: Any, preprocessor: Mapping[str, Any], name: str) -> ImageInput:
    """Read ``config`` and ``preprocessor_config.json``; what neither says is 0.5, as of ViT.

    Mean and deviation are noted in ``config``, so that a saved model keeps them.

    Raises:
        ModelError: if there is no size, or images are not square.
    """
    channels = getattr(config, "num_channels", 3)
    plain = preprocessor.get("do_normalize", True) is False
    found = {}
    for key, without in (("image_mean", 0.0), ("image_std", 1.0)):
        value = getattr(config, key, None)
        if value is None:
            value = without if plain else preprocessor.get(key, 0.5)
        numbers = tuple(value) if isinstance(value, Iterable) else (value,) * channels
        found[key] = tuple(float(number) for number in numbers)
        setattr(config, key, list(found[key]))
    size = _side(getattr(config, "image_size", None), name)
    patch = getattr(config, "patch_size", None)
    return ImageInput(
        size, found["image_mean"], found["image_std"], size if patch is None else _side(patch, name)
    )


def _side(value: Any, name: str) -> int:
    sides = set(value) if isinstance(value, Iterable) else {value}
    if len(sides) != 1 or not isinstance(side := sides.pop(), int):
        raise ModelError(
            f"the config of {name} gives {value!r} as a size of images or patches; expected one "
            "number, for squares: type model.path=FOLDER of another model of images"
        )
    return side
