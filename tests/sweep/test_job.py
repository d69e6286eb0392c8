"""What Hydra calls for each point of a sweep, with runs that are made by hand."""

import json
import subprocess
import sys

import pytest

from dpft.config.compose import compose, initialised
from dpft.config.errors import ConfigError, DataError, DivergedError
from dpft.config.schema import parse
from dpft.runs import RunLockedError, config_hash
from dpft.runs.finished import marked
from dpft.runs.folders import run_path
from dpft.sweep import job
from dpft.sweep.folder import Failure, SweepFolder
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
    return made


def words(tmp_path, *overrides):
    return [f"runs_dir={tmp_path / 'runs'}", *overrides]


def typed(folder, *overrides, **settings):
    own = {"folder": folder.path} | settings
    return [*words(folder.path.parents[2], *overrides), *(f"sweep.{k}={v}" for k, v in own.items())]


def point(overrides, execute):
    run_point(compose(overrides), overrides, execute)


def finish(raw, bleu=0.25):
    run = parse(raw)
    path = run_path(run)
    path.mkdir(parents=True)
    metrics = {"BLEU": bleu, "NIST": 3.0}
    section = {"metrics": metrics, "examples": 3, "signature": "x"}
    settings = config(decode={"split": run.decode.split})
    record = whole(private=False, settings=settings, scores={run.decode.split: section})
    (path / "record.json").write_text(json.dumps(record))
    (path / "DONE").write_text(marked(path, config_hash(run.identity())))


def failure_of(folder, *overrides):
    return folder.failure(config_hash(parse(compose(overrides)).identity()))


def never(raw):
    raise AssertionError("a finished run was run again")


def test_a_finished_point_whose_record_is_damaged_runs_again(hydra, folder, tmp_path):
    point(typed(folder, "seed=1"), finish)
    file = run_path(parse(compose(words(tmp_path, "seed=1")))) / "record.json"
    whole, runs = file.read_text(), []
    file.write_text(whole.replace("0.25", "0.75"))
    point(typed(folder, "seed=1"), lambda raw: runs.append(file.write_text(whole)))
    assert len(runs) == 1
    point(typed(folder, "seed=1"), never)


def test_a_point_runs_once_where_it_would_be_typed(hydra, folder, tmp_path):
    point(typed(folder, "seed=1"), finish)
    point(typed(folder, "seed=1"), never)
    assert (run_path(parse(compose(words(tmp_path, "seed=1")))) / "DONE").exists()


def test_a_line_of_a_list_is_composed_with_the_words(hydra, folder, tmp_path):
    (tmp_path / "points.txt").write_text("# two\nseed=1\nseed=2 eps=8\n")
    seen = []
    overrides = typed(folder, "eps=5", list=tmp_path / "points.txt", point=1)
    point(overrides, lambda raw: (seen.append(raw), finish(raw)))
    assert seen[0] == parse(compose(words(tmp_path, "seed=2", "eps=8"))).raw


@pytest.mark.parametrize(
    ("error", "said", "diverged"),
    [
        (DataError("there is\nno data"), "there is no data", False),
        (DivergedError("not finite"), "not finite", True),
        (KeyError("x"), "KeyError: 'x'", False),
    ],
)
def test_a_failure_is_written_down_and_the_others_go_on(
    hydra, folder, capsys, error, said, diverged
):
    def fail(raw):
        raise error

    point(typed(folder, "seed=1"), fail)
    assert failure_of(folder, "seed=1") == Failure(error=said, diverged=diverged)
    (file,) = folder.failures.iterdir()
    assert file.stat().st_mode & 0o077 == 0  # it may quote the data
    assert ("Traceback" in capsys.readouterr().err) == isinstance(error, KeyError)
    point(typed(folder, "seed=2"), finish)
    assert failure_of(folder, "seed=2") is None


def test_settings_that_are_impossible_start_no_run(hydra, folder):
    with pytest.raises(ConfigError, match=r"privacy\.epsilon is -1"):
        point(typed(folder, "eps=-1"), never)


def test_a_run_that_is_in_use_is_waited_for_and_then_left(hydra, folder, monkeypatch):
    tries = []

    def locked(raw):
        tries.append(raw)
        if len(tries) < 3:
            raise RunLockedError("in use")
        finish(raw)

    monkeypatch.setattr(job.time, "sleep", lambda seconds: None)
    point(typed(folder, "seed=1"), locked)
    assert len(tries) == 3
    assert failure_of(folder, "seed=1") is None
    monkeypatch.setattr(job, "_WAIT", -1.0)
    tries.clear()
    point(typed(folder, "seed=2"), locked)
    assert failure_of(folder, "seed=2").error == "in use"


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
