"""Tasks whose answers are texts, written by a causal model, or by one with encoder and decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpft.config.errors import ConfigError, one_of
from dpft.models.needs import Needs
from dpft.tasks.base import Task
from dpft.tasks.metrics.perplexity import token_perplexity
from dpft.tasks.objectives.base import Prediction

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.causal import Causal


@dataclass(frozen=True)
class Generation(Task):
    """Settings that all of these tasks share."""

    max_length: int = 256
    loss: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task.loss", self.loss, ("mean", "sum"))

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
        """Settings of `Causal` on how a prompt is made and cut, where they are not its defaults."""
        return {}


def perplexity(predictions: Sequence[Prediction]) -> float | None:
    """See `token_perplexity`."""
    return token_perplexity([p.nll for p in predictions], [p.tokens for p in predictions])


def text_room(model: Any) -> int | None:
    """Tokens of a text that a model has positions for, behind a trained prefix; None: no limit.

    With encoder and decoder, tokens of either of the two texts.
    """
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    return None if positions is None else positions - _prefix_length(model)


def check_room(model: Any, max_length: int) -> None:
    """Refuse texts that may be longer than the model has positions for.

    Raises:
        ConfigError: naming the largest ``task.max_length``.
    """
    room, prefix = text_room(model), _prefix_length(model)
    if room is not None and max_length > room:
        behind = f" behind {prefix} trained positions" if prefix else ""
        smaller = ", or a smaller adapt.length" if prefix else ""
        raise ConfigError(
            f"task.max_length is {max_length}, but the model has positions for {room} tokens"
            f"{behind}; type task.max_length={room}{smaller}"
        )


def _prefix_length(model: Any) -> int:
    length: int = getattr(model, "prefix_length", 0)
    return length
