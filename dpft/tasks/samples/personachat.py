"""Generated dialogues in ParlAI's text format of Persona-Chat.

Everything here is made up; only the format is the published one: numbered lines that begin anew
with each dialogue, persona first, then utterance, reply, an empty field and candidates, the true
reply last among them; lowercase text with spaces before punctuation. A reply follows from the
persona or from what the partner has just said, so that F1 can be learned. A tenth of the dialogues
begin with the persona's owner, after the marker of a silent partner.

No persona is in both files, nor twice in one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from dpft.tasks.samples.grammar import Words, vocabulary

TRAIN, DEV = 800, 100
DISTRACTORS = 4
SILENCE = "__SILENCE__"


@dataclass(frozen=True)
class Topic:
    """A kind of fact: its values, how a persona states it, how it is asked about and told."""

    fact: str
    values: Words
    questions: Words
    answers: Words


_TEXT = vocabulary("personachat")
TOPICS = tuple(Topic(**topic) for topic in _TEXT["topics"])

Fact = tuple[Topic, str]
Dialogue = tuple[list[str], list[tuple[str, str]]]


def dialogues(count: int, seed: int) -> list[Dialogue]:
    """Personas, and exchanges of utterance and reply.

    Args:
        count: number of dialogues, each with another persona.
        seed: another seed gives other dialogues, the same on every machine.
    """
    rng = random.Random(f"personachat-sample-1 {seed}")
    made: dict[frozenset[str], Dialogue] = {}
    while len(made) < count:
        facts = [
            (topic, rng.choice(topic.values)) for topic in rng.sample(TOPICS, rng.randint(3, 5))
        ]
        persona = [topic.fact.format(value) for topic, value in facts]
        if frozenset(persona) not in made:
            made[frozenset(persona)] = persona, _exchanges(facts, rng)
    return list(made.values())


def _exchanges(facts: list[Fact], rng: random.Random) -> list[tuple[str, str]]:
    facts = rng.sample(facts, len(facts))
    topic, value = facts.pop()
    if rng.random() < 0.1:
        exchanges = [(SILENCE, rng.choice(_TEXT["openings"]))]
        begin = rng.choice(_TEXT["first_words"])
        exchanges.append((f"{begin} {rng.choice(topic.questions)}", _answer(topic, value, rng)))
    else:
        fact = topic.fact.format(value).replace(".", " .")
        exchanges = [(rng.choice(_TEXT["greetings"]), f"{rng.choice(_TEXT['well'])} {fact}")]
    for topic, value in facts[: rng.randint(2, 3)]:
        question = rng.choice(topic.questions)
        if rng.random() < 0.5:
            exchanges.append((question, _answer(topic, value, rng)))
            continue
        # The partner tells first, and the reply takes it up.
        theirs = rng.choice([other for other in topic.values if other != value])
        statement = topic.fact.format(theirs).replace(".", " .")
        praise = rng.choice(_TEXT["praise"]).format(theirs)
        exchanges.append((f"{statement} {question}", f"{praise} {_answer(topic, value, rng)}"))
    if rng.random() < 0.5:
        exchanges.append((rng.choice(_TEXT["goodbyes"]), rng.choice(_TEXT["last_words"])))
    return exchanges


def _answer(topic: Topic, value: str, rng: random.Random) -> str:
    return rng.choice(topic.answers).format(value)


def _text(chosen: list[Dialogue], rng: random.Random) -> str:
    replies = sorted({reply for _, exchanges in chosen for _, reply in exchanges})
    lines = []
    for persona, exchanges in chosen:
        body = [f"your persona: {fact}" for fact in persona]
        for utterance, reply in exchanges:
            others = [other for other in rng.sample(replies, DISTRACTORS + 1) if other != reply]
            body.append(f"{utterance}\t{reply}\t\t{'|'.join((*others[:DISTRACTORS], reply))}")
        lines += [f"{number} {line}\n" for number, line in enumerate(body, 1)]
    return "".join(lines)


def write_files(folder: Path, seed: int = 0) -> None:
    """Write ``train_self_original.txt`` and ``valid_self_original.txt``."""
    made = dialogues(TRAIN + DEV, seed)
    rng = random.Random(f"personachat-sample-1 candidates {seed}")
    for name, chosen in (("train", made[:TRAIN]), ("valid", made[TRAIN:])):
        with (folder / f"{name}_self_original.txt").open("w", encoding="utf-8", newline="") as file:
            file.write(_text(chosen, rng))
