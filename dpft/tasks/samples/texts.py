"""Generated samples of DART, GLUE, Persona-Chat and SAMSum, and notes for tasks on own files.

Everything in them is made up, from the words in the YAML files of this folder; only the forms are
the published ones. A sample is a function of its seed, the same on every machine.
"""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpft.tasks.samples import Words, generator, vocabulary
from dpft.tasks.table_files import write_lines

# --- DART: a bridge, a song, a player or a ship -------------------------------------------------
# The triples of an entry are a small tree: facts about the thing, and often one fact about what the
# first of them names (the river under the bridge, the town of the club).

Triple = tuple[str, str, str]
Entry = tuple[tuple[Triple, ...], tuple[str, ...]]
_DART = vocabulary("dart")
_DART_RECORDS, _DART_ENTRIES = 1500, 150
_MOST_FACTS = 3  # so that a record fits the task's length with the bundled model's tokenizer


def _values(values: str | list[int]) -> Sequence[str]:
    """Return a list by its name, or the numbers of a range."""
    listed: Words = _DART[values] if isinstance(values, str) else [*map(str, range(*values))]
    return listed


def _entry(rng: random.Random) -> Entry:
    kind = rng.choice(list(_DART["kinds"]))
    facts, about_first = _DART["kinds"][kind]["facts"], _DART["kinds"][kind]["about_first"]
    names = [f"{first} {last}" for first in _DART["first"] for last in _DART["last"]]
    name = rng.choice(_values("people") if kind == "player" else names)
    chosen = sorted(rng.sample(range(len(facts)), rng.randint(1, _MOST_FACTS)))
    triples = [
        (name, facts[i]["relation"], rng.choice(_values(facts[i]["values"]))) for i in chosen
    ]
    phrases = [facts[i]["phrases"] for i in chosen]
    further: Triple | None = None
    if chosen[0] == 0 and len(chosen) < _MOST_FACTS and rng.random() < 0.6:
        value = rng.choice(_values(about_first["values"]))
        further = (triples[0][2], about_first["relation"], value)
    subject = name if kind == "player" else f"The {kind} {name}"

    def sentence() -> str:
        *before, last = (
            rng.choice(ways).format(triple[2])
            for ways, triple in zip(phrases, triples, strict=True)
        )
        text = f"{subject} {', '.join(before)} and {last}." if before else f"{subject} {last}."
        if further is not None:
            clause = rng.choice(about_first["phrases"]).format(further[2])
            article = "The " if further[0].startswith("River") else ""
            text += f" {article}{further[0]} {clause}."
        return text

    wanted = rng.randint(1, 3)
    references = dict.fromkeys(sentence() for _ in range(4 * wanted))
    whole = (*triples, further) if further is not None else tuple(triples)
    return whole, tuple(references)[:wanted]


def write_dart(folder: Path, seed: int = 0) -> None:
    """Write ``dart-v1.1.1-full-{train,dev,test}.json``; no triple set comes twice."""
    rng = random.Random(f"dart sample 1 {seed}")
    seen: set[tuple[Triple, ...]] = set()
    for split in ("dev", "test", "train"):
        entries: list[Entry] = []
        records = 0
        while records < _DART_RECORDS if split == "train" else len(entries) < _DART_ENTRIES:
            triples, references = _entry(rng)
            if triples in seen:
                continue
            seen.add(triples)
            if split == "train":
                references = references[: _DART_RECORDS - records]
            records += len(references)
            entries.append((triples, references))
        write_triples(folder / f"dart-v1.1.1-full-{split}.json", entries, source="generated")


