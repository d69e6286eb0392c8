"""What Hydra calls for each point of a sweep, with runs that are made by hand."""

import json
import subprocess
import sys

import pytest

from dpft.config.compose import compose, initialised
from dpft.config.errors import DataError
from dpft.config.schema import parse
from dpft.runs import RunLockedError, config_hash
from dpft.runs.finished import marked
from dpft.runs.folders import run_path
from dpft.sweep import job
from dpft.sweep.folder import BEGAN, Event, SweepFolder
from dpft.sweep.job import run_point
from tests.report.pages.example import config
from tests.report.pages.example import record as whole


@pytest.fixture
def hydra():
    with initialised():
        yield


@pytest.fixture
def folder(tmp_path):
    made = SweepFolder(tmp_path / "runs/sweeps/mine")
    made.path.mkdir(parents=True)
    made.journal.add(Event(BEGAN))
    return made


def words(tmp_path, *overrides):
    return [f"runs_dir={tmp_path / 'runs'}", *overrides]


def typed(folder, *overrides, **settings):
    own = {"folder": folder.path} | settings
    return [*words(folder.path.parents[2], *overrides), *(f"sweep.{k}={v}" for k, v in own.items())]


def point(overrides, execute):
    return run_point(compose(overrides), overrides, [], execute)


def finish(raw, bleu=0.25):
    run = parse(raw)
    path = run_path(run)
    path.mkdir(parents=True)
    metrics = {"BLEU": bleu, "NIST": 3.0}
    section = {"metrics": metrics, "examples": 3, "signature": "x"}
    settings = config(decode={"split": run.decode.split})
    record = whole(private=False, settings=settings, scores={run.decode.split: section})
    (path / "record.json").write_text(json.dumps(record))
    (path / "DONE").write_text(marked(path, config_hash(run.identity())).spelled())


def told(folder):
    return [event.event for event in folder.journal.read()[1:]]


def never(raw):
    raise AssertionError("a finished run was run again")


def test_a_finished_point_whose_record_is_damaged_runs_again(hydra, folder, tmp_path):
    point(typed(folder, "seed=1"), finish)
    file = run_path(parse(compose(words(tmp_path, "seed=1")))) / "record.json"
    whole = file.read_text()
    file.write_text(whole.replace("0.25", "0.75"))
    assert point(typed(folder, "seed=1"), lambda raw: file.write_text(whole)) == 0.25
    assert told(folder) == ["started", "finished", "started", "finished"]


def test_a_point_runs_once(hydra, folder, tmp_path):
    assert point(typed(folder, "seed=1"), finish) == 0.25
    assert point(typed(folder, "seed=1"), never) == 0.25
    assert point(typed(folder, "seed=1", metric="NIST"), never) == 3.0
    assert told(folder) == ["started", "finished", "finished", "finished"]
    event = folder.journal.read()[1]
    assert event.overrides == tuple(words(tmp_path, "seed=1"))
    assert folder.inside(event.run) == run_path(parse(compose(words(tmp_path, "seed=1"))))


def test_a_line_of_a_list_is_composed_with_the_words(hydra, folder, tmp_path):
    (tmp_path / "points.txt").write_text("# two\nseed=1\nseed=2 eps=8\n")
    seen = []
    overrides = typed(folder, "eps=5", list=tmp_path / "points.txt", point=1)
    point(overrides, lambda raw: (seen.append(raw), finish(raw)))
    assert seen[0] == parse(compose(words(tmp_path, "seed=2", "eps=8"))).raw
    assert folder.journal.read()[1].overrides[-2:] == ("seed=2", "eps=8")


@pytest.mark.parametrize(
    ("error", "said"),
    [(DataError("there is\nno data"), "there is no data"), (KeyError("x"), "KeyError: 'x'")],
)
def test_a_failure_is_written_down_and_later_points_run(hydra, folder, capsys, error, said):
    def fail(raw):
        raise error

    assert point(typed(folder, "seed=1"), fail) is None
    assert told(folder) == ["started", "failed"]
    assert folder.journal.read()[-1].error == said
    assert ("Traceback" in capsys.readouterr().err) == isinstance(error, KeyError)
    assert point(typed(folder, "seed=2"), finish) == 0.25


def test_settings_that_are_impossible_are_a_failure_without_a_run(hydra, folder):
    assert point(typed(folder, "eps=-1"), never) is None
    event = folder.journal.read()[-1]
    assert (event.event, event.digest) == ("failed", None)
    assert "privacy.epsilon is -1" in event.error


def test_a_run_that_is_in_use_is_waited_for_and_then_left(hydra, folder, monkeypatch):
    tries = []

    def locked(raw):
        tries.append(raw)
        if len(tries) < 3:
            raise RunLockedError("in use")
        finish(raw)

    monkeypatch.setattr(job.time, "sleep", lambda seconds: None)
    assert point(typed(folder, "seed=1"), locked) == 0.25
    monkeypatch.setattr(job, "_WAIT", -1.0)
    tries.clear()
    assert point(typed(folder, "seed=2"), locked) is None
    assert told(folder) == ["started", "finished", "started", "skipped"]


def test_finished_points_are_passed_over_before_torch_is_imported(hydra, folder):
    """By Hydra's own multirun, in a process of its own."""
    for seed in (1, 2):
        finish(compose(typed(folder, f"seed={seed}")))
    arguments = ["-m", *typed(folder, "seed=1,2"), f"hydra.sweep.dir={folder.path / 'hydra'}"]
    code = (
        f"import sys; from dpft.cli.train import main; main({arguments!r}); "
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False False\n", done.stderr
    assert told(folder) == ["finished", "finished"]
