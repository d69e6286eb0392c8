"""Generated data for the tasks on the user's own files: notes from a made-up repair shop.

Each visitor has habits of speech and favourite things, and some come far more often than others, as
in data of real people. Users of the splits are different people.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpft.tasks.samples.grammar import vocabulary
from dpft.tasks.table_files import write_lines

CLASSES = ("repair", "spare part", "opening hours", "thanks")

# Users of each split; in training some of them write much.
_USERS = MappingProxyType({"train": 120, "dev": 16, "test": 16})
_PATIENTS = 200
_MOST = 40

_TEXT = vocabulary("own")
_YEARS = range(1961, 2024)


class _Visitor:
    """Somebody with habits."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.things = rng.sample(_TEXT["things"], 3)
        self.opening, self.closing = rng.choice(_TEXT["openings"]), rng.choice(_TEXT["closings"])
        self.day = rng.choice(_TEXT["days"])
        # Of numbers of their own, so that the other kinds stay as they were.
        self.complaints = random.Random(f"{name} complaints").sample(_TEXT["complaints"], 3)

    def text2text(self) -> dict[str, str]:
        thing, (fault, cure) = self.rng.choice(self.things), self.rng.choice(_TEXT["faults"])
        year = self.rng.choice(_YEARS)
        return {
            "source": f"{thing} | {year} | {fault} | ready {self.day}",
            "target": (
                f"Your {thing} of {year} {fault} no more: we {cure}. "
                f"You can fetch it on {self.day}.{self.closing}"
            ),
        }

    def classification(self) -> dict[str, str]:
        thing, fault = self.rng.choice(self.things), self.rng.choice(_TEXT["faults"])[0]
        label = self.rng.choice(CLASSES)
        message = {
            "repair": f"my {thing} {fault}, can you mend it?",
            "spare part": f"do you have {self.rng.choice(_TEXT['parts'])} for a {thing}?",
            "opening hours": f"until when are you open on {self.day}?",
            "thanks": f"the {thing} has run since {self.day}, what a joy!",
        }[label]
        return {"text": f"{self.opening}{message}{self.closing}", "label": label}

    def language_modeling(self) -> dict[str, str]:
        lines = []
        for day in self.rng.sample(_TEXT["days"], self.rng.randint(1, 4)):
            thing, (fault, cure) = self.rng.choice(self.things), self.rng.choice(_TEXT["faults"])
            lines.append(f"On {day} I brought a {thing} that {fault}. They {cure}.")
        return {"text": f"{' '.join(lines)}{self.closing}"}

    def chat(self) -> dict[str, Any]:
        turns = [("system", "You answer for a practice.")] if self.rng.random() < 0.5 else []
        for complaint, advice in self.rng.sample(self.complaints, self.rng.randint(1, 2)):
            days = self.rng.sample(_TEXT["days"], 2)
            turns += [
                ("user", f"{self.opening}I have {complaint} since {days[0]}. What can I do?"),
                ("assistant", f"{advice} If it is no better then, come on {days[1]}."),
            ]
        if self.closing:
            turns += [("user", self.closing.strip()), ("assistant", "Get well soon!")]
        return {"messages": [{"role": role, "content": text} for role, text in turns]}


def rows(kind: str, split: str, seed: int) -> Sequence[dict[str, Any]]:
    """The rows of a split, a column ``user`` among theirs."""
    lines = []
    chat = kind == "chat"
    who = "patient" if chat else "visitor"
    for number in range(_PATIENTS if chat and split == "train" else _USERS[split]):
        name = f"{split}-{who}-{number:02}"
        rng = random.Random(f"{seed} {kind} {name}")
        visitor = _Visitor(name, rng)
        times = min(_MOST, int(rng.paretovariate(0.6))) if split == "train" else 4
        lines += [{"user": name, **getattr(visitor, kind)()} for _ in range(times)]
    random.Random(f"{seed} {kind} {split}").shuffle(lines)
    return lines


def write_sample(kind: str, folder: Path, seed: int) -> None:
    """Write ``train.jsonl``, ``dev.jsonl`` and ``test.jsonl``."""
    for split in _USERS:
        write_lines(folder / f"{split}.jsonl", rows(kind, split, seed))