def write_triples(
    path: Path, items: Iterable[tuple[Sequence[Triple], Sequence[str]]], source: str
) -> None:
    """Write triple sets with their references in the form of the published JSON."""
    listed = [
        {
            "tripleset": [list(triple) for triple in triples],
            "annotations": [{"source": source, "text": text} for text in texts],
        }
        for triples, texts in items
    ]
    path.write_text(json.dumps(listed, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


# --- GLUE ---------------------------------------------------------------------------------------
# A model learns these above chance from a few hundred records, but not from single words alone:
# negation turns a sentiment, and pairs have to be compared.

Labelled = tuple[tuple[str, ...], str]  # texts and label, as the file has it
_GLUE = vocabulary("glue")


def _clause(rng: random.Random, good: bool) -> str:
    words = _GLUE["sst2"]
    negated = rng.random() < 0.25
    frame = rng.choice(words["negated" if negated else "plain"])
    adjective = rng.choice(words["good" if good != negated else "bad"])
    if rng.random() < 0.5 and not negated:
        adjective = f"{rng.choice(words['degrees'])} {adjective}"
    return str(frame.format(s=rng.choice(words["subjects"]), a=adjective))


def _sst2(rng: random.Random, subset: str) -> Labelled:
    good = rng.random() < 0.5
    text = _clause(rng, good)
    roll = rng.random()
    if roll < 0.4:
        text = f"{text} , and {_clause(rng, good)}"
    elif roll < 0.6:  # what follows "although" does not decide
        text = f"although {_clause(rng, not good)} , {text}"
    return (f"{text} .",), str(int(good))


def _qnli(rng: random.Random, subset: str) -> Labelled:
    words = _GLUE["qnli"]
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


def _qqp(rng: random.Random, subset: str) -> Labelled:
    intents, topics, places = (_GLUE["qqp"][kind] for kind in ("intents", "topics", "places"))
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


def _mnli(rng: random.Random, subset: str) -> Labelled:
    words = _GLUE["mnli"]
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


# By task: how a record is drawn, the header, and a row's fields.
_TASKS: dict[str, tuple[Callable[[random.Random, str], Labelled], str, str]] = {
    "sst2": (_sst2, "sentence label", "{0} {label}"),
    "qnli": (_qnli, "index question sentence label", "{n} {0} {1} {label}"),
    "qqp": (
        _qqp,
        "id qid1 qid2 question1 question2 is_duplicate",
        "{n} {first} {second} {0} {1} {label}",
    ),
    "mnli": (
        _mnli,
        "index promptID pairID genre sentence1 sentence2 label1 gold_label",
        "{n} {n} {n}x generated{subset} {0} {1} {label} {label}",
    ),
}


def write_glue(name: str, folder: Path, seed: int = 0) -> None:
    """Write the files of a task; no record is in two files, nor twice in one."""
    draw, header, fields = _TASKS[name]
    rng = generator("glue-sample-1", name, seed)
    files = {"train.tsv": (2000, ""), "dev.tsv": (300, "")}
    if name == "mnli":
        del files["dev.tsv"]
        files |= {"dev_matched.tsv": (300, ""), "dev_mismatched.tsv": (300, "mismatched")}
    seen: set[tuple[str, ...]] = set()
    row = f"{fields}\n".replace(" ", "\t")
    for file, (count, subset) in files.items():
        lines = [f"{header}\n".replace(" ", "\t")]
        while (n := len(lines) - 1) < count:
            texts, label = draw(rng, subset)
            if texts not in seen:
                seen.add(texts)
                gaps = {"subset": f"-{subset}" if subset else "", "label": label, "n": n}
                lines.append(row.format(*texts, first=2 * n, second=2 * n + 1, **gaps))
        # newline: the same bytes on every system.
        (folder / file).write_text("".join(lines), encoding="utf-8", newline="\n")


# --- Persona-Chat -------------------------------------------------------------------------------
# A reply follows from the persona or from what the partner has just said, so that F1 can be
# learned. A tenth of the dialogues begin with the persona's owner, after the marker of a silent
# partner. No persona is in both files, nor twice in one.

SILENCE = "__SILENCE__"
_PERSONAS = vocabulary("personachat")
TOPICS = _PERSONAS["topics"]
_TRAIN_DIALOGUES, _DEV_DIALOGUES, _DISTRACTORS = 800, 100, 4

Dialogue = tuple[list[str], list[tuple[str, str]]]


def _dialogues(count: int, seed: int) -> list[Dialogue]:
    """Return personas, and exchanges of utterance and reply."""
    rng = random.Random(f"personachat-sample-1 {seed}")
    made: dict[frozenset[str], Dialogue] = {}
    while len(made) < count:
        facts = [
            (topic, rng.choice(topic["values"])) for topic in rng.sample(TOPICS, rng.randint(3, 5))
        ]
        persona = [topic["fact"].format(value) for topic, value in facts]
        if frozenset(persona) not in made:
            made[frozenset(persona)] = persona, _exchanges(facts, rng)
    return list(made.values())


def _exchanges(
    facts: list[tuple[dict[str, Words], str]], rng: random.Random
) -> list[tuple[str, str]]:
    def answer(topic: dict[str, Words], value: str) -> str:
        return rng.choice(topic["answers"]).format(value)

    def stated(topic: dict[str, Words], value: str) -> str:
        return str(topic["fact"]).format(value).replace(".", " .")

    facts = rng.sample(facts, len(facts))
    topic, value = facts.pop()
    if rng.random() < 0.1:
        exchanges = [(SILENCE, rng.choice(_PERSONAS["openings"]))]
        begin = rng.choice(_PERSONAS["first_words"])
        exchanges.append((f"{begin} {rng.choice(topic['questions'])}", answer(topic, value)))
    else:
        fact = stated(topic, value)
        greeting = rng.choice(_PERSONAS["greetings"])
        exchanges = [(greeting, f"{rng.choice(_PERSONAS['well'])} {fact}")]
    for topic, value in facts[: rng.randint(2, 3)]:
        question = rng.choice(topic["questions"])
        if rng.random() < 0.5:
            exchanges.append((question, answer(topic, value)))
            continue
        # The partner states a fact first, and the reply takes it up.
        theirs = rng.choice([other for other in topic["values"] if other != value])
        praise = rng.choice(_PERSONAS["praise"]).format(theirs)
        utterance = f"{stated(topic, theirs)} {question}"
        exchanges.append((utterance, f"{praise} {answer(topic, value)}"))
    if rng.random() < 0.5:
        exchanges.append((rng.choice(_PERSONAS["goodbyes"]), rng.choice(_PERSONAS["last_words"])))
    return exchanges


def write_personachat(folder: Path, seed: int = 0) -> None:
    """Write ``train_self_original.txt`` and ``valid_self_original.txt`` in ParlAI's text format."""
    made = _dialogues(_TRAIN_DIALOGUES + _DEV_DIALOGUES, seed)
    rng = random.Random(f"personachat-sample-1 candidates {seed}")
    for name, chosen in (("train", made[:_TRAIN_DIALOGUES]), ("valid", made[_TRAIN_DIALOGUES:])):
        replies = sorted({reply for _, exchanges in chosen for _, reply in exchanges})
        lines = []
        for persona, exchanges in chosen:
            body = [f"your persona: {fact}" for fact in persona]
            for utterance, reply in exchanges:
                drawn = rng.sample(replies, _DISTRACTORS + 1)
                others = [other for other in drawn if other != reply][:_DISTRACTORS]
                body.append(f"{utterance}\t{reply}\t\t{'|'.join((*others, reply))}")
            lines += [f"{number} {line}\n" for number, line in enumerate(body, 1)]
        file = folder / f"{name}_self_original.txt"
        file.write_text("".join(lines), encoding="utf-8", newline="")


# --- SAMSum -------------------------------------------------------------------------------------
# A summary says who does what and when; all of it is in the dialogue.

_CHATS = vocabulary("samsum")


def _chat(rng: random.Random) -> tuple[list[str], str]:
    """Return the lines of a dialogue, and its summary."""
    a, b = rng.sample(_CHATS["names"], 2)
    scene = rng.choice(_CHATS["scenes"])
    gaps = {"a": a, "b": b}
    for gap, words in scene["draws"].items():
        gaps[gap] = rng.choice(_CHATS[words])
    if "time" in gaps:
        gaps["Time"] = gaps["time"].capitalize()

    def line(who: str, wordings: str | Words) -> str:
        text = wordings if isinstance(wordings, str) else rng.choice(wordings)
        return f"{gaps[who]}: {text.format_map(gaps)}"

    turns = [line(who, text) for turn in scene["turns"] for who, text in turn.items()]
    if rng.random() < 0.6:
        turns = [line("a", _CHATS["hello"]), line("b", _CHATS["back"]), *turns]
    return turns, scene["summary"].format_map(gaps)


def write_samsum(folder: Path, seed: int = 0) -> None:
    """Write ``train.json``, ``val.json`` and ``test.json``: different dialogues, lines in CR LF."""
    rng = random.Random(f"samsum-sample-1 {seed}")
    chats: dict[str, str] = {}
    while len(chats) < 1000:
        turns, summary = _chat(rng)
        chats["\r\n".join(turns)] = summary
    made = entries(chats.items())
    for name, chosen in (("train", made[:800]), ("val", made[800:900]), ("test", made[900:])):
        (folder / f"{name}.json").write_text(json.dumps(chosen, indent=1), encoding="utf-8")


def entries(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return dialogues with summaries in the form of the published JSON."""
    return [
        {"id": str(number), "dialogue": dialogue, "summary": summary}
        for number, (dialogue, summary) in enumerate(pairs)
    ]


NOTE_CLASSES = ("repair", "spare part", "opening hours", "thanks")

# Users of each split; in training some of them write much.
_USERS = MappingProxyType({"train": 120, "dev": 16, "test": 16})
_PATIENTS = 200
_MOST = 40

_NOTES = vocabulary("own")
_YEARS = range(1961, 2024)


class _Visitor:
    """A person with habits, who writes one record at each call of a task's method."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.rng = rng
        self.things = rng.sample(_NOTES["things"], 3)
        self.opening, self.closing = rng.choice(_NOTES["openings"]), rng.choice(_NOTES["closings"])
        self.day = rng.choice(_NOTES["days"])
        # Drawn by a separate generator, so that the records of other tasks stay the same.
        self.complaints = random.Random(f"{name} complaints").sample(_NOTES["complaints"], 3)

    def text2text(self) -> dict[str, str]:
        thing, (fault, cure) = self.rng.choice(self.things), self.rng.choice(_NOTES["faults"])
        year = self.rng.choice(_YEARS)
        return {
            "source": f"{thing} | {year} | {fault} | ready {self.day}",
            "target": (
                f"Your {thing} of {year} {fault} no more: we {cure}. "
                f"You can fetch it on {self.day}.{self.closing}"
            ),
        }

    def classification(self) -> dict[str, str]:
        thing, fault = self.rng.choice(self.things), self.rng.choice(_NOTES["faults"])[0]
        label = self.rng.choice(NOTE_CLASSES)
        message = {
            "repair": f"my {thing} {fault}, can you mend it?",
            "spare part": f"do you have {self.rng.choice(_NOTES['parts'])} for a {thing}?",
            "opening hours": f"until when are you open on {self.day}?",
            "thanks": f"the {thing} has run since {self.day}, what a joy!",
        }[label]
        return {"text": f"{self.opening}{message}{self.closing}", "label": label}

    def language_modeling(self) -> dict[str, str]:
        lines = []
        for day in self.rng.sample(_NOTES["days"], self.rng.randint(1, 4)):
            thing, (fault, cure) = self.rng.choice(self.things), self.rng.choice(_NOTES["faults"])
            lines.append(f"On {day} I brought a {thing} that {fault}. They {cure}.")
        return {"text": f"{' '.join(lines)}{self.closing}"}

    def chat(self) -> dict[str, Any]:
        turns = [("system", "You answer for a practice.")] if self.rng.random() < 0.5 else []
        for complaint, advice in self.rng.sample(self.complaints, self.rng.randint(1, 2)):
            days = self.rng.sample(_NOTES["days"], 2)
            turns += [
                ("user", f"{self.opening}I have {complaint} since {days[0]}. What can I do?"),
                ("assistant", f"{advice} If it is no better then, come on {days[1]}."),
            ]
        if self.closing:
            turns += [("user", self.closing.strip()), ("assistant", "Get well soon!")]
        return {"messages": [{"role": role, "content": text} for role, text in turns]}


def write_notes(kind: str, folder: Path, seed: int) -> None:
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
