"""Answers in a conversation: the model's chat template around it, the loss on its own turns."""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, takewhile
from typing import Any

from dpft.config.errors import ConfigError, DataError
from dpft.tasks.objectives.generation import Causal, CausalExample
from dpft.tasks.objectives.objective import Instance
from dpft.tasks.objectives.record_types import ANSWERS, Conversation
from dpft.tasks.objectives.tokens import plain_ids, special_texts

Turns = Sequence[tuple[str, str]]
# Tokens of what precedes an answer, those of the answer, and whether it calls tools.
Exchange = tuple[list[int], list[int], bool]

PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "{{ eos_token if message.role == 'assistant' else '' }}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A template for models that have none: ``role: text`` on a line, an end token after answers."""
# Replaces the text of the special token of this number while a template writes turns around it.
_MARK = "\ue0d8{}\ue0d8"
_MARKS = re.compile(_MARK.format("([0-9]+)"))
# Some templates tell the model which day it is: a run that is continued would see another text.
_DAY = {"%Y": "2025", "%y": "25", "%m": "01", "%d": "01", "%B": "January", "%b": "Jan",
        "%A": "Wednesday", "%a": "Wed", "%H": "12", "%M": "00", "%S": "00"}  # fmt: skip
_ONE_DAY = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(f".replace({code!r}, {value!r})" for code, value in _DAY.items())
    + " }}{%- endmacro -%}"
)


