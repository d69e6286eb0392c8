"""Virtual tokens: trained positions before every record, behind which a frozen model reads it.

They belong to no record, so every record has the same ones.
"""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftConfig, PeftModelForCausalLM, load_peft_weights, set_peft_model_state_dict

from dpft.config.errors import ModelError
from dpft.models.load import LoadedModel
from dpft.models.wrap import wrapped


class VirtualTokensModel(PeftModelForCausalLM):
    """A causal language model with virtual tokens; its inputs are those of the plain model.

    They take positions ``0 .. n - 1``, and token ``k`` of a record has position ``n + k``, however
    much padding stands before it.

    Guarantee: with ``position_ids`` counted from the first real token, the logits of a record
    depend on that record alone. Some versions of peft drop ``position_ids`` in their own forward
    and count columns, which with padding on the left depend on the longest record of the batch.
    """

    @property
    def prefix_length(self) -> int:
        """Positions that the virtual tokens take, ``n``."""
        n: int = self.active_peft_config.num_virtual_tokens
        return n

    def _check_room(self, width: int) -> int | None:
        most: int | None = getattr(self.base_model.config, "max_position_embeddings", None)
        if most is not None and self.prefix_length + width > most:
            raise ModelError(
                f"{self.prefix_length} trained positions and a text of {width} tokens take "
                f"{self.prefix_length + width} positions; the model has {most}: type "
                f"task.max_length={most - self.prefix_length} or less, or a smaller adapt.length"
            )
        return most

    def _fitting(self, width: int, new: int) -> int:
        """How many of ``new`` tokens there are positions for behind a text of ``width``."""
        most = self._check_room(width + 1)
        return new if most is None else min(new, most - self.prefix_length - width)


def with_virtual_tokens(
    loaded: LoadedModel, kind: type[VirtualTokensModel], config: PeftConfig, seed: int
) -> LoadedModel:
    """The frozen model behind virtual tokens that are drawn from ``seed``.

    Raises:
        ModelError: if the model has no positions for them and for a text.
    """
    length: int = config.num_virtual_tokens  # type: ignore[attr-defined]
    positions: int | None = getattr(loaded.model.config, "max_position_embeddings", None)
    if positions is not None and length + 2 > positions:
        raise ModelError(
            f"adapt.length is {length}, and the model has {positions} positions for both what is "
            "trained and a text; type a smaller adapt.length"
        )
    torch.manual_seed(seed)
    return wrapped(loaded, lambda model: kind(model, config))


def load_virtual_tokens(
    loaded: LoadedModel, kind: type[VirtualTokensModel], folder: Path
) -> LoadedModel:
    """The model behind the virtual tokens that ``save_pretrained`` wrote to ``folder``.

    What is saved is what the model reads; a network that it came from is gone.
    """
    config = PeftConfig.from_pretrained(str(folder), trust_remote_code=False)
    behind = wrapped(loaded, lambda model: kind(model, config))
    set_peft_model_state_dict(behind.model, load_peft_weights(str(folder), device="cpu"))
    return behind
