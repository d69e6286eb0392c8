"""Tasks on dialogues: Persona-Chat, whose target is the next reply, and SAMSum, with a summary.

Persona-Chat (Zhang et al. 2018) is as in ConvAI2: reply in a dialogue, given one's own persona.
SAMSum is of Gliwa et al. 2019: a chat in, a summary out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.flags import Flag, Stored, flag
from dpft.tasks.metrics import scorers
from dpft.tasks.objectives.objective import Prediction, text_room, texts
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.samples.texts import SILENCE, entries, write_personachat, write_samsum
from dpft.tasks.sources import SAME_SPLITS, Dataset, Form, Hub, one_by_one, text_lines, well_formed
from dpft.tasks.table_files import read_objects, read_table, write_lines
from dpft.tasks.task import Generation, perplexity

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.generation import Causal

_PERSONA = "your persona:"
# No reply of the validation file has more than 28 tokens of GPT-2, the end token included.
LONGEST_REPLY = 32


@dataclass(frozen=True)
class Reply:
    """One reply of the persona's owner."""

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
    previous = 0
    for number, line in enumerate(text_lines(path, "Persona-Chat in ParlAI's text format"), 1):
        if not line.strip():
            continue
        index, _, text = line.partition(" ")
        if index == "1":
            persona, history, previous = [], [], 0
        utterance, *answers = (field.strip() for field in text.split("\t"))
        is_fact = not answers and not history and utterance.startswith(_PERSONA)
        if index != str(previous + 1) or not (
            is_fact or (persona and utterance and answers and answers[0])
        ):
            raise DataError(
                f"{path}, line {number}: got {line[:60]!r} after number {previous}; expected lines "
                f"numbered from 1 in each dialogue, the first of them '{_PERSONA} ...', then an "
                "utterance and a reply with a tab between them"
            )
        previous += 1
        if is_fact:
            persona.append(utterance.removeprefix(_PERSONA).strip())
        else:
            history += _turns([utterance])
            replies.append(Reply(tuple(persona), tuple(history), answers[0]))
            history.append(answers[0])
    return replies


def read_lines(path: Path) -> list[Reply]:
    """Read replies of JSON lines, each a dialogue as in Hugging Face's copy."""
    return _replies((row.values for row in read_objects(path)), str(path))


def _replies(dialogues: Iterable[Mapping[str, Any]], where: str) -> list[Reply]:
    """Return replies of dialogues with ``personality`` and ``utterances``.

    The last of the candidates is the true reply.
    """

    def strings(item: Any, name: str) -> tuple[str, ...]:
        values = item.get(name) if isinstance(item, Mapping) else None
        listed = values if isinstance(values, Sequence) and not isinstance(values, str) else []
        if not listed or not all(isinstance(text, str) and text.strip() for text in listed):
            raise DataError(f"{place}: got {name} {str(values)[:60]}; expected one or more texts")
        return tuple(well_formed(text, place).strip() for text in listed)

    replies = []
    for number, dialogue in enumerate(dialogues, 1):
        place = f"{where}, dialogue {number}"
        persona = strings(dialogue, "personality")
        for turn in dialogue.get("utterances") or [None]:
            history = tuple(_turns(strings(turn, "history")))
            replies.append(Reply(persona, history, strings(turn, "candidates")[-1]))
    return replies


