"""Persona-Chat (Zhang et al. 2018) as in ConvAI2: reply in a dialogue, given one's own persona."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.flags import Flag, Stored, flag
from dpft.tasks.generation import Generation, perplexity
from dpft.tasks.json_list import problem
from dpft.tasks.metrics import parlai
from dpft.tasks.metrics.perplexity import SIGNATURE as PERPLEXITY
from dpft.tasks.objectives.base import Prediction, texts
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.samples.personachat import SILENCE, write_files
from dpft.tasks.sources import Dataset, Form, Hub, file_text, text_lines, well_formed

_PERSONA = "your persona:"
_TEXT = "Persona-Chat in ParlAI's text format"
_JSON = '{"train": [{"personality": [...], "utterances": [...]}, ...], "valid": [...]}'
# No reply of the validation file has more than 28 tokens of GPT-2, the end token included.
LONGEST_REPLY = 32


@dataclass(frozen=True)
class Reply:
    """One reply of the persona's owner.

    Attributes:
        dialogue: number of its dialogue in the file, from 0.
        persona: sentences about the owner.
        history: turns before it, oldest first, the partner's last; empty where the owner begins.
        text: the reply.
    """

    dialogue: int
    persona: tuple[str, ...]
    history: tuple[str, ...]
    text: str


def read_text(path: Path) -> list[Reply]:
    """Replies of a file of ParlAI, with or without candidates, which are ignored.

    Lines are numbered from 1 in each dialogue: first those of the persona, then
    ``NUMBER utterance<TAB>reply``, followed by an empty field and candidates where there are any.

    Raises:
        DataError: naming file and line.
    """
    replies: list[Reply] = []
    persona: list[str] = []
    history: list[str] = []
    dialogue, previous, said = -1, 0, True
    for number, line in enumerate(text_lines(path, _TEXT), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        index, _, text = line.partition(" ")
        if index not in ("1", str(previous + 1)):
            raise DataError(
                f"{where}: got {line[:60]!r} after number {previous}; expected {previous + 1}, or "
                "1 where a dialogue begins"
            )
        previous = int(index)
        if previous == 1:
            _refuse_silent(where, dialogue, said)
            dialogue, persona, history, said = dialogue + 1, [], [], False
        fields = [field.strip() for field in text.split("\t")]
        if len(fields) == 1:
            fact = fields[0].removeprefix(_PERSONA).strip()
            if said or not fields[0].startswith(_PERSONA) or not fact:
                raise DataError(
                    f"{where}: got {line[:60]!r}; expected '{_PERSONA} ...' at the start of a "
                    "dialogue, then an utterance and a reply with a tab between them"
                )
            persona.append(fact)
            continue
        if not persona or not fields[0] or not fields[1]:
            missing = "reply or utterance" if persona else "persona before the first utterance"
            raise DataError(f"{where}: got no {missing} in {line[:60]!r}; expected {_TEXT}")
        said = True
        history += _turns([fields[0]])
        replies.append(Reply(dialogue, tuple(persona), tuple(history), fields[1]))
        history.append(fields[1])
    _refuse_silent(f"{path}, last line", dialogue, said)
    return replies


def read_json(path: Path, split: str) -> list[Reply]:
    """Replies of one split, ``train`` or ``valid``, of Hugging Face's file, which holds both.

    Raises:
        DataError: naming the file, and the line where it is not JSON, else the dialogue.
    """
    dialogues = _content(path).get(split)
    if not isinstance(dialogues, list):
        raise DataError(f"{path}, line 1: got no list {split!r}; expected {_JSON}")
    return _replies(dialogues, f"{path}, {split}")


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(file_text(path, _JSON))
    except (ValueError, RecursionError) as error:
        where = f"{path}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else path
        raise DataError(f"{where}: {problem(error)}; expected {_JSON}") from error
    return content if isinstance(content, dict) else {}


def _replies(dialogues: Iterable[Any], where: str) -> list[Reply]:
    """Replies of dialogues as Hugging Face writes them: the last candidate is the true reply."""
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
    if (
        not isinstance(values, Sequence)
        or isinstance(values, str)
        or not values
        or not all(isinstance(value, str) and value.strip() for value in values)
    ):
        raise DataError(f"{where}: got {name} {str(values)[:60]}; expected texts, one or more")
    return tuple(well_formed(value, where).strip() for value in values)


def _turns(texts: Iterable[str]) -> list[str]:
    # Some copies have spaces in it.
    return [text for text in texts if text.replace(" ", "") != SILENCE]


def _refuse_silent(where: str, dialogue: int, said: bool) -> None:
    if not said:
        raise DataError(
            f"{where}: dialogue {dialogue + 1} ended without a reply; expected one or more, with a "
            "tab between utterance and reply"
        )


def _from_hub(rows: Iterable[Mapping[str, Any]]) -> list[Reply]:
    return _replies(rows, "the hub's copy")


def _text_form(name: str) -> Form:
    return Form({"train": f"train_{name}.txt", "dev": f"valid_{name}.txt"}, read_text)


_HF_FILE = "personachat_self_original.json"


@dataclass(frozen=True)
class PersonaChat(Generation):
    """Chit-chat with a persona; see ``conf/task/personachat.yaml``.

    The persona is one segment of the prompt and every turn another, each followed by the end
    token. A prompt that is too long loses its oldest turns, and keeps the persona.
    """

    max_length: int = 256
    split_by_persona: float | None = None

    name = "personachat"
    written_as = _HF_FILE
    record_is = "one reply of the persona's owner, with the persona and the dialogue so far"
    dataset = Dataset(
        forms=(
            _text_form("self_original"),
            _text_form("self_original_no_cands"),
            # One file for both splits: a form for each, as only the reader knows which is meant.
            Form({"train": _HF_FILE}, partial(read_json, split="train")),
            Form({"dev": _HF_FILE}, partial(read_json, split="valid")),
        ),
        hub=Hub(
            "AlekseyKorshuk/persona-chat",
            {"train": "train", "dev": "validation"},
            _from_hub,
        ),
        write_sample=write_files,
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

    def read_file(self, path: Path) -> Sequence[Reply]:
        if path.suffix != Path(_HF_FILE).suffix:
            return super().read_file(path)
        halves = [split for split in ("train", "valid") if _content(path).get(split)]
        if len(halves) > 1:
            raise DataError(
                f"{path} holds training and validation dialogues, and which are meant cannot be "
                "told; expected one of both lists to be empty: write a file with the other"
            )
        return read_json(path, *(halves or ["train"]))

    def rows(self, split: str) -> Sequence[Reply]:
        if split == "test":
            raise SplitError(
                "Persona-Chat has no test split: that of ConvAI2 was never published. Type "
                "decode.split=dev for the validation file"
            )
        if split == "train" and self.synthetic is not None:
            return super().rows(split)
        if self.split_by_persona is None:
            self._refuse_validation_alone(split)
            return super().rows(split)
        rows = super().rows("dev")
        chosen = [row for row in rows if self._trains(row) == (split == "train")]
        if not chosen:
            raise DataError(
                f"task.split_by_persona={self.split_by_persona} leaves no dialogue for {split}; "
                "expected another share, or more personas"
            )
        return chosen

    def _trains(self, row: Reply) -> bool:
        """Whether a reply falls to training, which follows from its persona alone.

        One reply more moves no other, and no persona is on both sides.
        """
        digest = hashlib.sha256("\n".join(sorted(row.persona)).encode()).digest()
        assert self.split_by_persona is not None
        return int.from_bytes(digest[:8]) / 2**64 < self.split_by_persona

    def write_records(
        self, rows: Sequence[Reply] | None, targets: Sequence[str], path: Path
    ) -> None:
        """A file that `read_json` reads, each record a dialogue of its own.

        ParlAI's text format has no place for a history whose replies are not records.
        """
        assert rows is not None
        content = [
            {
                "personality": row.persona,
                "utterances": [{"candidates": [target], "history": row.history or [SILENCE]}],
            }
            for row, target in zip(rows, targets, strict=True)
        ]
        with path.open("w", encoding="utf-8") as file:
            json.dump({"train": content, "valid": []}, file, ensure_ascii=False)

    def record(self, row: Reply) -> TextRecord:
        return TextRecord((" ".join(row.persona), *row.history), row.text)

    @property
    def prompt_settings(self) -> Mapping[str, Any]:
        return {"cut": "source", "keep": 1, "room": LONGEST_REPLY, "perplexity": True}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, float | None]:
        f1 = parlai.corpus_f1(*texts(predictions))
        return {"F1": f1, "token_perplexity": perplexity(predictions)}

    def signature(self) -> str:
        return f"{parlai.SIGNATURE}+{PERPLEXITY}|cut to {self.max_length} tokens"

    def flags(self) -> list[Stored]:
        flags = super().flags()
        if self.split_by_persona is not None:
            share = 100 * self.split_by_persona
            flags.append(flag(Flag.SPLIT_BY_PERSONA, train=share, dev=100 - share))
        return flags

    def details(self, split: str) -> list[str]:
        return [f"{len({(row.dialogue, row.persona) for row in self.rows(split)}):,} dialogues"]

    def _refuse_validation_alone(self, split: str) -> None:
        kind, folder = self.location
        if split != "train" or kind != "files" or folder is None:
            return
        if not any(form.found(folder, "train") for form in self.dataset.all_forms()):
            raise DataError(
                f"{folder} holds the validation file of Persona-Chat but no training file, such as "
                "train_self_original.txt. Put it there, or type task.split_by_persona=0.8 to "
                "train on the dialogues of about 80% of the validation file's personas"
            )
