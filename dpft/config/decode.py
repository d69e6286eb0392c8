"""How texts are written: beam search or sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from dpft.config.checks import Bounds, Count, Effect
from dpft.config.errors import ConfigError


@dataclass(frozen=True)
class Decode:
    """``conf/decode``: beam search or sampling.

    Attributes:
        beams: how many texts are kept at each step; 1 is greedy search, or sampling.
        sample: whether tokens are drawn.
        top_p: of sampling: only the likeliest tokens that have this probability together.
        max_new_tokens: where a text is stopped.
        length_penalty: of beam search: a text's log-probability is divided by its length to the
            power of this.
        batch_size: prompts that are answered together.
        split: whose prompts.
    """

    beams: Count = 5
    sample: bool = False
    top_p: Annotated[float, Bounds(above=0, most=1)] = 1.0
    max_new_tokens: Count = 100
    length_penalty: float = 1.0
    batch_size: Count = 32
    split: Annotated[Literal["dev", "test"], Effect.REPETITION] = "test"

    def check(self, usual: Decode | None = None) -> None:
        """Refuse what has no effect, and beams that sample.

        Not when it is made: runs of earlier versions have such settings, and can be read.

        Args:
            usual: what stands there was not typed, and is not refused; None: all was.

        Raises:
            ConfigError: for the first setting without effect.
        """

        def typed(*names: str) -> bool:
            return usual is None or any(getattr(self, n) != getattr(usual, n) for n in names)

        if self.sample and self.beams > 1 and typed("beams", "sample"):
            raise ConfigError(
                f"decode.beams is {self.beams} with decode.sample=true, which would be neither "
                "beam search nor texts as the model has them; expected one beam: type "
                "decode.beams=1, or decode.sample=false"
            )
        if not self.sample and self.top_p != 1 and typed("top_p"):
            raise ConfigError(
                f"decode.top_p is {self.top_p}, which has no effect on decode.sample=false; type "
                "decode.sample=true decode.beams=1, or decode.top_p=1"
            )
        if self.beams == 1 and self.length_penalty != 1 and typed("length_penalty"):
            raise ConfigError(
                f"decode.length_penalty is {self.length_penalty}, which has no effect on "
                "decode.beams=1; type decode.beams=5, or decode.length_penalty=1"
            )
