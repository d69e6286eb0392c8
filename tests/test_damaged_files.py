"""Damaged files of every kind: a message that names the file, and nothing taken for what it was."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.errors import DpftError
from dpft.report.card import model_card
from dpft.report.comparison import show
from dpft.report.gather import Target, gather
from dpft.runs import Ledger, RunDirectory, checkpoint, is_finished, read_ledger, read_record
from dpft.runs.folders import stored_config
from dpft.runs.norms import NormsLog, read_norms
from dpft.sweep.arguments import read_list
from dpft.sweep.folder import SweepFolder
from dpft.sweep.journal import BEGUN, Event, Journal
from dpft.tasks import load_task
from dpft.training.predictions import read_predictions
from tests.processes import dpft
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


# Where the file lies, and what reads it; those of the second kind pass it over, with a warning.
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
    "list": lambda data: b"[1]\n",
    "number": lambda data: b"17\n",
    "nested": lambda data: b"[" * 20_000 + b"\n",
    "nan": lambda data: b'{"step": NaN}\n',
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "latin-1": lambda data: data[:3] + b"\xe9" + data[3:],
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: bytes((7 * place * place + 13) % 256 for place in range(len(data))),
    "html": lambda data: b"<!doctype html>\n<html>\n",
    "directory": None,
}
# Not damage: what is left is good, or a torn end that a kill explains, or settings, which are
# checked when they are used.
GOOD = {
    ("half", "ledger.jsonl"),
    *(
        (kind, name)
        for kind in ("empty", "half", "zeros", "noise")
        for name in ("private/norms.jsonl", "journal.jsonl")
    ),
    *((kind, "list.txt") for kind in ("half", "null", "number")),
    *((kind, "config.yaml") for kind in ("half", "nan")),
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


def test_what_is_whole_is_read(copied):
    for read in REFUSED.values():
        read(copied)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_refused_by_name(copied, name, kind):
    damage(copied / name, kind)
    if (kind, name) in GOOD:
        REFUSED[name](copied)
        return
    with pytest.raises(DpftError) as caught:
        REFUSED[name](copied)
    said = str(caught.value)
    assert (copied / name).name in said
    if name == "ledger.jsonl":
        assert "start over" in said


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", ["manifest.json", "part-00000"])
def test_a_damaged_checkpoint_is_passed_over(copied, name, kind, monkeypatch):
    monkeypatch.setitem(DAMAGES, "utf-16", lambda data: data + b"\0")
    damage(copied / "checkpoints/step-00000002" / name, kind)
    with RunDirectory.open(copied, CONFIG, "task: e2e\n") as run:
        assert checkpoint.load_latest(run) is None


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_marker_is_no_finished_run(copied, kind):
    digest = json.loads((copied / "DONE").read_text())["config_hash"]
    assert is_finished(copied, digest)
    damage(copied / "DONE", kind)
    assert not is_finished(copied, digest)


def outcome(read, path):
    """What was read, or the message; anything else is raised."""
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
    """Each place of a record in turn is left out, or is of another kind.

    Settings and mechanism excepted, whose own classes write them.
    """
    file, refused = tmp_path / "record.json", 0
    text = json.dumps(record())
    for path in list(places(record()))[1:]:
        if path[0] in ("config", "mechanism"):
            continue
        for value in (..., None, "word", -1, [], {}, [[1]], 1e308, True):
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


def test_one_bit_more_or_less_is_no_traceback(copied):
    """What a digit became nobody can tell; but that a file says something at all is checked."""
    for name, read in REFUSED.items():
        file = copied / name
        data = file.read_bytes()
        for place in range(0, len(data), max(1, len(data) // 12)):
            for bit in (0, 5, 7):
                file.write_bytes(
                    bytes([*data[:place], data[place] ^ (1 << bit), *data[place + 1 :]])
                )
                found = outcome(read, copied)
                if isinstance(found, DpftError):
                    assert file.name in str(found) or name == "private/noise_key"
        file.write_bytes(data)


@pytest.mark.parametrize("kind", ["null", "nested", "utf-16", "directory"])
def test_a_page_names_what_it_cannot_read(copied, kind):
    target = Target(copied, "run")
    for name in ("record.json", "ledger.jsonl", "identity.json"):
        damage(copied / name, kind)
    problems = " ".join(gather(target).problems)
    for name in ("record.json", "ledger.jsonl"):
        assert name in problems


@pytest.mark.parametrize(
    ("content", "told"),
    [("{}", "task is not set"), ("seed: []", "seed is [] (list); expected int")],
)
def test_settings_of_no_run_are_one_message(tmp_path, content, told):
    """A run without the list of files of a finished one, so that nothing else can tell."""
    (tmp_path / "record.json").write_text(json.dumps(record()))
    file = tmp_path / "config.yaml"
    file.write_text(content)
    typed = [["decode", tmp_path], ["score", tmp_path], ["generate", tmp_path, "n=2"]]
    for line in [*typed, ["validate", f"resume={tmp_path}"]]:
        result = CliRunner().invoke(app, list(map(str, line)))
        assert isinstance(result.exception, SystemExit)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"dpft: {file}: {told}")
    result = dpft("train", f"resume={tmp_path}", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"dpft: {file}: {told}")


def test_what_vanishes_while_it_is_read_is_named(copied, monkeypatch):
    def vanish(*arguments, **options):
        shutil.rmtree(copied)
        copied.stat()

    monkeypatch.setattr("dpft.sweep.find.find", vanish)
    result = CliRunner().invoke(app, ["report", str(copied)], standalone_mode=False)
    assert isinstance(result.exception, SystemExit)
    assert f"{copied}: No such file or directory" in result.stderr
