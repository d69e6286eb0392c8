"""LoRA: a low-rank update of the frozen projections of attention (Hu et al. 2021)."""

from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from dpft.config.errors import ModelError, SettingError
from dpft.config.schema import Adapt
from dpft.models.load import LoadedModel
from dpft.models.needs import Needs
from dpft.models.trained_part import attention_modules, has_new_head, head_modules

# What families call the projections to queries and values; some have one for all three.
_PROJECTIONS = (
    ("c_attn",),
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("query_proj", "value_proj"),
    ("q_lin", "v_lin"),
    ("query_key_value",),
    ("qkv_proj",),  # Phi-3
    ("Wqkv",),  # MPT, ModernBERT
    ("q", "v"),  # T5
)


def with_lora(loaded: LoadedModel, settings: Adapt, needs: Needs, seed: int) -> LoadedModel:
    """Put peft's LoRA layers in place of the projections; all else is frozen.

    A new classification head is trained as a copy that peft keeps next to the frozen original.
    """
    model = loaded.model
    targets = list(settings.targets or targets_of(model))
    layers = _layers(model, targets, needs)
    assert settings.rank is not None
    assert settings.alpha is not None
    sizes = [  # a quantised weight has other ones
        (layer.in_features, layer.out_features)
        if isinstance(layer, nn.Linear)
        else tuple(layer.weight.shape)
        for layer in layers
    ]
    most = max(map(min, sizes))
    if settings.rank > most:
        raise SettingError("adapt.rank", settings.rank, f"at most {most}, the size of a layer")
    pair = needs.source and model.config.is_encoder_decoder
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout or 0.0,
        target_modules=targets,
        # Conv1D keeps its weight transposed.
        fan_in_fan_out=isinstance(layers[0], Conv1D),
        modules_to_save=list(head_modules(model, needs)) if has_new_head(needs) else None,
        # Which peft's loader of adapters asks for; of the others it is not said.
        task_type=TaskType.SEQ_2_SEQ_LM if pair else None,
    )
    torch.manual_seed(seed)
    adapted = loaded.wrapped(lambda model: get_peft_model(model, config))
    for parameter in adapted.model.parameters():
        if parameter.requires_grad and parameter.dtype == torch.bfloat16:  # a head of the base
            parameter.data = parameter.data.float()
    return adapted


def _layers(model: Any, targets: Sequence[str], needs: Needs) -> list[nn.Linear | Conv1D]:
    """Return the layers of these names; raise ModelError for a name of none, or the embedding."""
    head = tuple(f"{name}." for name in head_modules(model, needs)) if has_new_head(needs) else ()
    by_name: dict[str, list[nn.Linear | Conv1D]] = {}
    for name, module in model.named_modules():
        inside = bool(head) and f"{name}.".startswith(head)
        if isinstance(module, nn.Linear | Conv1D) and not inside:
            by_name.setdefault(name.split(".")[-1], []).append(module)
    table = getattr(model.get_input_embeddings(), "weight", None)
    for target in targets:
        if target not in by_name:
            raise ModelError(
                f"adapt.targets is {list(targets)}, and {type(model).__name__} has no linear layer "
                f"{target} outside a new head; expected names such as {', '.join(sorted(by_name))}"
            )
        if table is not None and any(layer.weight is table for layer in by_name[target]):
            raise ModelError(
                f"adapt.targets has {target}, whose weight is the input embedding too: an update "
                "of it, once merged, would change what the model reads. Type "
                f"model.tied=false, or leave {target} out"
            )
    return [layer for target in targets for layer in by_name[target]]


def targets_of(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the projections that LoRA adapts: queries and values (Hu et al.).

    In GPT-2 the matrix that holds these and the keys, with one update for all three, as in Li et
    al.'s code.
    """
    inside = {
        name.split(".")[-1]
        for module in attention_modules(model).values()
        for name, m in module.named_modules()
        if isinstance(m, nn.Linear | Conv1D)
    }
    for names in _PROJECTIONS:
        if inside.issuperset(names):
            return names
    raise ModelError(
        f"adapt=lora adapts attention, and that of {type(model).__name__} has the layers "
        f"{', '.join(sorted(inside)) or '(none)'}; expected known names of projections to queries "
        "or values: type adapt.targets=[NAME,...], or adapt=full"
    )
