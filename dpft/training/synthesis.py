"""Synthetic records: the sources that they are written for, sampling, and the side file.

The guarantee of training covers what the model learned. A source is copied into the synthetic
record as it is: no noise protects it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpft.config.errors import ConfigError, DataError
from dpft.config.schema import Decode
from dpft.models.load import LoadedModel
from dpft.privacy.guarantee import Guarantee
from dpft.report.guarantee import as_markdown as privacy_as_markdown
from dpft.runs.lineage import base_model
from dpft.tasks.base import Task
from dpft.tasks.objectives.causal import Causal
from dpft.tasks.objectives.chat import ChatObjective
from dpft.tasks.objectives.chat_writing import write_conversations
from dpft.tasks.objectives.decode import Written, decode
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.own_texts import TextToText

_POSTPROCESSING = (
    "The texts were sampled from the trained model, which is all that they know of the training "
    "records. Whatever is computed from a differentially private result, without the records, has "
    "the same guarantee: sampling costs no further privacy, however many texts are drawn, and "
    "neither does leaving some of them out, or training on them."
)
_NONE = "Handle the texts as you would the training records."
_CHOICES = (
    "sources=dev or sources=test (of the task's data; are they public?), sources=FILE (in the "
    "task's own form; its targets are not used), 'sources=[yes,no]' (typed here), or "
    "sources=sample (made up by the task's sample generator)"
)


@dataclass(frozen=True)
class Sources:
    """Rows whose sources are given to the model.

    Attributes:
        rows: in the task's form, one for each record to be written; None for a task whose texts
            have no source.
        distinct: how many different sources there are.
        origin: where they are from, in words.
        privacy: what is known of their privacy, in words.
        in_training: how many different ones are sources of training records too: a figure of
            private data; None where it was not counted.
    """

    rows: Sequence[Any] | None
    distinct: int
    origin: str
    privacy: str
    in_training: int | None = None


def find_sources(
    task: Task, choice: str | None, count: int, seed: int, check: bool = True
) -> Sources:
    """Draw ``count`` rows from ``choice``, each source as often as any other, up to one.

    Args:
        task: of the run.
        choice: what was asked for.
        count: how many rows.
        seed: of their order.
        check: whether to compare the sources with those of the training records. All records of
            the task are read for it, whatever part was trained on; not ``task.synthetic``, whose
            records have the guarantee of the run that wrote them, or none.

    Raises:
        ConfigError: for no choice, an unknown one, the training split, sources most of which are
            those of training records, or a task whose model writes no text.
        DataError: if the rows cannot be read.
    """
    if task.writes_nothing is not None:
        raise ConfigError(task.writes_nothing)
    if task.writes_whole:
        if choice is not None:
            raise ConfigError(f"task {task.name} writes texts without a source; leave sources out")
        return Sources(
            None, 0, "none: whole texts, from the end token on", "there are no sources to protect"
        )
    if choice is None:
        raise ConfigError(
            "no sources given: the model writes targets for sources, and those of the training "
            f"records are private themselves. Type {_CHOICES}"
        )
    if choice == "train":
        raise _refused("sources=train")
    rows, origin, privacy = _rows(task, choice, seed)
    distinct = list({text_record(task, row).source: row for row in rows}.values())
    random.Random(f"dpft sources {seed}").shuffle(distinct)
    chosen = [distinct[i % len(distinct)] for i in range(count)]
    known = None
    if check and choice != "sample" and not _is_typed(choice) and task.synthetic is None:
        known = _in_training(task, {text_record(task, row).source for row in distinct})
    return Sources(chosen, len(distinct), origin, privacy, known)


def _is_typed(choice: str | None) -> bool:
    """Return whether sources are typed in the command, as in ``sources=[yes,no]``."""
    return choice is not None and choice.startswith("[")


def text_record(task: Task, row: Any) -> TextRecord:
    """Return a row's source and target.

    Raises:
        ConfigError: if the task's records are not texts.
    """
    record = task.record(row)
    if not isinstance(record, TextRecord):
        raise ConfigError(
            f"records of task {task.name} are {type(record).__name__}; expected texts with a source"
        )
    return record


def _rows(task: Task, choice: str, seed: int) -> tuple[Sequence[Any], str, str]:
    user = "whether they are public is for the one who releases the file to say"
    if choice in ("dev", "test"):
        return (
            task.rows(choice),
            f"the {choice} split of {task.name} ({task.location[0]})",
            f"copied as they are, and not covered by the guarantee, which is for training records; "
            f"{user}",
        )
    if choice == "sample":
        # Another seed than that of the records which a run on the sample was trained on.
        return (
            task.sample_rows(task.sample_seed + 1 + seed),
            f"the sample generator of {task.name}",
            "made up by a program that reads no data: they carry no private information",
        )
    if _is_typed(choice):
        return (
            _typed(task, choice),
            f"typed with the command: {choice}",
            "copied as they are, and not covered by the guarantee: that they occur is known to "
            "whoever reads the file",
        )
    path = Path(choice)
    if not path.is_file():
        raise ConfigError(f"sources is {choice!r}, and there is no such file; expected {_CHOICES}")
    return (
        task.read_file(path),
        f"the file {path.name}",
        f"copied as they are, and not covered by the guarantee; {user}",
    )


def _typed(task: Task, choice: str) -> Sequence[Any]:
    if not isinstance(task, TextToText):
        raise ConfigError(
            f"sources is {choice}, and those of task {task.name} are no plain texts; expected one "
            "of the others, or a run of task=text2text"
        )
    try:
        texts = yaml.load(choice, Loader=yaml.BaseLoader)  # yes stays a word
    except yaml.YAMLError:
        texts = None
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise ConfigError(f"sources is {choice!r}; expected texts, as in 'sources=[yes,no]'")
    return task.source_rows(texts)


def _in_training(task: Task, sources: Collection[str]) -> int:
    """Count the sources that are those of training records: a figure of private data.

    Raises:
        ConfigError: if most are, or it cannot be told.
    """
    try:
        trained = {text_record(task, row).source for row in task.rows("train")}
    except DataError as error:
        raise ConfigError(
            "whether these sources are those of the training records cannot be told, since they "
            f"are not found: {error}. Type the command where the run's settings find them, or "
            "check_sources=false if you know that the sources are no training records"
        ) from error
    known = sum(source in trained for source in sources)
    if 2 * known > len(sources):
        raise _refused("these sources are mostly those of the training records. That")
    return known


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"{what} would copy the sources of the training records into the output, where no "
        f"guarantee covers them. Type {_CHOICES}"
    )


@dataclass(frozen=True)
class Synthetic:
    """What is written.

    Attributes:
        rows: whose sources are used; None where texts have no source.
        targets: the sampled texts, see `Task.write_records`.
        counts: of texts, as the side file states them.
    """

    rows: Sequence[Any] | None
    targets: Sequence[str]
    counts: Mapping[str, int]


class _Apart(tuple[int, ...]):
    """A prompt that equals no other: `decode` writes one text for all equal prompts."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def sample(
    task: Task,
    loaded: LoadedModel,
    rows: Sequence[Any] | None,
    count: int,
    settings: Decode,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
    system: str | None = None,
) -> tuple[list[Written], list[bool]]:
    """Sample a text for each of ``count`` prompts, each by itself; and return which was cut.

    Args:
        task: of the model.
        loaded: the model.
        rows: of the sources; None: every prompt is the end token alone.
        count: how many texts.
        settings: how to sample.
        seed: of the random numbers.
        advance: called with how many more texts are done.
        system: what conversations begin with; of task ``chat`` only.

    Raises:
        ConfigError: if the task has another objective than `Causal`.
    """
    objective = task.objective(loaded)
    if isinstance(objective, ChatObjective):
        talks = write_conversations(objective, loaded.model, count, settings, seed, system, advance)
        return talks, [False] * count
    if not isinstance(objective, Causal):
        raise ConfigError(
            f"the objective of task {task.name} is {type(objective).__name__}; expected Causal, "
            "which writes text from a prompt"
        )
    if rows is None:
        records = [TextRecord(("",), "")] * count
    else:
        records = [text_record(task, row) for row in rows]
    end = (loaded.text_tokenizer.eos_token_id,)
    found = objective.prompts(records, settings)
    prompts = [_Apart(prompt or end) for prompt, _ in found]
    written = decode(loaded.model, loaded.text_tokenizer, prompts, settings, seed, advance)
    return written, [lost > 0 for _, lost in found]


