"""Generated chats with summaries in the file format of SAMSum.

Everything here is made up; only the format is the published one: JSON lists of ``id``, ``dialogue``
and ``summary``, the turns of a dialogue on lines ``Name: text`` that end in CR LF. A summary says
who does what and when, all of which the dialogue tells.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

SIZES = {"train": 800, "val": 100, "test": 100}


def _either(text: str) -> tuple[str, ...]:
    return tuple(text.split("/"))


_NAMES = _either(
    "Anna/Ben/Carla/Daniel/Emma/Frank/Grace/Henry/Ivy/Jack/Kate/Leo/Mary/Nick/Olga/Paul/Rose/Sam/"
    "Tina/Victor/Wendy/Adam/Bella/Chris/Diana/Eric/Fiona/George/Helen/Ian"
)
_WHEN = _either("tonight/tomorrow/on Monday/on Tuesday/on Friday/on Saturday/next week/after work")
_TIMES = _either("at 5/at 6/at 7/at 8/at noon/at half past 6/at 9")
_ACTIVITIES = _either(
    "go to the cinema/play tennis/have dinner/go for a walk/watch the match/cook together/"
    "visit the museum/go swimming/have a coffee/study for the test/go shopping/play cards"
)
_THINGS = _either(
    "a cake/the tickets/some wine/a camera/the big pan/a tent/some bread/the keys/a ladder/"
    "warm blankets/the speakers/a map"
)
_PLACES = _either(
    "the station/the airport/the library/the office/the school/the hotel/the park/the bus stop"
)
_EVENTS = _either("the party/the meeting/the concert/the lesson/the dinner/the picnic")
# As the speaker says it, and as it is told of them.
_REASONS = (
    ("I am ill", "is ill"),
    ("I have to work", "has to work"),
    ("I missed the train", "missed the train"),
    ("I have no car", "has no car"),
    ("I am too tired", "is too tired"),
)
_YES = ("Sure!", "Of course.", "Yes, why not?", "OK :)", "No problem.")
_HELLO = ("Hey {}!", "Hi {}, are you there?", "Hello {}, how are you?", "{}, one question.")
_BACK = ("Hi! What is it?", "Hey, all good here.", "Yes, I am here.", "Hi {}!")
_THANKS = ("Thanks!", "Great, thank you!", "You are the best.", "Perfect, thanks {}!")
_SEE_YOU = ("See you!", "See you then!", "Bye :)", "Great, see you.")

Turn = tuple[str, str]
Chat = tuple[list[Turn], str]
Scene = Callable[[str, str, random.Random], Chat]


def _meet(a: str, b: str, rng: random.Random) -> Chat:
    what, when, time = rng.choice(_ACTIVITIES), rng.choice(_WHEN), rng.choice(_TIMES)
    turns = [
        (a, rng.choice((f"Do you want to {what} {when}?", f"Shall we {what} {when}?"))),
        (b, f"{rng.choice(_YES)} What time?"),
        (a, rng.choice((f"How about {time}?", f"{time.capitalize()}, if you can."))),
        (b, rng.choice(_SEE_YOU)),
    ]
    return turns, f"{a} and {b} will {what} {when} {time}."


def _bring(a: str, b: str, rng: random.Random) -> Chat:
    thing, when = rng.choice(_THINGS), rng.choice(_WHEN)
    turns = [
        (
            a,
            rng.choice((f"Can you bring {thing} {when}?", f"I need {thing} {when}, can you help?")),
        ),
        (b, rng.choice(_YES)),
        (a, rng.choice(_THANKS).format(b)),
    ]
    return turns, f"{b} will bring {a} {thing} {when}."


def _cancel(a: str, b: str, rng: random.Random) -> Chat:
    event, when = rng.choice(_EVENTS), rng.choice(_WHEN)
    said, told = rng.choice(_REASONS)
    turns = [
        (
            a,
            rng.choice(
                (f"I can't come to {event} {when}.", f"Sorry, no {event[4:]} {when} for me.")
            ),
        ),
        (b, rng.choice(("Oh no, why?", "What happened?"))),
        (a, f"{said}."),
        (b, rng.choice(("I am sorry to hear that.", "Too bad, next time then."))),
    ]
    return turns, f"{a} will not come to {event} {when}, because {a} {told}."


def _fetch(a: str, b: str, rng: random.Random) -> Chat:
    place, time, when = rng.choice(_PLACES), rng.choice(_TIMES), rng.choice(_WHEN)
    turns = [
        (a, f"I will be at {place} {when}. Can you pick me up?"),
        (b, f"{rng.choice(_YES)} When?"),
        (a, f"{time.capitalize()}, please."),
        (b, rng.choice((f"I will be at {place} then.", *_SEE_YOU))),
    ]
    return turns, f"{b} will pick {a} up at {place} {when} {time}."


def _lend(a: str, b: str, rng: random.Random) -> Chat:
    thing, when = rng.choice(_THINGS), rng.choice(_WHEN)
    turns = [
        (a, f"Did you take {thing}?"),
        (b, rng.choice((f"Yes, I will give it back {when}.", f"Yes! You get it back {when}."))),
        (a, rng.choice(_THANKS).format(b)),
    ]
    return turns, f"{b} took {thing} and will give it back to {a} {when}."


_SCENES: tuple[Scene, ...] = (_meet, _bring, _cancel, _fetch, _lend)


def chats(count: int, seed: int) -> list[tuple[str, str]]:
    """Different dialogues, lines ending in CR LF, with their summaries.

    Args:
        count: how many.
        seed: another seed gives other dialogues, the same on every machine.
    """
    rng = random.Random(f"samsum-sample-1 {seed}")
    made: dict[str, str] = {}
    while len(made) < count:
        a, b = rng.sample(_NAMES, 2)
        turns, summary = rng.choice(_SCENES)(a, b, rng)
        if rng.random() < 0.6:
            hello = (a, rng.choice(_HELLO).format(b)), (b, rng.choice(_BACK).format(a))
            turns = [*hello, *turns]
        made["\r\n".join(f"{name}: {text}" for name, text in turns)] = summary
    return list(made.items())


def write_files(folder: Path, *, seed: int = 0) -> None:
    """Write ``train.json``, ``val.json`` and ``test.json``.

    Args:
        folder: where to write; made if absent, files of these names are replaced.
        seed: see `chats`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = [
        {"id": str(number), "dialogue": dialogue, "summary": summary}
        for number, (dialogue, summary) in enumerate(chats(sum(SIZES.values()), seed))
    ]
    for name, size in SIZES.items():
        chosen, made = made[:size], made[size:]
        with (folder / f"{name}.json").open("w", encoding="utf-8", newline="") as file:
            json.dump(chosen, file, indent=1)
