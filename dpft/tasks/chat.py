"""The user's own conversations: a model learns to answer as the assistant in them does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpft.config.errors import DataError
from dpft.models.needs import Needs
from dpft.tasks.base import Generation, check_room, perplexity
from dpft.tasks.metrics import scorers
from dpft.tasks.objectives.base import Instance, Prediction, text_room, texts
from dpft.tasks.objectives.records import Conversation
from dpft.tasks.own import OwnData, own_dataset
from dpft.tasks.sources import well_formed
from dpft.tasks.table_files import TableRow, brief

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.chat import ChatObjective

# Role and text of a message in the two common forms, and what the second calls the roles.
_KEYS = (("role", "content"), ("from", "value"))
_ROLES = {
    "system": "system", "user": "user", "assistant": "assistant",
    "human": "user", "gpt": "assistant",
}  # fmt: skip
_FORM = '[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


@dataclass(frozen=True)
class Chat(Generation, OwnData):
    """Answers to write, given what precedes them; see ``conf/task/chat.yaml``."""

    messages_column: str = "messages"
    template: Literal["auto", "plain"] = "auto"
    max_length: int = 512

    name = "chat"
    dataset = own_dataset("chat")
    record_is = "one row of the training data: a conversation"

    @property
    def needs(self) -> Needs:
        return Needs("causal")

    def objective(self, loaded: LoadedModel) -> ChatObjective:
        check_room(loaded.model, self.max_length)
        return self._objective(loaded.text_tokenizer, text_room(loaded.model))

    def _objective(
        self, tokenizer: PreTrainedTokenizerBase, positions: int | None = None
    ) -> ChatObjective:
        from dpft.tasks.objectives.chat import PLAIN, ChatObjective

        own = tokenizer.chat_template if self.template == "auto" else None
        # The template is saved with the model, so that it is asked as it was trained.
        tokenizer.chat_template = own if isinstance(own, str) else PLAIN
        return ChatObjective(
            *(tokenizer, self.max_length, self.loss),
            perplexity=True,
            positions=positions,
            template=tokenizer.chat_template,
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
        last = max((n for n, (role, _) in enumerate(turns) if role == "assistant"), default=0)
        if not last:
            raise DataError(
                f"{row.place}: column {self.messages_column!r} has no answer of the assistant with "
                f"something before it; expected {_FORM}"
            )
        return Conversation(turns[: last + 1])  # what follows the last answer trains nothing

    def asked(self, row: TableRow) -> Instance:
        """Return what precedes the last answer, or all if the last turn is not the assistant's."""
        turns = self._turns(row)
        if turns[-1][0] == "assistant":
            turns = turns[:-1]
        if not turns:
            raise DataError(f"{row.place}: there is nothing before the answer; expected {_FORM}")
        return Instance(Conversation((*turns, ("assistant", ""))), ())

    def _turns(self, row: TableRow) -> tuple[tuple[str, str], ...]:
        column = self.messages_column
        if column == "messages" and column not in row.values and "conversations" in row.values:
            column = "conversations"  # ShareGPT's
        messages = row.cell(column, "task.messages_column")
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise DataError(
                f"{row.place}: column {column!r} is {brief(messages)}; expected {_FORM}"
            )
        return tuple(_turn(one, f"{row.place}, message {n}") for n, one in enumerate(messages, 1))

    def rendered(self, tokenizer: PreTrainedTokenizerBase) -> str:
        return self._objective(tokenizer).shown(self.record(self.rows("train")[0]))

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        """Return ROUGE-L of the last answers, and the perplexity of all that is trained."""
        return {
            "ROUGE_L": scorers.rouge(*texts(predictions))["ROUGE_L"],
            "perplexity": perplexity(predictions),
        }

    def signature(self) -> str:
        cut = f"answers of conversations|cut to {self.max_length} tokens"
        return f"{scorers.ROUGE}; {scorers.PERPLEXITY}|{cut}"


def _turn(message: Any, place: str) -> tuple[str, str]:
    """Return role and text of a message."""
    known = message if isinstance(message, Mapping) else {}
    role, text = next(((known[r], known[t]) for r, t in _KEYS if {r, t} <= {*known}), (None, None))
    if not isinstance(role, str) or role not in _ROLES:
        raise DataError(
            f"{place} is {brief(message)}; expected a role of {', '.join(_ROLES)}, as in {_FORM}"
        )
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{place}: its text is {brief(text)}; expected text that is not empty")
    return _ROLES[role], well_formed(text, place)
