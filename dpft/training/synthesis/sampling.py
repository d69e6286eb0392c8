"""Sampling targets, one for every source, and what of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.config.decode import Decode
from dpft.config.errors import ConfigError
from dpft.models.load import LoadedModel
from dpft.tasks.base import Task
from dpft.tasks.objectives.causal import Causal
from dpft.tasks.objectives.chat import ChatObjective
from dpft.tasks.objectives.chat_writing import write_conversations
from dpft.tasks.objectives.decode import Written, decode
from dpft.tasks.objectives.records import TextRecord
from dpft.training.synthesis.sources import text_record


@dataclass(frozen=True)
class Synthetic:
    """What is written.

    Attributes:
        rows: whose sources are used; None where texts have no source.
        targets: the sampled texts, see `Task.write_records`.
        asked: how many were sampled.
        empty: how many of those were empty, or no conversation, and left out.
        duplicates: how many repeated another record, and were left out.
        unfinished: how many of those written were stopped before their end.
        cut: of how many of those written the source was too long for the model, and lost a part.
    """

    rows: Sequence[Any] | None
    targets: Sequence[str]
    asked: int
    empty: int
    duplicates: int
    unfinished: int
    cut: int


class _Apart(tuple[int, ...]):
    """A prompt that equals no other: `decode` writes one text for all equal prompts."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def sample(
    task: Task,
    loaded: LoadedModel,
    rows: Sequence[Any] | None,
    count: int,
    settings: Decode,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
    system: str | None = None,
) -> tuple[list[Written], list[bool]]:
    """A text for each of ``count`` prompts, every one drawn by itself; and whose prompt was cut.

    Args:
        task: of the model.
        loaded: the model.
        rows: of the sources; None: every prompt is the end token alone.
        count: how many texts.
        settings: how to sample.
        seed: of the random numbers.
        advance: told how many more texts are done.
        system: what conversations begin with; of task ``chat`` only.

    Raises:
        ConfigError: if the task has another objective than `Causal`.
    """
    objective = task.objective(loaded)
    if isinstance(objective, ChatObjective):
        talks = write_conversations(objective, loaded.model, count, settings, seed, system, advance)
        return talks, [False] * count
    if not isinstance(objective, Causal):
        raise ConfigError(
            f"the objective of task {task.name} is {type(objective).__name__}; expected Causal, "
            "which writes text from a prompt"
        )
    if rows is None:
        records = [TextRecord(("",), "")] * count
    else:
        records = [text_record(task, row) for row in rows]
    end = (loaded.text_tokenizer.eos_token_id,)
    found = objective.prompts(records, settings)
    prompts = [_Apart(prompt or end) for prompt, _ in found]
    written = decode(loaded.model, loaded.text_tokenizer, prompts, settings, seed, advance)
    return written, [lost > 0 for _, lost in found]


def keep(
    task: Task,
    rows: Sequence[Any] | None,
    written: Sequence[Written],
    cut: Sequence[bool],
    unique: bool,
) -> Synthetic:
    """Leave out empty texts and, if ``unique``, records that repeat one before them."""
    kept, seen, empty, duplicates = [], set(), 0, 0
    for place, target in enumerate(one.text for one in written):
        if not target.strip():
            empty += 1
            continue
        source = "" if rows is None else text_record(task, rows[place]).source
        if unique and (source, target) in seen:
            duplicates += 1
            continue
        seen.add((source, target))
        kept.append(place)
    return Synthetic(
        None if rows is None else [rows[place] for place in kept],
        [written[place].text for place in kept],
        len(written),
        empty,
        duplicates,
        sum(not written[place].finished for place in kept),
        sum(cut[place] for place in kept),
    )
