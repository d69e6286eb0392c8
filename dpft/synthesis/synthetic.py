"""Synthetic records: their sources, sampling, the side file, and their overlap with training.

The guarantee of training covers what the model learned. A source is copied into the synthetic
record as it is: no noise protects it. The overlap is computed from training records without noise,
so it must not be published.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined, Template

from dpft.config.errors import ConfigError
from dpft.config.flags import sentences
from dpft.config.schema import Decode
from dpft.models.load import LoadedModel
from dpft.privacy.guarantee import Guarantee
from dpft.report.statements import as_markdown as privacy_as_markdown
from dpft.runs.atomic import sha256_file
from dpft.runs.lineage import base_model
from dpft.tasks.objectives.decode import decode
from dpft.tasks.objectives.generation import Causal
from dpft.tasks.objectives.record_types import LabelledText, TextRecord
from dpft.tasks.own_texts import TextToText
from dpft.tasks.task import Task

_POSTPROCESSING = (
    "The texts were sampled from the trained model, which is all that they know of the training "
    "records. Whatever is computed from a differentially private result, without the records, has "
    "the same guarantee: sampling costs no further privacy, however many texts are drawn, and "
    "neither does leaving some of them out, or training on them."
)
_NONE = "Handle the texts as you would the training records."
_CHOICES = (
    "sources=dev or sources=test (of the task's data; are they public?), sources=FILE (in the "
    "task's own form; its targets are not used), or 'sources=[yes,no]' (typed here)"
)
OVERLAP = 8  # words of a run that two texts have in common


@dataclass(frozen=True)
class Sources:
    """Rows whose sources are given to the model; None for texts without a source.

    ``distinct`` of them differ, and ``in_training`` of those, a figure of private data, are sources
    of training records too.
    """

    rows: Sequence[Any] | None
    distinct: int
    origin: str
    privacy: str
    in_training: int = 0


def find_sources(task: Task, choice: str | None, count: int, seed: int) -> Sources:
    """Draw ``count`` rows from the chosen sources, each source as often as any other, up to one."""
    if task.writes_nothing is not None:
        raise ConfigError(task.writes_nothing)
    if task.unconditional:
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
    copied = (
        "would copy the sources of the training records into the output, where no guarantee covers "
        f"them. Type {_CHOICES}"
    )
    if choice == "train":
        raise ConfigError(f"sources=train {copied}")
    privacy = (
        "copied as they are, and not covered by the guarantee, which is for training records; "
        "whether they are public is for the one who releases the file to say"
    )
    compared = task.synthetic is None
    if choice in ("dev", "test"):
        rows = task.rows(choice)
        origin = f"the {choice} split of {task.name} ({task.location[0]})"
    elif choice.startswith("["):
        try:
            texts = yaml.load(choice, Loader=yaml.BaseLoader)  # yes stays a word
        except yaml.YAMLError:
            texts = None
        typed = isinstance(task, TextToText) and texts and all(isinstance(t, str) for t in texts)
        if not typed:
            raise ConfigError(
                f"sources is {choice!r}; expected texts for a run of task=text2text, as in "
                "'sources=[yes,no]'"
            )
        assert isinstance(task, TextToText)
        rows, compared = task.source_rows(texts), False
        origin = f"typed with the command: {choice}"
    elif (path := Path(choice)).is_file():
        rows, origin = task.read_file(path), f"the file {path.name}"
    else:
        raise ConfigError(f"sources is {choice!r}, and there is no such file; expected {_CHOICES}")
    distinct = list({text_record(task, row).source: row for row in rows}.values())
    random.Random(f"dpft sources {seed}").shuffle(distinct)
    chosen = [distinct[i % len(distinct)] for i in range(count)]
    known = 0
    if compared:  # raises DataError where the training records are not found
        trained = {text_record(task, row).source for row in task.rows("train")}
        known = sum(text_record(task, row).source in trained for row in distinct)
        if 2 * known > len(distinct):
            raise ConfigError(
                f"these sources are mostly those of the training records. That {copied}"
            )
    return Sources(chosen, len(distinct), origin, privacy, known)


def text_record(task: Task, row: Any) -> TextRecord:
    """Return a row's source and target."""
    record = task.record(row)
    assert isinstance(record, TextRecord)  # of every task that writes for a source
    return record