def keep(
    task: Task,
    rows: Sequence[Any] | None,
    written: Sequence[Written],
    cut: Sequence[bool],
    unique: bool,
) -> Synthetic:
    """Leave out empty texts and, if ``unique``, records that repeat one before them."""
    kept, seen, empty, duplicates = [], set(), 0, 0
    for place, target in enumerate(one.text for one in written):
        if not target.strip():
            empty += 1
            continue
        source = "" if rows is None else text_record(task, rows[place]).source
        if unique and (source, target) in seen:
            duplicates += 1
            continue
        seen.add((source, target))
        kept.append(place)
    return Synthetic(
        None if rows is None else [rows[place] for place in kept],
        [written[place].text for place in kept],
        {
            "asked": len(written),
            "written": len(kept),
            "empty_left_out": empty,
            "duplicates_left_out": duplicates,
            "stopped_before_their_end": sum(not written[place].finished for place in kept),
            "sources_cut_for_the_model": sum(cut[place] for place in kept),
        },
    )


def side_path(file: Path, kind: str = "json") -> Path:
    """Return the side file of synthetic records: for programs, or ``md`` to read."""
    return file.with_name(f"{file.name}.guarantee.{kind}")


def side_file(
    record: Mapping[str, Any],
    run_name: str,
    synthetic: Synthetic,
    sources: Sources,
    sampling: Mapping[str, Any],
    file_name: str,
    sha256: str,
) -> dict[str, Any]:
    """Return the side file's content; it names no folder of this machine.

    Args:
        record: of the run.
        run_name: its folder's name.
        synthetic: what was written.
        sources: what the model was given.
        sampling: settings and seed.
        file_name: of the synthetic records.
        sha256: of that file.
    """
    private = Guarantee.of_record(record).private
    base = record.get("model", {}).get("base_model")
    return {
        "file": file_name,
        "sha256": sha256,
        "records": dict(synthetic.counts),
        "run": {
            "name": run_name,
            "config_hash": record["config_hash"],
            "dpft": record["dpft"]["version"],
            "base_model": base_model(base) if base else None,
            "task": record["dataset"]["task"],
            "noise_seed": record.get("seeds", {}).get("noise"),
        },
        "private": private,
        "privacy": record["privacy"],
        "selection": record.get("selection"),
        "mechanism": record["mechanism"],
        "post_processing": _POSTPROCESSING if private else _NONE,
        "sources": {
            "origin": sources.origin,
            "distinct": sources.distinct,
            "privacy": sources.privacy,
        },
        "sampling": dict(sampling),
        "labels": list(record.get("labels", [])),
    }


