"""Generated records in the layout of four GLUE tasks, so that these run offline.

Every sentence comes from the small grammars below; none is GLUE's. A model learns them above chance
from a few hundred records, but not from single words alone: negation turns a sentiment, and pairs
have to be compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from dpft.tasks.samples.grammar import generator, vocabulary

TRAIN, DEV = 2000, 300
Record = tuple[tuple[str, ...], str]  # texts and label, as the file spells it


_TEXT = vocabulary("glue")


def _clause(rng: random.Random, good: bool) -> str:
    words = _TEXT["sst2"]
    negated = rng.random() < 0.25
    frame = rng.choice(words["negated" if negated else "plain"])
    adjective = rng.choice(words["good" if good != negated else "bad"])
    if rng.random() < 0.5 and not negated:
        adjective = f"{rng.choice(words['degrees'])} {adjective}"
    return str(frame.format(s=rng.choice(words["subjects"]), a=adjective))


def _sst2(rng: random.Random, subset: str) -> Record:
    """Sentiment."""
    good = rng.random() < 0.5
    text = _clause(rng, good)
    roll = rng.random()
    if roll < 0.4:
        text = f"{text} , and {_clause(rng, good)}"
    elif roll < 0.6:  # what stands after "although" does not decide
        text = f"although {_clause(rng, not good)} , {text}"
    return (f"{text} .",), str(int(good))


def _qnli(rng: random.Random, subset: str) -> Record:
    """Is the answer in the sentence?"""
    words = _TEXT["qnli"]
    kinds = list(words["facts"])
    buildings = [f"{name} {kind}" for name in words["names"] for kind in words["kinds"]]
    asked, building = rng.choice(kinds), rng.choice(buildings)
    entailed = rng.random() < 0.5
    stated = asked if entailed else rng.choice([kind for kind in kinds if kind != asked])
    sentence = rng.choice(words["facts"][stated]["sentences"]).format(
        b=building,
        year=rng.randint(1700, 1999),
        town=rng.choice(words["towns"]),
        person=rng.choice(words["people"]),
        sum=f"{rng.randint(2, 99)},000",
    )
    question = rng.choice(words["facts"][asked]["questions"]).format(b=building)
    return (question, sentence), "entailment" if entailed else "not_entailment"


def _qqp(rng: random.Random, subset: str) -> Record:
    """Do two questions ask the same?"""
    intents, topics, places = (_TEXT["qqp"][kind] for kind in ("intents", "topics", "places"))
    duplicate = rng.random() < 0.4  # duplicates are the fewer ones in GLUE too
    intent, topic, place = rng.choice(intents), rng.choice(topics), rng.choice(places)
    first, second = rng.sample(intent, 2)
    other = topic
    if not duplicate and rng.random() < 0.3:
        other = rng.choice([t for t in topics if t != topic])
    elif not duplicate:
        second = rng.choice(rng.choice([i for i in intents if i != intent]))
    questions = (first.format(t=topic + place), second.format(t=other + place))
    return questions, str(int(duplicate))


def _mnli(rng: random.Random, subset: str) -> Record:
    """Does the second sentence follow, may it be, or is it contradicted?"""
    words = _TEXT["mnli"]
    person = rng.choice(words["people_mismatched" if subset else "people"])
    thing = rng.choice(words["objects"])
    does, weaker, opposite = (text.format(o=thing) for text in rng.choice(words["actions"]))
    time = rng.choice(words["times"])
    label = rng.choice(("entailment", "neutral", "contradiction"))
    if label == "entailment":
        clause = rng.choice((weaker, does))
    elif label == "neutral":
        clause = f"{rng.choice((does, weaker))} {rng.choice(words['guesses'])}"
    else:
        clause = rng.choice((opposite, f"did nothing with the {thing} {time}"))
    return (f"The {person} {does} {time}.", f"The {person} {clause}."), label


# --- files --------------------------------------------------------------------------------------
_GRAMMARS: dict[str, Callable[[random.Random, str], Record]] = {
    "sst2": _sst2,
    "qnli": _qnli,
    "qqp": _qqp,
    "mnli": _mnli,
}
# By task: the header, and a row's fields.
_COLUMNS = {
    "sst2": ("sentence label", "{0} {label}"),
    "qnli": ("index question sentence label", "{n} {0} {1} {label}"),
    "qqp": (
        "id qid1 qid2 question1 question2 is_duplicate",
        "{n} {first} {second} {0} {1} {label}",
    ),
    "mnli": (
        "index promptID pairID genre sentence1 sentence2 label1 gold_label",
        "{n} {n} {n}x generated{subset} {0} {1} {label} {label}",
    ),
}


def generate(name: str, train: int, dev: int, seed: int = 0) -> Iterator[tuple[str, list[Record]]]:
    """Records by file name; no record is in two files, nor twice in one."""
    rng = generator("glue-sample-1", name, seed)
    files = {"train.tsv": (train, ""), "dev.tsv": (dev, "")}
    if name == "mnli":
        del files["dev.tsv"]
        files |= {"dev_matched.tsv": (dev, ""), "dev_mismatched.tsv": (dev, "mismatched")}
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
    """Write the files of a task into ``folder``."""
    header, row = (f"{columns}\n".replace(" ", "\t") for columns in _COLUMNS[name])
    for file, records in generate(name, train, dev, seed):
        gaps = {"subset": "-mismatched" if "mismatched" in file else ""}
        # newline: the same bytes on every system.
        with (folder / file).open("w", encoding="utf-8", newline="\n") as out:
            out.write(header)
            for n, (texts, label) in enumerate(records):
                line = row.format(*texts, label=label, n=n, first=2 * n, second=2 * n + 1, **gaps)
                out.write(line)