@dataclass(frozen=True)
class ChatObjective(Causal):
    """Write every answer of a conversation, given what precedes it.

    Each answer's tokens, up to the end token, carry loss. A conversation that is longer than
    ``max_length`` loses its last exchanges; a first exchange that is too long by itself loses the
    start of what is given and the end of the answer, each down to half.

    Some templates write an earlier turn in another way once a later one follows: without its
    thoughts, for instance. Then, and with ``train_on="last"``, the last answer alone carries loss,
    so that what is trained is what will be asked. A prompt that opens a thought (``<think>``) is
    continued by the end of an empty one, unless the answer has a thought.

    ``<|im_end|>`` in a message ends no turn: the text of a special token is plain text there.

    Args:
        template: in Jinja, of the model; see `PLAIN`.
        train_on: ``assistant`` or ``last``.
    """

    cut: str = "source"  # of a prompt to answer
    template: str = PLAIN
    train_on: str = "assistant"

    def encode_all(self, records: Sequence[Conversation]) -> list[CausalExample]:
        return [self._example_of(self._marked(record.turns)) for record in records]

    def _example_of(self, turns: Turns) -> CausalExample:
        answers = [number for number, (role, _) in enumerate(turns) if role in ANSWERS]
        exchanges = None
        if self.train_on == "last":
            return self._of_exchanges([self._last(turns)])
        if len(answers) > 2:  # rendering all that precedes each answer takes quadratic time
            with suppress(_RewrittenError, DataError):
                text, exchanges = self._exchanges(turns, answers, near=True)
                if text != self._rendered(turns[: answers[len(exchanges) - 1] + 1]):
                    exchanges = None
        if exchanges is None:
            try:
                _, exchanges = self._exchanges(turns, answers, near=False)
            except _RewrittenError:
                return replace(self._of_exchanges([self._last(turns)]), untrained=len(answers) - 1)
        return self._of_exchanges(exchanges)

    def _last(self, turns: Turns) -> Exchange:
        """Return the tokens of the newest exchanges before the last answer, and of the answer."""
        asked, answered = self._rendered(turns[:-1], asks=True), self._rendered(turns)
        answer = self._answer(asked, answered, turns[-1][1])
        (words,) = self._tokens([answer], [asked])
        room = max(self.max_length - self.max_length // 2, self.max_length - len(words))
        return self._newest(turns[:-1], room)[0], words, turns[-1][0] == "call"

    @staticmethod
    def _answer(asked: str, answered: str, text: str) -> str:
        """Return what the model writes after a prompt, with the end of a thought that it opens."""
        if answered.startswith(asked):
            return answered[len(asked) :]
        before = asked.rstrip().removesuffix("<think>")
        if before == asked.rstrip() or not answered.startswith(before):
            raise ConfigError(
                f"the model's chat template asks for an answer by {asked[-40:]!r}, and writes none "
                "behind that; type task.template=plain"
            )
        thought = text.rpartition("</think>")[0].partition("<think>")[2].strip("\n")
        return f"{thought}\n</think>\n\n" + answered[len(before) :].lstrip("\n")

    def _exchanges(
        self, turns: Turns, answers: Sequence[int], near: bool
    ) -> tuple[str, list[Exchange]]:
        """Return the tokens before each answer and of it, up to `max_length`, and all their text.

        With ``near`` an answer is rendered behind the exchange before it and the system's turn.
        """
        text, before, size = "", "", 0
        exchanges, newest = list[Exchange](), 0
        for number, (given, answer) in zip(
            answers, self._spans(turns, answers, near), strict=False
        ):
            # What `max_length` has no room for is not rendered.
            if exchanges and size - newest > self.max_length:
                break
            ids = self._tokens([given, answer], [before, given])
            newest = len(ids[0]) + len(ids[1])
            size += newest
            exchanges.append((ids[0], ids[1], turns[number][0] == "call"))
            text, before = text + given + answer, answer
        return text, exchanges

    def shown(self, record: Conversation) -> str:
        """Return a conversation as the model is given it, with double brackets around the loss."""
        (example,) = self.encode_all([record])
        ids, start = (*example.prompt, *example.target), len(example.prompt)
        given = {*range(start), *(start + place for place in example.silent)}
        pieces = (
            (silent, str(self.tokenizer.decode([ids[place] for place in places])))
            for silent, places in groupby(range(len(ids)), given.__contains__)
        )
        return "".join(text if silent else f"[[{text}]]" for silent, text in pieces)

    def _referenced(self, instance: Instance) -> Any:
        return instance.record

    def _spans(self, turns: Turns, answers: Sequence[int], near: bool) -> Iterator[tuple[str, str]]:
        """Yield the new text before each answer, and the answer, as the template writes them."""
        leading = _leading(turns)
        done = ""
        for k, number in enumerate(answers):
            shown = turns[: number + 1]
            if near and k > 1:
                users = (n for n in range(answers[k - 1], 0, -1) if turns[n][0] == "user")
                start = next(users, answers[k - 2] + 1)
                shown = [*leading, *turns[start : number + 1]]
                done = self._rendered(shown[: answers[k - 1] - number])
            asked, answered = self._rendered(shown[:-1], asks=True), self._rendered(shown)
            if not (asked.startswith(done) and answered.startswith(asked)):
                raise _RewrittenError
            yield asked[len(done) :], answered[len(asked) :]
            done = answered

    def _rendered(self, turns: Turns, asks: bool = False) -> str:
        from jinja2 import TemplateError

        tools, messages = _messages(turns)
        try:
            text = str(
                self.tokenizer.apply_chat_template(
                    messages,
                    tools=tools,
                    chat_template=_ONE_DAY + self.template,
                    tokenize=False,
                    add_generation_prompt=asks,
                )
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(role for role, _ in turns)
            raise DataError(
                f"the model's chat template rejects a conversation with the turns {roles} "
                f"({error}); change the conversation, or type task.template=plain"
            ) from error
        for call in (call["function"] for one in messages for call in one.get("tool_calls", ())):
            if call["name"] not in text:
                raise DataError(
                    f"the model's chat template does not write calls of tools, such as that of "
                    f"{call['name']!r}: leave them out, or type task.template=plain"
                )
        return text

    def _of_exchanges(self, exchanges: Sequence[Exchange]) -> CausalExample:
        """Return an example whose loss is on the answers."""
        trained = [(given, *self._up_to_end(answer, calls)) for given, answer, calls in exchanges]
        whole = [len(given) + len(answer) + len(rest) for given, answer, rest in trained]
        kept = 1  # of the last one, what follows its end token does not count
        while kept < len(trained) and sum(whole[:kept]) + sum(map(len, trained[kept][:2])) <= (
            self.max_length
        ):
            kept += 1
        given, answer, rest = trained[0]
        excess = max(0, len(given) + len(answer) - self.max_length)
        half = self.max_length // 2
        shorter = answer[: max(half, len(answer) - excess)] if excess else answer
        prompt = (given or [self._end])[-max(1, self.max_length - len(shorter)) :]
        target, silent = [*shorter], list[int]()
        for further, words, more in trained[1:kept]:
            silent += range(len(target), len(target) + len(rest) + len(further))
            target += [*rest, *further, *words]
            rest = more
        lost = trained[kept:]
        return CausalExample(
            tuple(prompt),
            tuple(target),
            tuple(silent),
            cut_source=max(0, len(given) - len(prompt)) + sum(len(given) for given, _, _ in lost),
            cut_target=len(answer) - len(shorter) + sum(len(words) for _, words, _ in lost),
        )

    def _up_to_end(self, answer: list[int], calls: bool = False) -> tuple[list[int], list[int]]:
        """Return an answer up to its end token, and what the template writes behind that.

        Some templates end an answer that ``calls`` a tool by another token.
        """
        if calls and self._end not in answer:
            return answer, []
        if self._end not in answer:
            raise ConfigError(
                "the model's chat template ends an answer without the tokenizer's end token "
                f"{self.tokenizer.eos_token!r}, so that the model would not learn to stop; type "
                "task.template=plain"
            )
        last = len(answer) - answer[::-1].index(self._end)
        return answer[:last], answer[last:]

    def _prompt(self, record: Conversation, longest: int) -> tuple[tuple[int, ...], int]:
        kept, lost = self._newest(self._marked(record.turns[:-1]), longest)
        return tuple(kept), lost

    def _newest(self, turns: Turns, longest: int) -> tuple[list[int], int]:
        """Return a prompt of the newest exchanges that fit, and how many tokens it lost."""

        def ids(turns: Turns) -> list[int]:
            return self._tokens([self._rendered(turns, asks=True)], [""])[0] or [self._end]

        whole = found = ids(turns)
        leading = _leading(turns)
        starts = [n for n, (role, _) in enumerate(turns[:-1], 1) if role in ANSWERS]
        if len(whole) > longest and starts:
            # The more exchanges are left out, the shorter it is: the first place that is enough.
            enough = bisect_left(
                starts, True, key=lambda at: len(ids([*leading, *turns[at:]])) <= longest
            )
            found = ids([*leading, *turns[starts[min(enough, len(starts) - 1)] :]])
        kept = found[-longest:]
        return kept, len(whole) - len(kept)

    @cached_property
    def _special(self) -> tuple[str, ...]:
        """Texts that are special tokens, the longest first."""
        return tuple(sorted(special_texts(self.tokenizer), key=len, reverse=True))

    @cached_property
    def _plain(self) -> tuple[list[int], ...]:
        """The tokens of each of these as plain text."""
        return tuple(plain_ids(self.tokenizer, text) for text in self._special)

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._special)) or "(?!)")

    def _marked(self, turns: Turns) -> Turns:
        """Return turns with marks in place of the texts of special tokens."""

        def mark(match: re.Match[str]) -> str:
            return _MARK.format(self._special.index(match[0]))

        def marked(said: Any) -> Any:
            if isinstance(said, str):  # a mark that is there already goes: it would be read as such
                return self._special_pattern.sub(mark, _MARKS.sub("", said))
            if isinstance(said, dict):
                return {marked(key): marked(value) for key, value in said.items()}
            return [marked(one) for one in said] if isinstance(said, list) else said

        return [
            (role, json.dumps(marked(json.loads(text)), ensure_ascii=False))
            if role in ("call", "tools")
            else (role, marked(text))
            for role, text in turns
        ]

    def _tokens(self, texts: Sequence[str], before: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts that a template wrote around marked turns."""
        split = [_MARKS.split(text) for text in texts]  # text, number, text, number, ..., text
        pieces = [*chain.from_iterable(one[::2] for one in split)]
        behind = [x for one, first in zip(split, before, strict=True) for x in (first, *one[1::2])]
        ids, found = iter(self._ids(pieces, behind)), []
        for one in split:
            tokens = list(next(ids))
            for number in one[1::2]:
                tokens += [*self._plain[int(number)], *next(ids)]
            found.append(tokens)
        return found


class _RewrittenError(Exception):
    """A template writes an earlier turn in another way once a later one follows."""


def _leading(turns: Turns) -> list[tuple[str, str]]:
    """Return what precedes all exchanges: offered tools, and the system's turn."""
    return [*takewhile(lambda turn: turn[0] in ("tools", "system"), turns)]


def _messages(turns: Turns) -> tuple[list[Any] | None, list[dict[str, Any]]]:
    """Return offered tools, and turns as templates take them."""
    tools, messages = None, list[dict[str, Any]]()
    count, open_calls = 0, list[dict[str, Any]]()
    for role, text in turns:
        if role == "tools":
            tools = json.loads(text)
        elif role == "call":
            said, calls = json.loads(text), []
            for call in said["calls"]:
                count += 1
                calls.append({"id": f"call{count:05}", "type": "function", "function": call})
            messages.append({"role": "assistant", "content": said["text"], "tool_calls": calls})
            open_calls += calls
        elif role == "tool" and open_calls:
            call = open_calls.pop(0)
            named = {"tool_call_id": call["id"], "name": call["function"]["name"]}
            messages.append({"role": role, "content": text, **named})
        else:
            messages.append({"role": role, "content": text})
    return tools, messages
