"""The user's own conversations: a model learns to answer as the assistant in them does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpft.config.errors import DataError
from dpft.models.needs import Needs
from dpft.tasks.metrics import scorers
from dpft.tasks.objectives.objective import Instance, Prediction, text_room, texts
from dpft.tasks.objectives.record_types import ANSWERS, Conversation
from dpft.tasks.own import OwnData, own_dataset
from dpft.tasks.sources import file_text, well_formed
from dpft.tasks.table_files import TableRow, brief
from dpft.tasks.task import Generation, perplexity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.chat import ChatObjective

# Role and text of a message in the two common forms.
_KEYS = (("role", "content"), ("from", "value"))
_ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "tool": "tool", "observation": "tool",
    "function_call": "assistant",
}  # fmt: skip
_FORM = '[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


@dataclass(frozen=True)
class Chat(Generation, OwnData):
    """Answers to write, given what precedes them; see ``conf/task/chat.yaml``."""

    messages_column: str = "messages"
    tools_column: str = "tools"
    template: str = "auto"
    train_on: Literal["assistant", "last"] = "assistant"
    max_length: int = 512

    name = "chat"
    dataset = own_dataset("chat")
    record_is = "one row of the training data: a conversation"

    @property
    def needs(self) -> Needs:
        return Needs("causal")

    def objective(self, loaded: LoadedModel) -> ChatObjective:
        return self._objective(loaded.text_tokenizer, text_room(loaded.model))

    def _objective(
        self, tokenizer: PreTrainedTokenizerBase, positions: int | None = None
    ) -> ChatObjective:
        from dpft.tasks.objectives.chat import PLAIN, ChatObjective

        own = tokenizer.chat_template if self.template == "auto" else self._own_template
        # The template is saved with the model, so that it is asked as it was trained.
        tokenizer.chat_template = own if isinstance(own, str) else PLAIN
        return ChatObjective(
            *(tokenizer, self.max_length, self.loss),
            perplexity=True,
            positions=positions,
            template=tokenizer.chat_template,
            train_on=self.train_on,
        )

    @cached_property
    def _own_template(self) -> str | None:
        """The template of a file, or None."""
        if self.template in ("auto", "plain"):
            return None
        return file_text(
            Path(self.template), "a chat template in Jinja; or type task.template=auto"
        )

    @property
    def writes_nothing(self) -> str:
        return (
            "a chat model was trained on the assistant's turns alone and cannot write what users "
            "say; expected a model of whole conversations as texts: dpft train "
            "task=language_modeling. Both runs together spend both budgets"
        )

    def record(self, row: TableRow) -> Conversation:
        turns = self._turns(row)
        last = max((n for n, (role, _) in enumerate(turns) if role in ANSWERS), default=0)
        if all(role == "tools" for role, _ in turns[:last]):
            raise DataError(
                f"{row.place}: column {self.messages_column!r} has no answer of the assistant with "
                f"something before it; expected {_FORM}"
            )
        return Conversation(turns[: last + 1])  # what follows the last answer trains nothing

    def asked(self, row: TableRow) -> Instance:
        """Return what precedes the last answer, or all if the last turn is not the assistant's."""
        turns = self._turns(row)
        if turns[-1][0] in ANSWERS:
            turns = turns[:-1]
        if all(role == "tools" for role, _ in turns):
            raise DataError(f"{row.place}: there is nothing before the answer; expected {_FORM}")
        return Instance(Conversation((*turns, ("assistant", ""))), ())

    def _turns(self, row: TableRow) -> tuple[tuple[str, str], ...]:
        column = self.messages_column
        if column == "messages" and column not in row.values and "conversations" in row.values:
            column = "conversations"  # ShareGPT's
        messages = _parsed(row.cell(column, "task.messages_column"))
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise DataError(
                f"{row.place}: column {column!r} is {brief(messages)}; expected {_FORM}"
            )
        turns = [_turn(one, f"{row.place}, message {n}") for n, one in enumerate(messages, 1)]
        tools = _tools(row.values.get(self.tools_column), row.place, self.tools_column)
        return tuple(turn for turn in (tools, *turns) if turn is not None)

    def rendered(self, tokenizer: PreTrainedTokenizerBase) -> str:
        return self._objective(tokenizer).shown(self.record(self.rows("train")[0]))

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        """Return ROUGE-L of last answers without thoughts, and perplexity of what is trained."""

        def without_thought(text: str) -> str:
            return text.rpartition("</think>")[2].strip()

        written, references = texts(predictions)
        answers = [[*map(without_thought, several)] for several in references]
        return {
            "ROUGE_L": scorers.rouge([*map(without_thought, written)], answers)["ROUGE_L"],
            "perplexity": perplexity(predictions),
        }

    def signature(self) -> str:
        of = "last answers" if self.train_on == "last" else "answers"
        cut = f"{of} of conversations|cut to {self.max_length} tokens"
        return f"{scorers.ROUGE}; {scorers.PERPLEXITY}|{cut}"


def _turn(message: Any, place: str) -> tuple[str, str] | None:
    """Return role and text of a message; None for an empty prompt of the system.

    See `dpft.tasks.objectives.record_types.Conversation` for the role of a message with tool calls.
    """
    known = message if isinstance(message, Mapping) else {}
    role, text = next(((known[r], known.get(t)) for r, t in _KEYS if r in known), (None, None))
    if not isinstance(role, str) or role not in _ROLES:
        raise DataError(
            f"{place} is {brief(message)}; expected a role of {', '.join(_ROLES)}, as in {_FORM}"
        )
    if isinstance(text, Sequence) and not isinstance(text, str):
        text = "\n".join(_part(one, place) for one in text)
    calls = known.get("tool_calls") or []
    if role == "function_call":
        text, calls = "", [_parsed(text)]
    if calls and _ROLES[role] == "assistant":
        calls = [_call(one, place) for one in calls] if isinstance(calls, Sequence) else [{}]
        said = {"text": text or "", "calls": calls}
        return "call", well_formed(json.dumps(said, ensure_ascii=False), place)
    if _ROLES[role] == "system" and text in (None, ""):
        return None
    if not isinstance(text, str) or not (text.strip() or _ROLES[role] == "tool"):
        raise DataError(f"{place}: its text is {brief(text)}; expected text that is not empty")
    return _ROLES[role], well_formed(text, place)


def _part(part: Any, place: str) -> str:
    """Return the text of a part of a message's content."""
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise DataError(f"{place}: a part of it is {brief(kind)}; expected parts of type text")
    return text


def _call(call: Any, place: str) -> dict[str, Any]:
    """Return the name and the arguments of a tool call."""
    called = call.get("function", call) if isinstance(call, Mapping) else {}
    name = called.get("name") if isinstance(called, Mapping) else None
    if not isinstance(name, str):
        form = '{"function": {"name": "...", "arguments": "{}"}}'
        raise DataError(f"{place}: a tool call is {brief(call)}; expected {form}")
    return {"name": name, "arguments": _parsed(called.get("arguments", {}))}


def _tools(tools: Any, place: str, column: str) -> tuple[str, str] | None:
    """Return the tools that a row offers, as a turn before all others; None if it offers none."""
    tools = _parsed(tools)
    if not tools:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        form = '[{"type": "function", "function": {"name": "..."}}]'
        raise DataError(f"{place}: column {column!r} is {brief(tools)}; expected {form}")
    return "tools", well_formed(json.dumps(list(tools), ensure_ascii=False), place)


def _parsed(value: Any) -> Any:
    """Return what a text spells in JSON; the value itself if it is none."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
