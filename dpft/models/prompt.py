"""Prompt tuning: trained embeddings before every record (Lester et al. 2021).

The model is frozen and reads ``length`` vectors where a text begins, as if they were the
embeddings of words. In P-tuning (Liu et al. 2021) they come out of a small network.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from peft import PromptEncoderConfig, PromptTuningConfig, PromptTuningInit
from torch import Tensor

from dpft.config.adapt import Adapt
from dpft.config.errors import ModelError
from dpft.models.load import LoadedModel
from dpft.models.needs import Needs
from dpft.models.virtual_tokens import VirtualTokensModel, with_virtual_tokens

_NOT_OF = {
    "classifier": "it reads the class off the first position, which would be the prompt's",
    "masked": "peft has no prompts for those that fill in words",
    "image": "an image has no words",
}


class PromptModel(VirtualTokensModel):
    """A causal language model with a trained prompt; see `VirtualTokensModel`.

    The prompt stands right before a record's first token, behind the padding, so that its distance
    does not depend on the batch: models with a window, or with a state, count columns.
    """

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, **options: Any
    ) -> Any:
        """The plain model's output for ``(B, T)`` inputs, without logits of the prompt.

        Args:
            input_ids: ``(B, T)``.
            attention_mask: ``(B, T)``, zero at padding.
            position_ids: ``(B, T)``, counted from each record's first token.
            options: for the plain model.

        Raises:
            ModelError: if prompt and text are longer than the model reads.
        """
        rows, width = input_ids.shape
        self._check_room(width)
        prompt = self.prefix_length
        columns = self._columns(attention_mask)
        own = torch.arange(prompt, device=position_ids.device).expand(rows, -1)
        output = self.base_model(
            inputs_embeds=self._embedded(input_ids, columns),
            attention_mask=_arranged(columns, torch.ones_like(own), attention_mask),
            position_ids=_arranged(columns, own, position_ids + prompt),
            **options,
        )
        output.logits = output.logits[:, -width:]
        return output

    def generate(
        self, *, input_ids: Tensor, attention_mask: Tensor, max_new_tokens: int, **options: Any
    ) -> Tensor:
        """Prompts and what is written after them, as of the plain model: ``(B, T + new)``."""
        columns = self._columns(attention_mask)
        ids = input_ids.new_zeros(len(input_ids), self.prefix_length)  # of which none is read
        model: Any = self.base_model
        output: Tensor = model.generate(
            input_ids=_arranged(columns, ids, input_ids),
            inputs_embeds=self._embedded(input_ids, columns),
            attention_mask=_arranged(columns, torch.ones_like(ids), attention_mask),
            max_new_tokens=self._fitting(input_ids.shape[1], max_new_tokens),
            **options,
        )
        return torch.cat([input_ids, output[:, columns.shape[1] :]], dim=1)

    def _columns(self, attention_mask: Tensor) -> Tensor:
        """For each of ``n + T`` columns, which of prompt and text beside each other it takes.

        Returns:
            ``(B, n + T)``: what is below ``n`` is of the prompt.
        """
        n = self.prefix_length
        padding = (attention_mask.cumsum(1) == 0).sum(1, keepdim=True)
        column = torch.arange(n + attention_mask.shape[1], device=attention_mask.device)
        place = column - padding
        return torch.where(place < 0, n + column, torch.where(place < n, place, column))

    def _embedded(self, input_ids: Tensor, columns: Tensor) -> Tensor:
        model: Any = self.base_model
        words: Tensor = model.get_input_embeddings()(input_ids)
        return _arranged(columns, self.get_prompt(len(input_ids)).to(words), words)


def _arranged(columns: Tensor, prompt: Tensor, text: Tensor) -> Tensor:
    """Of ``(B, n, ...)`` and ``(B, T, ...)``, what ``columns`` say: ``(B, n + T, ...)``."""
    both = torch.cat([prompt, text], dim=1)
    index = columns if both.dim() == 2 else columns[..., None].expand(-1, -1, both.shape[-1])
    return both.gather(1, index)


def with_prompt(loaded: LoadedModel, settings: Adapt, needs: Needs, seed: int) -> LoadedModel:
    """The frozen model behind a trained prompt.

    The prompt begins as embeddings of words drawn from the vocabulary, or of a network.

    Raises:
        ModelError: if it is not a causal language model, or one that takes no embeddings.
    """
    name = type(loaded.model).__name__
    if needs.kind != "causal":
        raise ModelError(
            f"adapt=prompt is for models that write text, and this task needs one of kind "
            f"{needs.kind}: {_NOT_OF[needs.kind]}; type adapt=lora"
        )
    if loaded.model.config.is_encoder_decoder:
        raise ModelError(
            f"adapt=prompt puts a prompt before the text of a causal model, and {name} has an "
            "encoder and a decoder; type adapt=lora"
        )
    if "inputs_embeds" not in inspect.signature(loaded.model.forward).parameters:
        raise ModelError(
            f"adapt=prompt gives a model embeddings, and {name} takes none; type adapt=lora"
        )
    assert settings.length is not None
    config: PromptTuningConfig | PromptEncoderConfig
    if settings.hidden is None:
        config = PromptTuningConfig(
            task_type="CAUSAL_LM",
            num_virtual_tokens=settings.length,
            prompt_tuning_init=PromptTuningInit.SAMPLE_VOCAB,
        )
    else:
        config = PromptEncoderConfig(
            task_type="CAUSAL_LM",
            num_virtual_tokens=settings.length,
            encoder_hidden_size=settings.hidden,
        )
    return with_virtual_tokens(loaded, PromptModel, config, seed)