def _turns(listed: Iterable[str]) -> list[str]:
    # Some copies have spaces in the marker of a silent partner.
    return [text for text in listed if text.replace(" ", "") != SILENCE]


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
        (
            Form({"train": "train_self_original.txt", "dev": "valid_self_original.txt"}, read_text),
            Form(
                {
                    "train": "train_self_original_no_cands.txt",
                    "dev": "valid_self_original_no_cands.txt",
                },
                read_text,
            ),
            Form({"train": "train.jsonl", "dev": "valid.jsonl"}, read_lines),
        ),
        Hub(
            "AlekseyKorshuk/persona-chat",
            {"train": "train", "dev": "validation"},
            lambda dialogues, split: _replies(dialogues, f"the hub's copy, {split}"),
        ),
        write_personachat,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.split_by_persona
        if share is not None and not 0 < share < 1:
            raise ConfigError(
                f"task.split_by_persona is {share}; expected a share between 0 and 1, such as 0.8"
            )

    def rows(self, split: str) -> Sequence[Reply]:
        if split == "test":
            raise SplitError(
                "Persona-Chat has no test split: that of ConvAI2 was never published. Type "
                "decode.split=dev for the validation file"
            )
        share = self.split_by_persona
        if share is None or (split == "train" and self.synthetic is not None):
            return super().rows(split)

        def trains(row: Reply) -> bool:
            # This follows from the persona alone: one reply more moves no other, and no persona is
            # on both sides.
            digest = hashlib.sha256("\n".join(sorted(row.persona)).encode()).digest()
            return int.from_bytes(digest[:8]) / 2**64 < share

        chosen = [row for row in super().rows("dev") if trains(row) == (split == "train")]
        if not chosen:
            raise DataError(f"task.split_by_persona={share} leaves no dialogue for {split}")
        return chosen

    def write_records(self, rows: Sequence[Any] | None, targets: Sequence[str], path: Path) -> None:
        """Write a file that `read_lines` reads, each record as a separate dialogue."""
        pairs = zip(rows or (), targets, strict=True)
        turns = (
            (r.persona, {"candidates": [t], "history": r.history or [SILENCE]}) for r, t in pairs
        )
        write_lines(path, ({"personality": who, "utterances": [turn]} for who, turn in turns))

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


# The prompt of He et al. 2022, appendix C.2. Where lines end is not printed there.
INSTRUCTION = "Summarize the following dialogue\n"
DELIMITER = "\nTL;DR"

_ENTRY = '{"id": ..., "dialogue": "...", "summary": "..."}'
Row = tuple[str, str]


def read_rows(path: Path) -> list[Row]:
    """Read rows ``(dialogue, summary)`` of a file that is one JSON list, or of JSON lines."""
    return [_row(row.values, row.place) for row in read_table(path)]


def _row(entry: Any, where: str) -> Row:
    """Return the texts of an entry, with plain line ends and without space around them.

    A dialogue may be empty: one of the published training file is. Copies in CSV have None there.
    """
    dialogue, summary = "", ""
    if isinstance(entry, Mapping) and {"dialogue", "summary"} <= entry.keys():
        dialogue, summary = entry["dialogue"] or "", entry["summary"]
    if not isinstance(dialogue, str) or not isinstance(summary, str) or not summary.strip():
        raise DataError(f"{where}: got {str(entry)[:60]}; expected {_ENTRY}, summary not empty")
    dialogue = well_formed(dialogue, where).replace("\r\n", "\n").strip()
    return dialogue, well_formed(summary, where).strip()


@dataclass(frozen=True)
class SAMSum(Generation):
    """Summarise chats; see ``conf/task/samsum.yaml``."""

    max_length: int = 512

    name = "samsum"
    written_as = "train.json"
    record_is = "one dialogue with its summary"
    cuts_to_fit = True
    dataset = Dataset(
        (
            Form({"train": "train.json", "dev": "val.json", "test": "test.json"}, read_rows),
            Form({one: f"{name}.jsonl" for one, name in SAME_SPLITS.items()}, read_rows),
        ),
        Hub("knkarthick/samsum", SAME_SPLITS, one_by_one(_row)),
        write_samsum,
    )

    def record(self, row: Row) -> TextRecord:
        dialogue, summary = row
        return TextRecord((dialogue,), summary)

    def write_records(self, rows: Sequence[Row] | None, targets: Sequence[str], path: Path) -> None:
        """Write a file that `read_rows` reads."""
        pairs = zip((dialogue for dialogue, _ in rows or ()), targets, strict=True)
        path.write_text(json.dumps(entries(pairs), ensure_ascii=False, indent=1), encoding="utf-8")

    def objective(self, loaded: LoadedModel) -> Causal:
        room = text_room(loaded.model)
        if room is not None and room < self.max_length:
            return replace(self, max_length=room).objective(loaded)
        return super().objective(loaded)

    @property
    def prompt_settings(self) -> Mapping[str, Any]:
        return {"before": INSTRUCTION, "after": DELIMITER, "ends": False, "cut": "source"}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, float]:
        return scorers.rouge(*texts(predictions))

    def signature(self) -> str:
        return scorers.ROUGE
