"""Persona-Chat (Zhang et al. 2018) as in ConvAI2: reply in a dialogue, given one's own persona."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.flags import Flag, Stored, flag
from dpft.tasks.base import Generation, perplexity
from dpft.tasks.metrics import scorers
from dpft.tasks.objectives.base import Prediction, texts
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.samples.texts import SILENCE, write_personachat
from dpft.tasks.sources import Dataset, Form, Hub, text_lines, well_formed
from dpft.tasks.table_files import read_objects, write_lines

_PERSONA = "your persona:"
_TEXT = "Persona-Chat in ParlAI's text format"
# No reply of the validation file has more than 28 tokens of GPT-2, the end token included.
LONGEST_REPLY = 32


@dataclass(frozen=True)
class Reply:
    """One reply of the persona's owner."""

    dialogue: int  # number of its dialogue in the file, from 0
    persona: tuple[str, ...]  # sentences about the owner
    # Turns before it, oldest first, the partner's last; empty where the owner begins.
    history: tuple[str, ...]
    text: str  # the reply


def read_text(path: Path) -> list[Reply]:
    """Read replies of a file of ParlAI, with or without candidates, which are ignored.

    Lines are numbered from 1 in each dialogue: first those of the persona, then
    ``NUMBER utterance<TAB>reply``, followed by an empty field and candidates where there are any.
    """
    replies: list[Reply] = []
    persona: list[str] = []
    history: list[str] = []
    dialogue, previous, replied = -1, 0, True
    for number, line in enumerate([*text_lines(path, _TEXT), "1 "], 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        index, _, text = line.partition(" ")
        if index not in ("1", str(previous + 1)) or (index == "1" and not replied):
            raise DataError(
                f"{where}: got {line[:60]!r} after number {previous} of dialogue {dialogue + 1}; "
                f"expected {previous + 1}, or 1 for the next dialogue once this one has a reply"
            )
        previous = int(index)
        if previous == 1:
            if not text:  # the line that was added above
                break
            dialogue, persona, history, replied = dialogue + 1, [], [], False
        fields = [field.strip() for field in text.split("\t")]
        fact = fields[0].removeprefix(_PERSONA).strip()
        if len(fields) == 1 and not replied and fields[0].startswith(_PERSONA) and fact:
            persona.append(fact)
        elif len(fields) == 1 or not persona or not fields[0] or not fields[1]:
            raise DataError(
                f"{where}: got {line[:60]!r}; expected '{_PERSONA} ...' at the start of a "
                "dialogue, then an utterance and a reply with a tab between them"
            )
        else:
            replied = True
            history += _turns([fields[0]])
            replies.append(Reply(dialogue, tuple(persona), tuple(history), fields[1]))
            history.append(fields[1])
    return replies


def read_lines(path: Path) -> list[Reply]:
    """Read replies of JSON lines, each a dialogue as in Hugging Face's copy."""
    return _replies((row.values for row in read_objects(path)), str(path))


def _replies(dialogues: Iterable[Any], where: str) -> list[Reply]:
    """Return replies of dialogues with ``personality`` and ``utterances``.

    The last of the candidates is the true reply.
    """
    replies = []
    for number, dialogue in enumerate(dialogues):
        place = f"{where}, dialogue {number + 1}"
        persona = _strings(dialogue, "personality", place)
        utterances = dialogue.get("utterances")
        if not isinstance(utterances, Sequence) or not utterances:
            raise DataError(f"{place}: got no utterances; expected one or more")
        for turn in utterances:
            history = _turns(_strings(turn, "history", place))
            reply = _strings(turn, "candidates", place)[-1]
            replies.append(Reply(number, persona, tuple(history), reply))
    return replies


def _strings(item: Any, name: str, where: str) -> tuple[str, ...]:
    values = item.get(name) if isinstance(item, Mapping) else None
    texts = values if isinstance(values, Sequence) and not isinstance(values, str) else []
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"{where}: got {name} {str(values)[:60]}; expected texts, one or more")
    return tuple(well_formed(text, where).strip() for text in texts)


