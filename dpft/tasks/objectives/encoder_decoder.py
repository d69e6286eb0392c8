"""Conditional generation with an encoder and a decoder (T5, BART): the loss is on the target.

The encoder reads the source, the decoder the target as far as it is written. Padding is on the
right of both: BART counts positions from the first column, and what comes later no position of a
decoder sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from dpft.privacy.shapes import padded
from dpft.privacy.token_losses import token_losses
from dpft.tasks.objectives.causal import Causal, CausalExample
from dpft.tasks.objectives.objective import Batch
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.objectives.tokens import around, pad


@dataclass(frozen=True)
class EncoderDecoder(Causal):
    """Write the target, given the source.

    A source is ``before``, the segments and ``after``, with the tokens around it that the tokenizer
    puts around a text (``text </s>`` for T5, ``<s> text </s>`` for BART). With ``ends`` the end
    token comes between segments. A target has the tokens around it that the tokenizer puts around
    one; all are written but for ``start``. ``max_length`` is of source and target together.
    """

    start: int = 0

    def collate(
        self, examples: Sequence[CausalExample], widths: Sequence[int] | None = None
    ) -> Batch:
        """Pad sources and targets on the right.

        Returns:
            ``input_ids``, ``attention_mask``: ``(B, S)``; ``decoder_input_ids``, ``targets``:
            ``(B, K)``, the latter with -100 where a record has no target.
        """
        _, sources, longest = widths or (
            0,
            max(len(example.prompt) for example in examples),
            max(len(example.target) for example in examples),
        )
        padding = int(self.tokenizer.pad_token_id)
        ids, mask = pad([one.prompt for one in examples], sources, padding)
        given, _ = pad([(self.start, *one.target[:-1]) for one in examples], longest, padding)
        targets, _ = pad([one.target for one in examples], longest, -100)
        read = {"input_ids": ids, "attention_mask": mask}
        return Batch({**read, "decoder_input_ids": given, "targets": targets})

    def widths(self, example: CausalExample, coarse: bool = False) -> tuple[int, ...]:
        """Return the widths of both texts together, of the source, and of the target."""
        source = padded(len(example.prompt), self.max_length, coarse)
        target = padded(len(example.target), self.max_length, coarse)
        return source + target, source, target

    def nll(self, model: nn.Module, batch: Batch) -> Tensor:
        targets = batch.tensors["targets"]
        given = {name: x for name, x in batch.tensors.items() if name != "targets"}
        logits = model(**given, use_cache=False).logits
        return token_losses(logits, targets)

    def _ended(self, segments: Sequence[list[int]]) -> list[list[int]]:
        if not self.ends or not segments:
            return list(segments)
        last = [self._end] if self.after else []  # else the tokenizer's own end follows
        return [*([*segment, self._end] for segment in segments[:-1]), [*segments[-1], *last]]

    def _whole(self, written: list[int]) -> list[int]:
        first, last = self._around_target
        return [*first, *written, *last]

    def _space(self, record: TextRecord) -> str:
        return ""  # nothing is written before it

    def _behind(self, record: TextRecord) -> list[str]:
        return [""] * (1 + len(record.segments))

    @cached_property
    def _frame(self) -> list[list[int]]:
        before, after = super()._frame
        return [before, [*after, *around(self.tokenizer, target=False)[1]]]

    @cached_property
    def _around_target(self) -> tuple[list[int], list[int]]:
        first, last = around(self.tokenizer, target=True)
        return first, last if self._end in last else [*last, self._end]
