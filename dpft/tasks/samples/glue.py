"""Generated records in the layout of four GLUE tasks, so that these run offline.

Every sentence comes from the small grammars below; none is GLUE's. A model learns them above chance
from a few hundred records, but not from single words alone: negation turns a sentiment, and pairs
have to be compared.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

TRAIN, DEV = 2000, 300
Record = tuple[tuple[str, ...], str]  # texts and label, as the file spells it


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


# --- SST-2: sentiment ---------------------------------------------------------------------------
_SUBJECTS = _words(
    "film, plot, acting, ending, script, dialogue, music, first half, camera work, cast, sequel, "
    "opening scene, love story, direction, humour"
)
_GOOD = _words(
    "great, charming, moving, clever, wonderful, funny, fresh, gripping, tender, inventive, "
    "delightful, honest"
)
_BAD = _words(
    "terrible, dull, tedious, clumsy, hollow, predictable, flat, messy, lifeless, stale, "
    "pretentious, tiresome"
)
_DEGREES = _words("very, truly, rather, quite, often, simply, at times")
_FRAMES = _words(
    "the {s} is {a}, i found the {s} {a}, the {s} feels {a}, a film whose {s} is {a}, "
    "critics called the {s} {a}"
)
_NEGATED = _words(
    "the {s} is not {a}, the {s} is never {a}, nobody could call the {s} {a}, the {s} is hardly {a}"
)


def _clause(rng: random.Random, good: bool) -> str:
    negated = rng.random() < 0.25
    frame = rng.choice(_NEGATED if negated else _FRAMES)
    adjective = rng.choice(_GOOD if good != negated else _BAD)
    if rng.random() < 0.5 and not negated:
        adjective = f"{rng.choice(_DEGREES)} {adjective}"
    return frame.format(s=rng.choice(_SUBJECTS), a=adjective)


def _sst2(rng: random.Random, subset: str) -> Record:
    good = rng.random() < 0.5
    text = _clause(rng, good)
    roll = rng.random()
    if roll < 0.4:
        text = f"{text} , and {_clause(rng, good)}"
    elif roll < 0.6:  # what stands after "although" does not decide
        text = f"although {_clause(rng, not good)} , {text}"
    return (f"{text} .",), str(int(good))


# --- QNLI: is the answer in the sentence? -------------------------------------------------------
_BUILDINGS = tuple(
    f"{name} {kind}"
    for name in _words(
        "Marlow, Ashby, Harwick, Linden, Corby, Fenwick, Holt, Rowan, Tilbury, Wexley, Garnet, "
        "Selby"
    )
    for kind in ("Bridge", "Library", "Theatre", "Museum", "Chapel", "Mill")
)
_TOWNS = _words(
    "Northam, Eastley, Redford, Kingsmere, Saltwick, Oldbury, Whitcombe, Barrow, Stoneham, Ferndale"
)
_PEOPLE = _words(
    "Ada Finch, Oscar Lane, Ruth Webb, Hugo Marsh, Clara Dean, Peter Vale, Nora Hill, Ivan Stone, "
    "Mabel Frost, Leo Hart"
)
_QUESTIONS = {
    "when": ("When was the {b} built?", "In which year was the {b} opened?"),
    "where": ("Where does the {b} stand?", "In which town is the {b}?"),
    "who": ("Who designed the {b}?", "Which architect drew the plans of the {b}?"),
    "cost": ("How much did the {b} cost?", "What was paid for the {b}?"),
}
_FACTS = {
    "when": ("The {b} was built in {year}.", "Work on the {b} ended in {year}."),
    "where": ("The {b} stands in {town}.", "Visitors to {town} often see the {b}."),
    "who": ("The {b} was designed by {person}.", "{person} drew the plans of the {b}."),
    "cost": ("The {b} cost {sum} pounds.", "The council paid {sum} pounds for the {b}."),
}


def _qnli(rng: random.Random, subset: str) -> Record:
    kinds = list(_QUESTIONS)
    asked, building = rng.choice(kinds), rng.choice(_BUILDINGS)
    entailed = rng.random() < 0.5
    told = asked if entailed else rng.choice([kind for kind in kinds if kind != asked])
    sentence = rng.choice(_FACTS[told]).format(
        b=building,
        year=rng.randint(1700, 1999),
        town=rng.choice(_TOWNS),
        person=rng.choice(_PEOPLE),
        sum=f"{rng.randint(2, 99)},000",
    )
    question = rng.choice(_QUESTIONS[asked]).format(b=building)
    return (question, sentence), "entailment" if entailed else "not_entailment"


# --- QQP: do two questions ask the same? --------------------------------------------------------
_TOPICS = _words(
    "chess, the guitar, French, cooking, swimming, drawing, algebra, photography, juggling, "
    "gardening, knitting, typing, sailing, poetry, baking, statistics, fencing, Latin, dancing, "
    "carpentry, the flute, archery, logic, skating, pottery, Japanese, climbing, sewing, acting, "
    "weaving, rowing, geometry"
)
_PLACES = ("", " at home", " at school", " in a small town", " on a boat")
_INTENTS: Sequence[tuple[str, ...]] = (
    (
        "How do I learn {t}?",
        "What is the best way to learn {t}?",
        "How can a beginner learn {t}?",
        "Where should one start with {t}?",
    ),
    (
        "How long does it take to learn {t}?",
        "In how many months can one learn {t}?",
        "How much time does learning {t} need?",
        "After how many weeks is one good at {t}?",
    ),
    (
        "Who are the most famous names in {t}?",
        "Which people are best known for {t}?",
        "Who is the greatest of all time in {t}?",
        "Can you name some masters of {t}?",
    ),
    (
        "Why do some people hate {t}?",
        "What makes {t} so disliked?",
        "Why is {t} not popular with everybody?",
        "What do people have against {t}?",
    ),
    (
        "Can I earn money with {t}?",
        "Is it possible to make a living from {t}?",
        "Does {t} pay as a job?",
        "Could {t} become a career?",
    ),
)


def _qqp(rng: random.Random, subset: str) -> Record:
    duplicate = rng.random() < 0.4  # duplicates are the fewer ones in GLUE too
    intent, topic, place = rng.choice(_INTENTS), rng.choice(_TOPICS), rng.choice(_PLACES)
    first, second = rng.sample(intent, 2)
    other = topic
    if not duplicate and rng.random() < 0.3:
        other = rng.choice([t for t in _TOPICS if t != topic])
    elif not duplicate:
        second = rng.choice(rng.choice([i for i in _INTENTS if i != intent]))
    questions = (first.format(t=topic + place), second.format(t=other + place))
    return questions, str(int(duplicate))


# --- MNLI: entailment, neutral, contradiction ---------------------------------------------------
_GENRES = {
    "": _words("doctor, teacher, farmer, painter, lawyer, baker, nurse, pilot"),
    "mismatched": _words("sailor, miner, tailor, judge, barber, soldier, clerk, porter"),
}
_ACTIONS = (
    ("sold the old {o}", "sold something", "bought the old {o}"),
    ("repaired the broken {o}", "repaired something", "broke the {o} on purpose"),
    ("found the lost {o}", "found something", "never found the {o}"),
    ("carried the heavy {o}", "carried something", "left the {o} behind"),
    ("painted the wooden {o}", "painted something", "refused to paint the {o}"),
)
_OBJECTS = _words("chair, bicycle, piano, boat, table, clock, ladder, cupboard, trunk, bench")
_TIMES = _words("in the morning, after lunch, before the storm, on Friday, late at night")
_GUESSES = _words(
    "because of the money, to please a friend, for the first time, without any help, and was proud"
)


def _mnli(rng: random.Random, subset: str) -> Record:
    person, thing = rng.choice(_GENRES[subset]), rng.choice(_OBJECTS)
    done, weaker, opposite = rng.choice(_ACTIONS)
    time = rng.choice(_TIMES)
    label = rng.choice(("entailment", "neutral", "contradiction"))
    does = done.format(o=thing)
    if label == "entailment":
        said = rng.choice((f"The {person} {weaker}.", f"The {person} {does}."))
    elif label == "neutral":
        said = f"The {person} {rng.choice((does, weaker))} {rng.choice(_GUESSES)}."
    else:
        said = rng.choice(
            (
                f"The {person} {opposite.format(o=thing)}.",
                f"The {person} did nothing with the {thing} {time}.",
            )
        )
    return (f"The {person} {does} {time}.", said), label


# --- files --------------------------------------------------------------------------------------
_GRAMMARS: dict[str, Callable[[random.Random, str], Record]] = {
    "sst2": _sst2,
    "qnli": _qnli,
    "qqp": _qqp,
    "mnli": _mnli,
}
# By task: header, and the fields before the texts, between texts and label (annotators' labels).
_HEADERS = {
    "sst2": "sentence label",
    "qnli": "index question sentence label",
    "qqp": "id qid1 qid2 question1 question2 is_duplicate",
    "mnli": "index promptID pairID genre sentence1 sentence2 label1 gold_label",
}


def _fields(name: str, number: int, subset: str, record: Record) -> list[str]:
    texts, label = record
    before = {
        "sst2": [],
        "qnli": [str(number)],
        "qqp": [str(number), str(2 * number), str(2 * number + 1)],
        "mnli": [str(number), f"{number}", f"{number}x", f"generated{subset}"],
    }
    return [*before[name], *texts, *([label] if name == "mnli" else []), label]


def generate(name: str, train: int, dev: int, seed: int = 0) -> Iterator[tuple[str, list[Record]]]:
    """Records by file name; no record is in two files, nor twice in one.

    Args:
        name: ``sst2``, ``qnli``, ``qqp`` or ``mnli``.
        train: records of ``train.tsv``.
        dev: records of ``dev.tsv``, or of each of ``dev_matched.tsv`` and ``dev_mismatched.tsv``.
        seed: another seed gives other records, the same on every machine.
    """
    # hash() of a string differs between processes; a digest does not.
    digest = hashlib.sha256(f"glue-sample-1\x1f{name}\x1f{seed}".encode()).digest()
    rng = random.Random(int.from_bytes(digest, "big"))
    files = {"train.tsv": (train, ""), "dev.tsv": (dev, "")}
    if name == "mnli":
        files = {
            "train.tsv": (train, ""),
            "dev_matched.tsv": (dev, ""),
            "dev_mismatched.tsv": (dev, "mismatched"),
        }
    seen: set[tuple[str, ...]] = set()
    for file, (count, subset) in files.items():
        records: list[Record] = []
        while len(records) < count:
            record = _GRAMMARS[name](rng, subset)
            if record[0] not in seen:
                seen.add(record[0])
                records.append(record)
        yield file, records


def write(name: str, folder: Path, seed: int = 0, *, train: int = TRAIN, dev: int = DEV) -> None:
    """Write the files of a task into ``folder``, which is made if absent."""
    folder.mkdir(parents=True, exist_ok=True)
    header = _HEADERS[name].split(" ")
    for file, records in generate(name, train, dev, seed):
        subset = "-mismatched" if "mismatched" in file else ""
        rows = [_fields(name, number, subset, record) for number, record in enumerate(records)]
        lines = ["\t".join(row) + "\n" for row in [header, *rows]]
        # newline: the same bytes on every system.
        with (folder / file).open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(lines)
