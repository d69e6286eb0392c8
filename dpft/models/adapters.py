"""Additions to a frozen model, by peft: LoRA, and prefix tuning.

LoRA (Hu et al. 2021) is a low-rank update of the frozen projections of attention. In prefix tuning
(Li & Liang 2021) keys and values before every record are trained: each attention layer sees
``length`` of them, that come out of a small network instead of a text. They belong to no record, so
every record has the same ones.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import (
    LoraConfig,
    PeftConfig,
    PeftModelForCausalLM,
    PrefixTuningConfig,
    TaskType,
    get_peft_model,
    load_peft_weights,
    set_peft_model_state_dict,
)
from torch import Tensor, nn
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


class PrefixModel(PeftModelForCausalLM):
    """A causal language model with a trained prefix; its inputs are those of the plain model.

    The prefix takes positions ``0 .. n - 1``, and token ``k`` of a record has position ``n + k``.

    Guarantee: with ``position_ids`` counted from the first real token, the logits of a record
    depend on that record alone. peft's own forward may count columns instead, which with padding on
    the left depend on the longest record of the batch.
    """

    @property
    def prefix_length(self) -> int:
        """Return the positions that the prefix takes, ``n``."""
        n: int = self.active_peft_config.num_virtual_tokens
        return n

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, **options: Any
    ) -> Any:
        """Return the plain model's output for ``(B, T)`` inputs behind the prefix."""
        rows, width = input_ids.shape
        self._room(width)
        return self.base_model(
            input_ids=input_ids,
            attention_mask=self._with_prefix(attention_mask, 1),
            position_ids=position_ids + self.prefix_length,
            past_key_values=self.get_prompt(rows),
            **options,
        )

    def generate(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor,
        max_new_tokens: int,
        num_beams: int = 1,
        **options: Any,
    ) -> Tensor:
        """Return prompts and what is written after them: ``(B, T + new)``."""
        rows, width = input_ids.shape
        room = self._room(width + 1)
        # A cache that is filled already replaces the first columns, whose ids are not read.
        # Positions are counted along the mask, so the prefix comes first and padding counts for
        # nothing.
        model: Any = self.base_model
        output: Tensor = model.generate(
            input_ids=self._with_prefix(input_ids, 0),
            attention_mask=self._with_prefix(attention_mask, 1),
            past_key_values=self.get_prompt(rows * num_beams),
            max_new_tokens=max_new_tokens if room is None else min(max_new_tokens, room + 1),
            num_beams=num_beams,
            **options,
        )
        return output[:, self.prefix_length :]

    def _room(self, width: int) -> int | None:
        """Return how many positions follow a text of ``width`` behind the prefix; None: no limit.

        Raises:
            ModelError: if there are not even positions for the text.
        """
        most: int | None = getattr(self.base_model.config, "max_position_embeddings", None)
        if most is None:
            return None
        if self.prefix_length + width > most:
            raise ModelError(
                f"{self.prefix_length} trained positions and a text of {width} tokens take "
                f"{self.prefix_length + width} positions; the model has {most}: type "
                f"task.max_length={most - self.prefix_length} or less, or a smaller adapt.length"
            )
        return most - self.prefix_length - width

    def _with_prefix(self, tensor: Tensor, value: int) -> Tensor:
        return torch.cat([tensor.new_full((len(tensor), self.prefix_length), value), tensor], dim=1)


def with_prefix(loaded: LoadedModel, settings: Adapt, needs: Needs, seed: int) -> LoadedModel:
    """Put the frozen model behind a trained prefix, whose network is drawn from ``seed``.

    Raises:
        ModelError: if it is not a causal language model, or one that takes no keys and values.
    """
    takes = inspect.signature(loaded.model.forward).parameters
    encoder = needs.kind != "causal" or loaded.model.config.is_encoder_decoder
    if encoder or "past_key_values" not in takes:
        raise ModelError(
            "adapt=prefix gives keys and values to a model that writes text and has no encoder; "
            f"{type(loaded.model).__name__} is none, or takes none: type adapt=lora"
        )
    assert settings.length is not None
    config = PrefixTuningConfig(
        task_type="CAUSAL_LM",
        num_virtual_tokens=settings.length,
        prefix_projection=settings.hidden is not None,
        encoder_hidden_size=settings.hidden,  # type: ignore[arg-type]
    )
    torch.manual_seed(seed)
    return loaded.wrapped(lambda model: PrefixModel(model, config))


def load_prefix(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """Put the model behind the keys and values that ``save_pretrained`` wrote to ``folder``."""
    config = PeftConfig.from_pretrained(str(folder), trust_remote_code=False)
    behind = loaded.wrapped(lambda model: PrefixModel(model, config))
    set_peft_model_state_dict(behind.model, load_peft_weights(str(folder), device="cpu"))
    return behind
