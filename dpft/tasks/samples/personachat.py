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

TRAIN, DEV = 800, 100
DISTRACTORS = 4
SILENCE = "__SILENCE__"


@dataclass(frozen=True)
class Topic:
    """A kind of fact: its values, how a persona states it, how it is asked about and told."""

    fact: str
    values: tuple[str, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]


def _topic(fact: str, values: str, questions: str, answers: str) -> Topic:
    split = [tuple(part.strip() for part in text.split("/")) for text in (questions, answers)]
    return Topic(fact, tuple(values.split(", ")), *split)


TOPICS = (
    _topic(
        "i have {} at home.",
        "two dogs, a black cat, a parrot, three fish, a rabbit, a turtle, an old horse",
        "do you have any animals ? / are there animals in your house ?",
        "yes , i have {} at home . / i do , i have {} .",
    ),
    _topic(
        "i work as {}.",
        "a nurse, a baker, a teacher, a driver, a farmer, a lawyer, a gardener, a cook, a painter",
        "what do you do for a living ? / what is your job ?",
        "i work as {} . / i am {} and i like my job .",
    ),
    _topic(
        "my favorite food is {}.",
        "pizza, curry, soup, fish, rice, cake, bread, cheese, salad",
        "what do you like to eat ? / what is your favorite food ?",
        "i love {} , i could eat it every day . / my favorite food is {} .",
    ),
    _topic(
        "i like to {} on weekends.",
        "paint, swim, read, dance, cook, run, sing, sleep, drive around, play chess",
        "what do you do for fun ? / what do you like to do on weekends ?",
        "i like to {} when i have time . / on weekends i {} .",
    ),
    _topic(
        "i live {}.",
        "in a small town, on a farm, by the sea, in the mountains, in the city, near a lake",
        "where do you live ? / where are you from ?",
        "i live {} , it is nice there . / my home is {} .",
    ),
    _topic(
        "i grew up with {}.",
        "one brother, two sisters, five brothers, a twin sister, three cousins, my grandmother",
        "tell me about your family . / who did you grow up with ?",
        "i grew up with {} . / i was raised with {} .",
    ),
    _topic(
        "i listen to {} music.",
        "country, jazz, rock, folk, classical, pop, old, loud",
        "what music do you like ? / do you listen to music ?",
        "i listen to {} music a lot . / i like {} music the most .",
    ),
    _topic(
        "my favorite color is {}.",
        "blue, green, red, yellow, black, white, orange, brown",
        "what is your favorite color ? / which color do you like ?",
        "my favorite color is {} . / {} , i like it a lot .",
    ),
)
_GREETINGS = (
    "hi , how are you today ?",
    "hello ! how are you ?",
    "hey there , how is your day ?",
    "hi ! nice to meet you .",
)
_WELL = ("i am good .", "i am doing great .", "hello , i am fine .")
_OPENINGS = ("hello , how are you today ?", "hi , tell me about you !")
_FIRST_WORDS = ("i am good , thanks .", "i am well .", "fine , it is sunny here .")
_PRAISE = ("{} , that is nice !", "oh , {} ! great .", "{} sounds good .")
_GOODBYES = ("it was nice to talk to you . bye !", "i have to go now . goodbye !")
_LAST_WORDS = ("bye , have a nice day !", "goodbye , it was nice to talk to you too .")

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
        exchanges = [(SILENCE, rng.choice(_OPENINGS))]
        begin = rng.choice(_FIRST_WORDS)
        exchanges.append((f"{begin} {rng.choice(topic.questions)}", _answer(topic, value, rng)))
    else:
        told = topic.fact.format(value).replace(".", " .")
        exchanges = [(rng.choice(_GREETINGS), f"{rng.choice(_WELL)} {told}")]
    for topic, value in facts[: rng.randint(2, 3)]:
        question = rng.choice(topic.questions)
        if rng.random() < 0.5:
            exchanges.append((question, _answer(topic, value, rng)))
            continue
        # The partner tells first, and the reply takes it up.
        theirs = rng.choice([other for other in topic.values if other != value])
        statement = topic.fact.format(theirs).replace(".", " .")
        praise = rng.choice(_PRAISE).format(theirs)
        exchanges.append((f"{statement} {question}", f"{praise} {_answer(topic, value, rng)}"))
    if rng.random() < 0.5:
        exchanges.append((rng.choice(_GOODBYES), rng.choice(_LAST_WORDS)))
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


def write_files(folder: Path, *, seed: int = 0) -> None:
    """Write ``train_self_original.txt`` and ``valid_self_original.txt``.

    Args:
        folder: where to write; made if absent, files of these names are replaced.
        seed: see `dialogues`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = dialogues(TRAIN + DEV, seed)
    rng = random.Random(f"personachat-sample-1 candidates {seed}")
    for name, chosen in (("train", made[:TRAIN]), ("valid", made[TRAIN:])):
        with (folder / f"{name}_self_original.txt").open("w", encoding="utf-8", newline="") as file:
            file.write(_text(chosen, rng))