class Apart(tuple[int, ...]):
    """A prompt that equals no other, since `decode` writes one text for all equal prompts."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class Synthetic:
    """Sampled texts, the rows whose sources they were written for, and counts of texts."""

    rows: Sequence[Any] | None
    targets: Sequence[str]
    counts: Mapping[str, int]


def sample(
    task: Task,
    loaded: LoadedModel,
    rows: Sequence[Any] | None,
    count: int,
    settings: Decode,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
) -> Synthetic:
    """Sample ``count`` texts, each by itself, and leave out those without a word.

    Without ``rows`` of sources, every prompt is the end token alone.
    """
    objective = task.objective(loaded)
    assert isinstance(objective, Causal)  # `find_sources` refuses other tasks
    records = [TextRecord(("",), "")] * count
    if rows is not None:
        records = [text_record(task, row) for row in rows]
    end = (loaded.text_tokenizer.eos_token_id,)
    found = objective.prompts(records, settings)
    prompts = [Apart(prompt or end) for prompt, _ in found]
    written = decode(loaded.model, loaded.text_tokenizer, prompts, settings, seed, advance)
    kept = [place for place, one in enumerate(written) if one.text.strip()]
    return Synthetic(
        None if rows is None else [rows[place] for place in kept],
        [written[place].text for place in kept],
        {
            "asked": count,
            "written": len(kept),
            "empty_left_out": count - len(kept),
            "stopped_before_their_end": sum(not written[place].finished for place in kept),
            "sources_cut_for_the_model": sum(found[place][1] > 0 for place in kept),
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
    """Return the side file's content; it names no folder of this machine."""
    private = Guarantee.of_record(record).private
    base = record.get("model", {}).get("base_model")
    return {
        **{"file": file_name, "sha256": sha256, "records": dict(synthetic.counts)},
        "run": {
            "name": run_name,
            "config_hash": record["config_hash"],
            "dpft": record["dpft"]["version"],
            "base_model": base_model(base) if base else None,
            "task": record["dataset"]["task"],
            "noise_seed": record.get("seeds", {}).get("noise"),
        },
        **{"private": private, "privacy": record["privacy"]},
        **{"selection": record.get("selection"), "mechanism": record["mechanism"]},
        "post_processing": _POSTPROCESSING if private else _NONE,
        "sources": {name: getattr(sources, name) for name in ("origin", "distinct", "privacy")},
        **{"sampling": dict(sampling), "flags": list(record.get("flags", []))},
    }


def as_markdown(content: Mapping[str, Any]) -> str:
    """Return the side file for readers; upper bounds on epsilon are rounded up."""
    guarantee = Guarantee.of_record(content)
    text = Path(__file__).with_name("guarantee.md").read_text(encoding="utf-8")
    page = Template(text, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    more = {"guarantee": guarantee, "privacy_text": privacy_as_markdown(guarantee, [])}
    return str(page.render(content, **more, labels=sentences(content["flags"])))


@dataclass(frozen=True)
class Generated:
    """A file of `dpft generate`, its side file's content, and the texts that the model wrote."""

    file: Path
    side: Mapping[str, Any]
    texts: Sequence[str]


def read_generated(task: Task, file: Path, config_hash: str) -> Generated:
    """Read synthetic records that the run of a configuration wrote."""
    if not file.is_file():
        raise ConfigError(f"{file} does not exist; expected records: type dpft generate first")
    stored = side_path(file)
    try:
        side = json.loads(stored.read_text(encoding="utf-8"))
        known = side["sha256"], side["run"]["config_hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{stored} cannot be read ({error}), so that no guarantee of these records is known; "
            "expected it as dpft generate wrote it"
        ) from error
    if known != (sha256_file(file), config_hash):
        what = "was changed since" if known[1] == config_hash else "was written by another run"
        raise ConfigError(
            f"{file} {what}, as {stored.name} shows; expected the file as dpft generate wrote it"
        )
    return Generated(file, side, [written_text(record) for record in task.records_of(file)])


def written_text(record: Any) -> str:
    """Return the part of a record that a model writes."""
    if isinstance(record, TextRecord):
        return record.target
    if isinstance(record, LabelledText):
        return record.source
    raise ConfigError(f"got records of {type(record).__name__}; expected texts")


@dataclass(frozen=True)
class Overlap:
    """The shares of some texts that occur in training records.

    ``runs`` is the share of the texts' runs of `OVERLAP` words, None if there are no runs;
    ``holding`` that of texts with such a run, ``copies`` of texts that are a training record.
    """

    runs: float | None
    holding: float
    copies: float


def overlaps(
    groups: Sequence[Sequence[str]], training: Iterable[str], n: int = OVERLAP
) -> list[Overlap]:
    """Compare groups of texts with training records, by runs of ``n`` words in lower case.

    The training records are read once, and none is held in memory: they may be many.
    """

    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    def runs_of(text: Sequence[str]) -> Iterator[tuple[str, ...]]:
        return (tuple(text[i : i + n]) for i in range(len(text) - n + 1))

    split = [[words(text) for text in texts] for texts in groups]
    wanted = {run for texts in split for text in texts for run in runs_of(text)}
    wholes = {tuple(text) for texts in split for text in texts}
    seen, copied = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for record in map(words, training):
        seen.update(run for run in runs_of(record) if run in wanted)
        if (whole := tuple(record)) in wholes:
            copied.add(whole)
    found = []
    for texts in split:
        hits = [[run in seen for run in runs_of(text)] for text in texts]
        total, count = sum(map(len, hits)), len(texts)
        runs = sum(map(sum, hits)) / total if total else None
        copies = sum(tuple(text) in copied for text in texts)
        found.append(Overlap(runs, sum(map(any, hits)) / count, copies / count))
    return found
