"""What a run leaves outside ``private/`` follows from its noisy releases, and from nothing else.

The sums of the clipped gradients, and the counts that move thresholds, are taken away before their
noise is added. What a run releases is then the same whatever it is trained on, and so must every
file be that may be published.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.training.run import run_experiment
from tests.small_runs import release_noise_alone

SHORT = [f"some words {n}" for n in range(12)]
LONG = "more words than a record has room for, " * 40
# In place of another record: one letter, other signs, special tokens.
INSTEAD = ["a", "Öl für 50 € 漢字 🦜 \u202e", "<|endoftext|> [MASK] <s> <pad>"]
LABELLED = ["task=classification", "task.classes=[a,b]", "model=random-bert", "task.max_length=16"]
TASKS = {
    "classification": LABELLED,
    "infilling": [
        *("task=sst2", "task.source=files", "model=random-roberta", "task.mode=infill"),
        *("task.max_length=24", "decode.split=dev"),
    ],
    "text2text": ["task=text2text", "model=tiny", "task.max_length=24"],
    "language modelling": ["task=language_modeling", "model=tiny", "task.max_length=24"],
    "conversations of users": [
        *("task=chat", "model=tiny", "task.max_length=48", "task.unit=user"),
        *("task.user_column=user", "task.records_per_user=2"),
    ],
    "adaptive thresholds, adapters, batches of one size": [
        *(*LABELLED, "clip=per_layer_adaptive", "adapt=lora", "adapt.rank=2"),
        "privacy.sampling=truncated_poisson",
    ],
}
RUN = [
    *("privacy.noise_multiplier=1", "privacy.noise_seed=1", "optim.batch_size=6", "optim.steps=2"),
    *("decode.max_new_tokens=4", "threads=1", "name=run"),
]
# Of the machine; a digest of the records under the run's key, which the seed makes public here; and
# hashes over lines with that digest.
NOT_COMPARED = {"seconds", "peak_memory_bytes", "written"}
NOT_COMPARED |= {"fingerprint", "data", "chain", "sha256", "size"}


def row(text: str, place: int) -> dict[str, object]:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return {
        "text": text, "label": "ab"[place % 2], "source": text, "target": text,
        "messages": turns, "user": f"u{min(place, 11) // 2}",
    }  # fmt: skip


def write(file: Path, texts: list[str]) -> None:
    rows = [row(text, place) for place, text in enumerate(texts)]
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    lines = [f"{one['text']}\t{place % 2}\n" for place, one in enumerate(rows)]  # as SST-2 has them
    other = file.parent / "sst2" / ("dev.tsv" if file.stem == "test" else "train.tsv")
    other.parent.mkdir(exist_ok=True)
    other.write_text("sentence\tlabel\n" + "".join(lines))


def without(found: object) -> object:
    if isinstance(found, dict):
        return {k: without(value) for k, value in found.items() if k not in NOT_COMPARED}
    return [without(one) for one in found] if isinstance(found, list) else found


def published(folder: Path) -> dict[str, object]:
    """The content of each file outside ``private/``, without what is of the machine."""
    found: dict[str, object] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        if name.startswith("private/"):
            continue
        content = file.read_bytes()
        if file.suffix in (".json", ".jsonl") or file.name == "DONE":
            documents = content.splitlines() if file.suffix == ".jsonl" else [content]
            found[name] = [without(json.loads(document)) for document in documents]
        else:
            found[name] = re.sub(rb"steps in \d+ s", b"steps", content)
    return found


@pytest.mark.parametrize("task", TASKS)
def test_nothing_but_the_releases_tells_of_the_records(task, tmp_path, monkeypatch, capsys):
    """Nor does what the run prints, unless it is to a terminal."""
    release_noise_alone(monkeypatch)
    write(tmp_path / "test.jsonl", [f"{text}?" for text in SHORT[:2]])
    left = {}
    # Each task meets the long record and one other kind; all kinds are met.
    others = [LONG, INSTEAD[list(TASKS).index(task) % len(INSTEAD)]]
    if "task.unit=user" in TASKS[task]:  # and more records of one user
        others.append("b")
    for kind, texts in {"plain": SHORT[-2:], "changed": others}.items():
        write(tmp_path / "train.jsonl", [*SHORT[:-2], *texts])
        place = tmp_path / "sst2" if "task=sst2" in TASKS[task] else tmp_path
        words = [f"task.data_dir={place}", f"runs_dir={tmp_path / 'runs'}"]
        left[kind] = published(run_experiment(parse(compose([*TASKS[task], *RUN, *words]))).path)
        left[kind]["output"] = re.sub(r"[\d.]+ s\b", "s", "".join(capsys.readouterr()))
        shutil.rmtree(tmp_path / "runs")
    assert left["changed"].keys() == left["plain"].keys()
    for name, content in left["plain"].items():
        assert left["changed"][name] == content, name
