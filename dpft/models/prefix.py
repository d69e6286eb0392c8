"""Prefix tuning: trained keys and values before every record (Li & Liang 2021).

The model is frozen. Each of its attention layers sees ``length`` keys and values that come out of
a small network instead of a text. They belong to no record, so every record has the same ones.
"""

import inspect
from pathlib import Path
from typing import Any

import torch
from peft import (
    PeftConfig,
    PeftModelForCausalLM,
    PrefixTuningConfig,
    load_peft_weights,
    set_peft_model_state_dict,
)
from torch import Tensor

from dpft.config.errors import ModelError
from dpft.config.schema import Adapt
from dpft.models.load import LoadedModel
from dpft.models.needs import Needs


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
        ModelError: if it is not a causal language model, or one that takes no keys and values, or
            if it has no positions for the prefix and for a text.
    """
    takes = inspect.signature(loaded.model.forward).parameters
    encoder = needs.kind != "causal" or loaded.model.config.is_encoder_decoder
    if encoder or "past_key_values" not in takes:
        raise ModelError(
            "adapt=prefix gives keys and values to a model that writes text and has no encoder; "
            f"{type(loaded.model).__name__} is none, or takes none: type adapt=lora"
        )
    assert settings.length is not None
    positions: int | None = getattr(loaded.model.config, "max_position_embeddings", None)
    if positions is not None and settings.length + 2 > positions:
        raise ModelError(
            f"adapt.length is {settings.length}, and the model has {positions} positions for both "
            "what is trained and a text; type a smaller adapt.length"
        )
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
