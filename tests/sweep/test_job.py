"""What Hydra calls for each point of a sweep, with runs that are made by hand."""

import json
import subprocess
import sys

import pytest

from dpft.config.compose import compose, initialised
from dpft.config.errors import ConfigError, DataError, DivergedError
from dpft.config.schema import parse
from dpft.runs import RunLockedError, config_hash
from dpft.runs.folders import marked, run_path
from dpft.sweep import job
from dpft.sweep.job import run_point
from dpft.sweep.sweep_folder import Failure, SweepFolder
from tests.report.pages.example import record


@pytest.fixture
def hydra():
    with initialised():
        yield


@pytest.fixture
def folder(tmp_path):
    made = SweepFolder(tmp_path / "runs/sweeps/mine")
    made.path.mkdir(parents=True)
    return made


def typed(folder, *overrides):
    return [f"runs_dir={folder.path.parents[1]}", *overrides, f"sweep.folder={folder.path}"]


def point(overrides, execute):
    run_point(compose(overrides), overrides, execute)


def finish(raw):
    path = run_path(parse(raw))
    path.mkdir(parents=True)
    (path / "record.json").write_text(json.dumps(record(bleu=0.25)))
    (path / "DONE").write_text(marked(path, config_hash(parse(raw).identity())))


def failure_of(folder, *overrides):
    return folder.failure(config_hash(parse(compose(overrides)).identity()))


def never(raw):
    raise AssertionError("a finished run was run again")


def test_a_point_runs_once_where_it_would_be_typed_or_again_if_it_is_damaged(hydra, folder):
    words = typed(folder, "seed=1")
    point(words, finish)
    point(words, never)
    file = run_path(parse(compose(words[:2]))) / "record.json"
    whole, runs = file.read_text(), []
    file.write_text(whole.replace("0.25", "0.75"))
    point(words, lambda raw: runs.append(file.write_text(whole)))
    assert len(runs) == 1
    point(words, never)


def test_a_line_of_a_list_is_composed_with_the_words(hydra, folder, tmp_path):
    (tmp_path / "points.txt").write_text("# two\nseed=1\nseed=2 eps=8\n")
    seen = []
    line = (f"sweep.list={tmp_path / 'points.txt'}", "sweep.point=1")
    point(typed(folder, "eps=5", *line), lambda raw: (seen.append(raw), finish(raw)))
    assert seen[0] == parse(compose(typed(folder, "seed=2", "eps=8")[:-1])).raw


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
        f"import sys; from dpft.cli.train import train_verb; train_verb({arguments!r}); "
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False False\n", done.stderr
