"""Tasks whose answers are texts, written by a causal model, or by one with encoder and decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpft.config.errors import ConfigError
from dpft.models.needs import Needs
from dpft.tasks.base import Task
from dpft.tasks.metrics.scorers import token_perplexity
from dpft.tasks.objectives.base import Prediction

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.causal import Causal


@dataclass(frozen=True)
class Generation(Task):
    """The settings that all of these tasks share."""

    max_length: int = 256
    loss: Literal["mean", "sum"] = "mean"

    @property
    def needs(self) -> Needs:
        return Needs("causal", source=True)

    def objective(self, loaded: LoadedModel) -> Causal:
        check_room(loaded.model, self.max_length)
        how = (loaded.text_tokenizer, self.max_length, self.loss)
        config = loaded.model.config
        if getattr(config, "is_encoder_decoder", False):
            from dpft.tasks.objectives.encoder_decoder import EncoderDecoder

            start: int = config.decoder_start_token_id
            return EncoderDecoder(*how, **self.prompt_settings, start=start)
        from dpft.tasks.objectives.causal import Causal

        return Causal(*how, **self.prompt_settings, positions=text_room(loaded.model))

    @property
    def prompt_settings(self) -> Mapping[str, Any]:
        """Return settings of `Causal` on how a prompt is made and cut."""
        return {}


def perplexity(predictions: Sequence[Prediction]) -> float | None:
    """Return the `token_perplexity` of predictions."""
    return token_perplexity([p.nll for p in predictions], [p.tokens for p in predictions])


def text_room(model: Any) -> int | None:
    """Return the tokens that a model has positions for, behind a prefix; None: no limit.

    With encoder and decoder, it is the limit of either text.
    """
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    return None if positions is None else positions - getattr(model, "prefix_length", 0)


def check_room(model: Any, max_length: int) -> None:
    """Raise ConfigError if texts may be longer than the model has positions for."""
    room, prefix = text_room(model), getattr(model, "prefix_length", 0)
    if room is not None and max_length > room:
        smaller = f", or an adapt.length below {prefix}" if prefix else ""
        raise ConfigError(
            f"task.max_length is {max_length}, but the model has positions for {room} tokens; type "
            f"task.max_length={room}{smaller}"
        )
