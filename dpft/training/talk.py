"""Talking to a trained model: each line is asked as the task asks, and told as it is written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Any

from transformers import TextStreamer

from dpft.config.decode import Decode
from dpft.config.errors import ConfigError
from dpft.tasks.generation import text_room
from dpft.tasks.objectives.causal import Causal
from dpft.tasks.objectives.chat import ANSWERS, ChatObjective
from dpft.tasks.objectives.decode import Written, decode
from dpft.tasks.objectives.records import Conversation, TextRecord
from dpft.tasks.objectives.tokens import token_ids
from dpft.training.trained import TrainedRun


class Talk:
    """A conversation, or single questions where the task has no conversations.

    A model of plain texts continues what it is given.

    Args:
        trained: the run, of a task whose model writes text.
        settings: how to decode, one text at a time.
        system: what the model is told before all else; None: nothing.

    Raises:
        ConfigError: if the model writes no text, or takes no system prompt.
    """

    def __init__(self, trained: TrainedRun, settings: Decode, system: str | None = None) -> None:
        task = trained.task
        if task.needs.kind != "causal":
            raise ConfigError(
                f"task {task.name} trains a model that writes no text; type dpft predict "
                f"{shlex.quote(str(trained.path))} FILE"
            )
        objective = task.objective(trained.loaded)
        if not isinstance(objective, Causal):
            raise ConfigError(
                f"the objective of task {task.name} is {type(objective).__name__}; expected "
                "Causal, which writes text from a prompt"
            )
        self.has_turns = isinstance(objective, ChatObjective)
        if system is not None and not self.has_turns:
            raise ConfigError(f"--system, and task {task.name} has no conversations; leave it out")
        self._trained, self._objective, self._settings = trained, objective, settings
        self._system = [] if system is None else [("system", system)]
        self._said: list[tuple[str, str]] = []
        self._asked = 0

    def forget(self) -> None:
        """Begin a new conversation."""
        self._said = []

    def ask(self, text: str, tell: Callable[[str], None]) -> Written:
        """The model's reply.

        Args:
            text: a line that is not empty.
            tell: called with each piece of the reply as it is written.
        """
        self._said.append(("user", text))
        loaded = self._trained.loaded
        written = decode(
            loaded.model,
            loaded.text_tokenizer,
            [self._prompt(text)],
            self._settings,
            self._trained.run.seed + self._asked,
            streamer=_Streamer(loaded.text_tokenizer, tell),
        )[0]
        self._said.append((ANSWERS, written.text))
        self._asked += 1
        return written

    def _prompt(self, text: str) -> tuple[int, ...]:
        record: Any = TextRecord((text,), "")
        if self._trained.task.unconditional:  # a text that has begun already
            ((opening, _),) = self._objective.prompts([record], self._settings)
            (begun,) = token_ids(self._trained.loaded.text_tokenizer, [text])
            return (*opening, *begun[-self._longest_begun(len(opening)) :])
        if self.has_turns:
            record = Conversation((*self._system, *self._said, (ANSWERS, "")))
        ((prompt, _),) = self._objective.prompts([record], self._settings)
        return prompt

    def _longest_begun(self, opening: int) -> int:
        """Tokens of a text that is to go on: with room for a reply, but at least half of all."""
        room = text_room(self._trained.loaded.model) or sys.maxsize
        return max(room // 2, room - self._settings.max_new_tokens) - opening


class _Streamer(TextStreamer):
    """Pieces of text as they are finished, without the prompt and special tokens."""

    def __init__(self, tokenizer: Any, tell: Callable[[str], None]) -> None:
        plain: Any = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        super().__init__(tokenizer, skip_prompt=True, **plain)
        self._tell = tell

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._tell(text)
