"""Generated chats with summaries in the file format of SAMSum.

Everything here is made up; only the format is the published one: JSON lists of ``id``, ``dialogue``
and ``summary``, the turns of a dialogue on lines ``Name: text`` that end in CR LF. A summary says
who does what and when, all of which the dialogue tells.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from dpft.tasks.samples.grammar import Words, vocabulary

SIZES = {"train": 800, "val": 100, "test": 100}


_TEXT = vocabulary("samsum")


def _chat(rng: random.Random) -> tuple[list[str], str]:
    """The lines of a dialogue, and its summary."""
    a, b = rng.sample(_TEXT["names"], 2)
    scene = rng.choice(_TEXT["scenes"])
    gaps = {"a": a, "b": b}
    for gap, words in scene["draws"].items():
        gaps[gap] = rng.choice(_TEXT[words])
    if "time" in gaps:
        gaps["Time"] = gaps["time"].capitalize()
    turns = [_line(who, text, gaps, rng) for turn in scene["turns"] for who, text in turn.items()]
    if rng.random() < 0.6:
        hello = [_line("a", _TEXT["hello"], gaps, rng), _line("b", _TEXT["back"], gaps, rng)]
        turns = [*hello, *turns]
    return turns, scene["summary"].format_map(gaps)


def _line(who: str, wordings: str | Words, gaps: dict[str, str], rng: random.Random) -> str:
    text = wordings if isinstance(wordings, str) else rng.choice(wordings)
    return f"{gaps[who]}: {text.format_map(gaps)}"


def chats(count: int, seed: int) -> list[tuple[str, str]]:
    """Different dialogues, lines ending in CR LF, with their summaries.

    Args:
        count: how many.
        seed: another seed gives other dialogues, the same on every machine.
    """
    rng = random.Random(f"samsum-sample-1 {seed}")
    made: dict[str, str] = {}
    while len(made) < count:
        turns, summary = _chat(rng)
        made["\r\n".join(turns)] = summary
    return list(made.items())


def write_files(folder: Path, seed: int = 0) -> None:
    """Write ``train.json``, ``val.json`` and ``test.json``."""
    made = [
        {"id": str(number), "dialogue": dialogue, "summary": summary}
        for number, (dialogue, summary) in enumerate(chats(sum(SIZES.values()), seed))
    ]
    for name, size in SIZES.items():
        chosen, made = made[:size], made[size:]
        with (folder / f"{name}.json").open("w", encoding="utf-8", newline="") as file:
            json.dump(chosen, file, indent=1)
