"""Generated data for the tasks on the user's own files: notes from a made-up repair shop.

Each visitor has habits of speech and favourite things, and some come far more often than others, as
in data of real people. Users of the splits are different people.
"""

import random
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpft.tasks.samples import vocabulary
from dpft.tasks.table_files import write_lines

CLASSES = ("repair", "spare part", "opening hours", "thanks")

# Users of each split; in training some of them write much.
_USERS = MappingProxyType({"train": 120, "dev": 16, "test": 16})
_PATIENTS = 200
_MOST = 40

_TEXT = vocabulary("own")
_YEARS = range(1961, 2024)


class _Visitor:
    """A person with habits, who writes one record at each call of a task's method."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.rng = rng
        self.things = rng.sample(_TEXT["things"], 3)
        self.opening, self.closing = rng.choice(_TEXT["openings"]), rng.choice(_TEXT["closings"])
        self.day = rng.choice(_TEXT["days"])
        # Drawn by a separate generator, so that the records of other tasks stay the same.
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


def write_sample(kind: str, folder: Path, seed: int) -> None:
    """Write ``train.jsonl``, ``dev.jsonl`` and ``test.jsonl``, with a column ``user``."""
    chat = kind == "chat"
    for split, users in _USERS.items():
        rows = []
        for number in range(_PATIENTS if chat and split == "train" else users):
            name = f"{split}-{'patient' if chat else 'visitor'}-{number:02}"
            rng = random.Random(f"{seed} {kind} {name}")
            visitor = _Visitor(name, rng)
            times = min(_MOST, int(rng.paretovariate(0.6))) if split == "train" else 4
            rows += [{"user": name, **getattr(visitor, kind)()} for _ in range(times)]
        random.Random(f"{seed} {kind} {split}").shuffle(rows)
        write_lines(folder / f"{split}.jsonl", rows)