def as_markdown(content: Mapping[str, Any]) -> str:
    """Return the same for readers; upper bounds on epsilon are rounded up."""
    records, run, sources = content["records"], content["run"], content["sources"]
    lines = [
        f"# {content['file']}",
        "",
        f"{records['written']:,} synthetic records of {run['task']}, sampled from run "
        f"`{run['name']}` (configuration `{run['config_hash']}`, base model {run['base_model']}, "
        f"dpft {run['dpft']}). Of {records['asked']:,} sampled texts, "
        f"{records['empty_left_out']:,} were empty or no conversation and "
        f"{records['duplicates_left_out']:,} repeated another record; they were left out. Of those "
        "written, "
        f"{records['stopped_before_their_end']:,} were stopped before they ended, and of "
        f"{records['sources_cut_for_the_model']:,} the source was too long for the model, which "
        "saw a part of it.",
        "",
        "## Privacy",
        "",
    ]
    guarantee = Guarantee.of_record(content)
    lines += [privacy_as_markdown(guarantee, []), "", content["post_processing"], ""]
    if guarantee.private:
        lines += [f"- Mind: {caveat}" for caveat in guarantee.caveats]
        search = "further search" if guarantee.selected else "the search"
        lines += [
            "- Not covered: other releases from the same training records, whose costs add up, and "
            f"{search} for settings; see the run's model card.",
        ]
    lines += [
        "",
        "## Sources",
        "",
        f"From {sources['origin']}; {sources['distinct']:,} distinct. They are "
        f"{sources['privacy']}."
        if sources["distinct"]
        else f"Sources: {sources['origin']}.",
        "",
        "## How they were sampled",
        "",
        ", ".join(f"{key}={value}" for key, value in content["sampling"].items()) + ".",
    ]
    if content["labels"]:
        lines += ["", f"Mind: {', '.join(content['labels'])}."]
    return "\n".join([*lines, "", f"SHA-256: `{content['sha256']}`", ""])
