"""Read what a page of runs is made from, and compare them; nothing is changed in their folders.

Guarantee: no file under a run's ``private/`` is opened, so nothing that is computed from training
records without noise can reach the page. Texts are read only of data that are generated or
published, see `samples`.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

from dpft.config.errors import DpftError
from dpft.config.flags import TRAINED_BASE, Flag, has
from dpft.config.folder import settings_of
from dpft.config.foreign import regular
from dpft.config.published import PUBLISHED_TASKS, is_other_size, is_part
from dpft.config.schema import SHORTHANDS, Effect, Run, names_with
from dpft.privacy.guarantee import Guarantee
from dpft.privacy.spec import style_in
from dpft.runs.atomic import parse_json
from dpft.runs.folders import (
    CONFIG,
    GENERATIONS,
    LEDGER,
    RECORD,
    damages,
    generations_files,
    is_set_aside,
)
from dpft.runs.ledger import LedgerContents, read_ledger
from dpft.runs.record import read_record
from dpft.tasks.scores import impossible_share, lower_is_better, score, shown

T = TypeVar("T")
_DO_NOT_RELY = "do not rely on the guarantee before you know why"
_CHOICES = ("task.name", "model.name", "adapt.name", "clip.plan", "clip.groups", "optim.name")
_SEEDS = ("seed", "privacy.noise_seed")
# The folders of an absolute path; a space ends a path within a text.
_FOLDERS = re.compile(r"(?<![\w.:/…])(?:~|/|[A-Za-z]:\\)[^\s'\",\]]*[/\\]")


@dataclass(frozen=True)
class Target:
    """One run, or a point of a sweep that may have none yet."""

    path: Path
    name: str  # unique on the page, without folders of the machine
    label: str | None = None  # its settings as typed in a sweep
    state: str | None = None  # of the point
    error: str | None = None  # why it failed. It may quote the data, so it is on no page


@dataclass(frozen=True)
class Found:
    """The runs that a report is about, at least one."""

    title: str
    folder: Path  # where the page goes by default
    targets: tuple[Target, ...]
    several: bool  # whether the page is one of several runs, even if only one was found


@dataclass(frozen=True)
class Gathered:
    """One run as far as it can be read."""

    target: Target
    record: Mapping[str, Any] | None  # None until it is trained, or if it is damaged
    ledger: LedgerContents | None  # None where nothing is private, or if it is damaged
    config: Mapping[str, Any]  # empty if there is none
    problems: tuple[str, ...]  # what is damaged
    ledger_is_damaged: bool  # there is one, from which no cost can be read
    samples: Mapping[tuple[str, str], str]  # generations by prompt and reference

    @property
    def name(self) -> str:
        """The name of the run on the page."""
        return self.target.name

    @property
    def stage(self) -> str:
        """The progress of the run, in words."""
        if self.record is None:
            return f"unfinished: {self.target.state}" if self.target.state else "unfinished"
        scored = self.record.get("stage") == "scored"
        return "finished" if scored else "unfinished: trained, not scored yet"

    @property
    def mechanism(self) -> Mapping[str, Any]:
        """The mechanism of the record, or of the ledger while there is no record."""
        header = None if self.ledger is None else self.ledger.header
        return section(header if self.record is None else self.record, "mechanism")

    @property
    def guarantee(self) -> Guarantee | None:
        """The statement of its record; None while there is none."""
        return None if self.record is None else Guarantee.of_record(self.record)

    @property
    def private(self) -> bool:
        """Return whether any guarantee holds, or will."""
        given = self.guarantee
        return bool(self.mechanism.get("private")) if given is None else given.private


def section(mapping: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """Return a part of a mapping; an empty one if it is missing or no mapping."""
    value = (mapping or {}).get(name)
    return value if isinstance(value, Mapping) else {}


def gather(target: Target) -> Gathered:
    """Read one run; what is damaged becomes a line of its ``problems``."""
    path, problems = target.path, list[str]()

    def report(problem: Exception | str) -> None:
        text = str(problem)  # without the folders of this machine
        for folder in (path, path.absolute(), path.resolve()):
            text = text.replace(f"{folder}/", "").replace(str(folder), "this run")
        problems.append(text)

    def read(name: str, make: Callable[[], T]) -> T | None:
        if not (path / name).exists():
            return None
        try:
            return make()
        except (DpftError, OSError, ValueError) as error:
            report(error)
            return None

    record = read("record.json", lambda: read_record(path))
    ledger = read("ledger.jsonl", lambda: read_ledger(path / "ledger.jsonl"))
    file = path / "identity.json"
    identity = read(file.name, lambda: parse_json(regular(file).read_bytes()))
    identity = identity if isinstance(identity, dict) else {}
    texts = read("generations", lambda: {} if record is None else samples(path, record))
    for problem in _disagreements(record, ledger) if record is not None else ():
        report(problem)
    for damage in damages(path, (RECORD, LEDGER, CONFIG, GENERATIONS)):
        report(
            f"{damage}, though the run was finished: do not rely on it before you know why; "
            "dpft train resume=RUN makes again what can be made again"
        )
    return Gathered(
        target=target,
        record=record,
        ledger=ledger,
        config=section(record or identity, "config"),
        problems=tuple(problems),
        ledger_is_damaged=ledger is None and (path / "ledger.jsonl").exists(),
        samples=texts or {},
    )


def siblings(run: Gathered) -> list[Gathered]:
    """Return the undamaged runs in the folder of a run that have its task and no privacy.

    Ledgers, checksums and generations are read of these alone: a folder may hold hundreds of runs.
    """
    own, found = run.target.path.resolve(), list[Gathered]()
    for path in sorted(own.parent.iterdir()):
        with suppress(DpftError, OSError, ValueError, LookupError, TypeError):  # not trained
            record = parse_json(regular(path / RECORD).read_bytes())
            same = record["config"]["task"] == run.config.get("task")
            other = path != own and not path.is_symlink() and not is_set_aside(path)
            if other and same and record["privacy"]["kind"] != "private":
                found.append(gather(Target(path, path.name)))
    return [other for other in found if not other.problems]


def published(record: Mapping[str, Any], split: str) -> bool:
    """Return whether all that a run's model has seen, and its prompts, are generated or published.

    A record has a digest of its references only where the task's data are public. Files in the
    form of a published task may hold other data, so that both splits must be as large as published.
    """
    data, of = record["dataset"], section(section(record, "scores"), split)
    other = has(record["flags"], *TRAINED_BASE, Flag.SYNTHETIC_DATA, Flag.OTHER_FILES)
    if other or not of.get("references"):
        return False
    if data["source"] == "sample":
        return True
    if data["task"] not in PUBLISHED_TASKS or is_part(record, split):
        return False
    size = (settings_of("task", data["task"]) or {}).get("train_size")
    return size is not None and not is_other_size(data["counts"]["train"], size)


def samples(path: Path, record: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return three generations by prompt and reference, evenly spread; none if not `published`."""
    split = record["config"]["decode"]["split"]
    file = generations_files(path, record).get(split)
    if file is None or not file.exists() or not published(record, split):
        return {}
    # Not splitlines: texts may hold other line separators, unescaped in JSON.
    lines = regular(file).read_text(encoding="utf-8").rstrip("\n").split("\n")
    try:
        every = [json.loads(lines[len(lines) * third // 3]) for third in range(3)]
        texts = [(str(x["source"]), str(x["references"][0]), str(x["prediction"])) for x in every]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} has a line that is no prediction") from error
    return {(asked, wanted): said for asked, wanted, said in texts if asked and said}


def _disagreements(record: Mapping[str, Any], ledger: LedgerContents | None) -> Iterator[str]:
    if wrong := impossible_share(record):
        yield f"record.json: {wrong}: restore it from a copy"
    if ledger is None:
        return
    # The header is written where a run starts: it does not count steps that were repeated.
    parts = (section(one, "mechanism") for one in (ledger.header, record))
    under, stated_under = ({k: v for k, v in one.items() if k != "repeated"} for one in parts)
    if under != stated_under:
        unlike = "was spent under another mechanism than record.json states"
        yield f"ledger.jsonl {unlike}: {_DO_NOT_RELY}"
    taken = record["privacy"]["steps_taken"]
    spent, rdp = ledger.epsilon, section(record["privacy"], "epsilon").get("rdp")
    if ledger.steps_spent != taken:
        yield f"ledger.jsonl has {ledger.steps_spent} steps, record.json {taken}: {_DO_NOT_RELY}"
    elif rdp is not None and spent is not None and not math.isclose(rdp, spent, rel_tol=1e-6):
        yield f"ledger.jsonl ends at epsilon {spent}, record.json states {rdp}: {_DO_NOT_RELY}"


class Kind(NamedTuple):
    """The task, split and metric of a score: those of another kind are not comparable with it."""

    task: str
    split: str
    metric: str
    lower: bool = False  # whether lower scores are better


Scored = tuple[Kind, float] | None


def ranked(runs: Sequence[Gathered]) -> list[tuple[Gathered, Scored]]:
    """Sort runs by their first score, the best of one kind first, those without a score last."""
    found = [(run, first_score(run)) for run in runs]
    kinds = [scored[0] for _, scored in found if scored is not None]

    def rank(item: tuple[Gathered, Scored]) -> tuple[int, float]:
        if item[1] is None:
            return len(kinds), 0.0
        kind, value = item[1]
        return kinds.index(kind), value if kind.lower else -value

    return sorted(found, key=rank)


def metrics(run: Gathered) -> dict[str, float | None]:
    """Return the scores of the split that was decoded; None is not finite."""
    split = str(section(run.config, "decode").get("split"))
    scored = section(section(run.record, "scores"), split)
    return {
        name: value if value is None else shown(name, value, scored.get("signature"))
        for name, value in section(scored, "metrics").items()
    }


def first_score(run: Gathered) -> Scored:
    """Return the first score of the split that was decoded; None if it was not scored."""
    try:
        name, _ = score(run.record or {}, None)
    except (DpftError, LookupError):  # not scored
        return None
    value = metrics(run).get(name)
    task, split = section(run.config, "task").get("name"), run.config["decode"]["split"]
    lower = section(section(run.record, "scores"), str(split)).get("lower") or ()
    kind = Kind(str(task), str(split), name, lower_is_better(name, lower))
    return None if value is None else (kind, value)


def references(run: Gathered, others: Sequence[Gathered]) -> dict[str, tuple[Gathered, float]]:
    """Return the best run without privacy and one that was not trained, with their scores.

    Only runs of the same base model and task settings, scored on the same records.
    """

    def scale(one: Gathered) -> list[Any]:
        kind, _ = first_score(one) or (None, None)
        of = section(section(one.record, "scores"), kind.split if kind else "")
        base = section(one.record, "model").get("weights_sha256") or one.config.get("model")
        return [kind, base, one.config.get("task"), of.get("examples"), of.get("references")]

    names = {"none": "without privacy", "nothing released": "before training"}
    found: dict[str, tuple[Gathered, float]] = {}
    for other, scored in ranked(others):
        how = names.get(other.guarantee.kind) if other.guarantee is not None else None
        if how and scored and other is not run and scale(other) == scale(run):
            found.setdefault(how, (other, scored[1]))
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return settings in which runs differ, choices first: key to the value of each, as text.

    A setting that a run does not have counts as null; the budget of a run without privacy does not
    count. Both are a dash. Seeds are left out.
    """
    each = [compared(config) for config in configs]
    found: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for settings in each for key in settings):
        asked = [settings for settings in each if settings]
        if key.startswith("privacy."):
            asked = [s for s in asked if any(other.startswith("privacy.") for other in s)]
        # 3 and 3.0 are one number, as in a configuration's hash.
        distinct = {json.dumps(s.get(key), default=str).removesuffix(".0") for s in asked}
        if len(distinct) > 1 and key not in _SEEDS:
            found[key] = [value_text(s[key]) if key in s else "–" for s in each]
    return dict(sorted(found.items(), key=lambda item: item[0] not in _CHOICES))


def compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by which runs are distinguished, by dotted key."""
    clip = section(config, "clip")
    private = clip.get("plan") != "none"
    if "plan" in clip:  # the name of the style says more than its parts
        others = {name: clip[name] for name in clip if name not in ("plan", "groups", "adaptive")}
        config = {**config, "clip": {"style": style_in(clip), **others}}
    ignored = names_with(Run, Effect.PLACE, Effect.EXECUTION) | SHORTHANDS.keys()
    return {
        key: value
        for key, value in flat(config).items()
        if key.partition(".")[0] not in ignored and (private or not key.startswith("privacy."))
    }


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        whole = f"{prefix}{key}"
        found |= flat(value, f"{whole}.") if isinstance(value, Mapping) else {whole: value}
    return found


def value_text(value: Any) -> str:
    """Return a setting's value as text, without the folders of a machine."""
    if isinstance(value, str):
        whole = value.startswith(("/", "~"))  # one path, blanks and commas included
        return f"…/{PurePath(value).name}" if whole else without_folders(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


def without_folders(text: str) -> str:
    """Return text in which only the last part is left of every absolute path."""
    return _FOLDERS.sub("…/", text)
