"""Damaged files: a message that names the file, and nothing is read that was not written."""

import json
import os
import shutil
import signal

import pytest
import torch
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.errors import DpftError
from dpft.report.card import model_card
from dpft.report.comparison import show
from dpft.runs import Ledger, RunDirectory, checkpoint, is_finished, read_ledger, read_record
from dpft.runs.folders import stored_config
from dpft.runs.norms import NormsLog, read_norms
from dpft.sweep.folder import BEGUN, Event, Journal, SweepFolder
from dpft.sweep.points import read_list
from dpft.tasks import load_task
from dpft.training.predictions import read_predictions
from tests.report.pages.example import record

CONFIG = {"task": "e2e"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One good file of each kind."""
    base = tmp_path_factory.mktemp("whole") / "run"
    with RunDirectory.open(base, CONFIG, "task: e2e\n") as run:
        run.noise_key()
        with Ledger(run.ledger, {"mechanism": {"steps": 4}}) as ledger:
            for step in range(3):
                ledger.spend(step, epsilon_rdp=step + 0.5)
        checkpoint.save(run, 2, {"w": torch.arange(6.0)}, {"lr": 0.5})
        with NormsLog(run.private, 1, ["all"]) as norms:
            norms.append(0, [torch.ones(3, 1)])
        run.mark_done()
    (base / "record.json").write_text(json.dumps(record()))
    lines = [{"source": "a", "prediction": "b", "references": ["c"]}] * 3
    (base / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rows = [{"source": "one", "target": "eins"}] * 3
    (base / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (base / "list.txt").write_text("seed=1\nseed=2\n")
    sweep = {"words": [], "config_dir": None, "lines": [], "metric": None, "points": []}
    (base / "sweep.json").write_text(json.dumps(sweep))
    Journal(base / "journal.jsonl").add(Event(BEGUN))
    return base


def opened(base):
    RunDirectory.open(base, CONFIG, "task: e2e\n").close()


def key_of(base):
    with RunDirectory.open(base, CONFIG, "task: e2e\n") as run:
        run.noise_key()


def data_of(base):
    settings = {"train_file": str(base / "data.jsonl")}
    load_task({"name": "text2text", **settings}).records("train")


REFUSED = {
    "record.json": lambda base: read_record(base),
    "ledger.jsonl": lambda base: read_ledger(base / "ledger.jsonl"),
    "identity.json": opened,
    "config.yaml": stored_config,
    "private/noise_key": key_of,
    "private/norms.jsonl": lambda base: read_norms(base / "private/norms.jsonl"),
    "texts.jsonl": lambda base: read_predictions(base / "texts.jsonl"),
    "data.jsonl": data_of,
    "list.txt": lambda base: read_list(base / "list.txt"),
    "sweep.json": lambda base: SweepFolder(base).points(),
    "journal.jsonl": lambda base: Journal(base / "journal.jsonl").read(),
}
DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "null": lambda data: b"null\n",
    "nested": lambda data: b"[" * 20_000 + b"\n",
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "noise": lambda data: bytes((7 * place * place + 13) % 256 for place in range(len(data))),
    "directory": None,
}
# Not damage: a torn end that a kill explains, or settings, which are checked when they are used.
GOOD = {
    ("half", "ledger.jsonl"),
    *(
        (kind, name)
        for kind in ("empty", "half", "noise")
        for name in ("private/norms.jsonl", "journal.jsonl")
    ),
    *((kind, "list.txt") for kind in ("half", "null")),
    ("half", "config.yaml"),
}


def damage(file, kind):
    data = file.read_bytes()
    if DAMAGES[kind] is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(DAMAGES[kind](data))


@pytest.fixture
def copied(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_file_is_refused_by_name(whole, name, tmp_path):
    REFUSED[name](whole)
    for kind in DAMAGES:
        copy = shutil.copytree(whole, tmp_path / kind)
        damage(copy / name, kind)
        if (kind, name) in GOOD:
            REFUSED[name](copy)
            continue
        with pytest.raises(DpftError) as caught:
            REFUSED[name](copy)
        assert (copy / name).name in str(caught.value), kind


@pytest.fixture
def _at_once():
    def late(*_):
        raise AssertionError("waited for a file that nobody writes")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("name", ["record.json", "config.yaml", "texts.jsonl", "data.jsonl"])
def test_what_is_no_regular_file_is_refused_at_once(copied, name):
    """Opening a pipe waits for a writer, and a device such as /dev/zero never ends."""
    for make in (os.mkfifo, lambda file: file.symlink_to("/dev/zero")):
        (copied / name).unlink()
        make(copied / name)
        with pytest.raises(DpftError, match=name):
            REFUSED[name](copied)


@pytest.mark.parametrize("name", ["manifest.json", "part-00000"])
def test_a_damaged_checkpoint_is_passed_over(whole, name, tmp_path):
    for kind in ("empty", "half", "noise", "directory"):
        copy = shutil.copytree(whole, tmp_path / kind)
        damage(copy / "checkpoints/step-00000002" / name, kind)
        with RunDirectory.open(copy, CONFIG, "task: e2e\n") as run:
            assert checkpoint.load_latest(run) is None, kind


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_marker_is_no_finished_run(copied, kind):
    digest = json.loads((copied / "DONE").read_text())["config_hash"]
    assert is_finished(copied, digest)
    damage(copied / "DONE", kind)
    assert not is_finished(copied, digest)


def outcome(read, path):
    """Return what was read, or the error of ours; anything else is raised."""
    try:
        return read(path)
    except DpftError as error:
        return error


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in items if isinstance(value, dict | list) else ():
        if isinstance(item, dict | list):
            yield from places(item, (*path, name))
        else:
            yield (*path, name)


def test_every_malformed_record_is_refused_or_shown(tmp_path, capsys):
    """Each place of a record in turn is left out, or is of another kind."""
    file, refused = tmp_path / "record.json", 0
    text = json.dumps(record())
    for path in list(places(record()))[1:]:
        for value in (..., None, "word", -1, [], {}, 1e308):
            changed = inner = json.loads(text)
            for name in path[:-1]:
                inner = inner[name]
            if value is ...:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            file.write_text(json.dumps(changed))
            found = outcome(read_record, file)
            if isinstance(found, DpftError):
                assert str(file) in str(found)
                refused += 1
                continue
            show([(tmp_path, found)])
            model_card(found)
    assert refused > 200


@pytest.mark.parametrize(("content", "key"), [("{}", "task"), ("seed: []", "seed")])
def test_settings_of_no_run_are_one_message(tmp_path, content, key):
    """The run has no list of files, as a finished one has, by which the damage would be found."""
    (tmp_path / "record.json").write_text(json.dumps(record()))
    file = tmp_path / "config.yaml"
    file.write_text(content)
    for line in (["decode", tmp_path], ["validate", f"resume={tmp_path}"]):
        result = CliRunner().invoke(app, list(map(str, line)))
        assert isinstance(result.exception, SystemExit)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"dpft: {file}: {key} is")