def _turns(texts: Iterable[str]) -> list[str]:
    # Some copies have spaces in it.
    return [text for text in texts if text.replace(" ", "") != SILENCE]


@dataclass(frozen=True)
class PersonaChat(Generation):
    """Reply in a chat, given a persona; see ``conf/task/personachat.yaml``.

    The persona is one segment of the prompt and every turn another, each followed by the end
    token. A prompt that is too long loses its oldest turns, and keeps the persona.
    """

    max_length: int = 256
    split_by_persona: float | None = None

    name = "personachat"
    record_is = "one reply of the persona's owner, with the persona and the dialogue so far"
    dataset = Dataset(
        forms=(
            *(
                Form({"train": f"train_{name}.txt", "dev": f"valid_{name}.txt"}, read_text)
                for name in ("self_original", "self_original_no_cands")
            ),
            Form({"train": "train.jsonl", "dev": "valid.jsonl"}, read_lines),
        ),
        hub=Hub(
            "AlekseyKorshuk/persona-chat",
            {"train": "train", "dev": "validation"},
            partial(_replies, where="the hub's copy"),
        ),
        write_sample=write_personachat,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.split_by_persona
        if share is not None and not 0 < share < 1:
            raise ConfigError(
                f"task.split_by_persona is {share}; expected a share between 0 and 1, such as 0.8"
            )

    @property
    def published_train(self) -> str:
        return "train" if self.split_by_persona is None else "dev"

    def rows(self, split: str) -> Sequence[Reply]:
        if split == "test":
            raise SplitError(
                "Persona-Chat has no test split: that of ConvAI2 was never published. Type "
                "decode.split=dev for the validation file"
            )
        share = self.split_by_persona
        if share is None or (split == "train" and self.synthetic is not None):
            try:
                return super().rows(split)
            except SplitError as error:
                if split != "train":
                    raise
                raise SplitError(
                    f"{error}; or type task.split_by_persona=0.8 to train on the dialogues of "
                    "about 80% of the validation file's personas"
                ) from error

        def trains(row: Reply) -> bool:
            # Follows from the persona alone: one reply more moves no other, and no persona is on
            # both sides.
            digest = hashlib.sha256("\n".join(sorted(row.persona)).encode()).digest()
            return int.from_bytes(digest[:8]) / 2**64 < share

        chosen = [row for row in super().rows("dev") if trains(row) == (split == "train")]
        if not chosen:
            raise DataError(f"task.split_by_persona={share} leaves no dialogue for {split}")
        return chosen

    def write_records(self, rows: Sequence[Any] | None, targets: Sequence[str], path: Path) -> None:
        """Write a file that `read_lines` reads, each record a dialogue of its own.

        ParlAI's text format has no place for a history whose replies are not records.
        """
        pairs = zip(rows or (), targets, strict=True)
        turns = (
            (r.persona, {"candidates": [t], "history": r.history or [SILENCE]}) for r, t in pairs
        )
        write_lines(path, ({"personality": who, "utterances": [said]} for who, said in turns))

    def record(self, row: Reply) -> TextRecord:
        return TextRecord((" ".join(row.persona), *row.history), row.text)

    @property
    def prompt_settings(self) -> Mapping[str, Any]:
        return {"cut": "source", "keep": 1, "room": LONGEST_REPLY, "perplexity": True}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, float | None]:
        f1 = scorers.parlai_f1(*texts(predictions))
        return {"F1": f1, "token_perplexity": perplexity(predictions)}

    def signature(self) -> str:
        return f"{scorers.PARLAI}+{scorers.PERPLEXITY}|cut to {self.max_length} tokens"

    def flags(self) -> list[Stored]:
        flags = super().flags()
        if self.split_by_persona is not None:
            share = 100 * self.split_by_persona
            flags.append(flag(Flag.SPLIT_BY_PERSONA, train=share, dev=100 - share))
        return flags

    def details(self, split: str) -> list[str]:
        return [f"{len({(row.dialogue, row.persona) for row in self.rows(split)}):,} dialogues"]
