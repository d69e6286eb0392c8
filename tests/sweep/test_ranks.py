"""A job that starts several ranks: what it is told of them, and that they do not outlive it."""

import fcntl
import json
import signal
import subprocess
import sys

import pytest

from dpft.config.errors import ConfigError, DivergedError, RankError, TrainingError
from dpft.runs import RunLockedError, read_record
from dpft.sweep import ranks
from dpft.sweep.ranks import read_run, report_ends, report_error, run_ranks
from tests.parallel.ranks import SETTINGS
from tests.processes import dpft


@pytest.fixture
def failing(monkeypatch):
    """A torchrun that ends with status 1 after some ranks have reported."""

    def fail(*errors, ended=None, status=1):
        def torchrun(folder, count):
            assert (read_run(folder), count) == ({"seed": 1}, 2)
            for rank, error in enumerate(errors):
                report_error(folder, rank, error)
            if ended is not None:
                report_ends(folder, ended)
            return status

        monkeypatch.setattr(ranks, "_torchrun", torchrun)

    return fail


@pytest.mark.parametrize("kind", [DivergedError, RunLockedError, ConfigError])
def test_the_error_of_a_rank_is_that_of_the_job(failing, kind):
    """Its kind decides: a trial that diverges is an outcome, and a locked run is waited for."""
    failing(RankError("follows"), kind("of rank 1"))
    with pytest.raises(kind, match="of rank 1") as caught:
        run_ranks({"seed": 1}, 2)
    assert type(caught.value) is kind


class GoneError(RankError):
    """Another rank is gone."""


@pytest.mark.parametrize(
    ("errors", "ended", "said"),
    [
        # A killed rank is named, and neither those that torchrun ended nor those that follow.
        ([], {0: -signal.SIGTERM, 1: -signal.SIGKILL}, "^rank 1 was ended by SIGKILL; see .*"),
        ([GoneError("no answer")], {1: -signal.SIGKILL}, "rank 1 was ended by SIGKILL"),
        ([RankError("no answer")], None, "no answer"),
        ([], None, "ended before its ranks started"),
    ],
)
def test_the_first_cause_is_named(failing, errors, ended, said):
    failing(*errors, ended=ended)
    with pytest.raises(TrainingError, match=said):
        run_ranks({"seed": 1}, 2)


@pytest.mark.parametrize(("ended", "status"), [(None, 143), ({0: -15, 1: 143}, 1)])
def test_a_job_that_is_told_to_end_has_no_result(failing, capsys, ended, status):
    """Slurm requeues it: who waits for it would take an error for its last word."""
    failing(RankError("another rank does not answer"), ended=ended, status=status)
    with pytest.raises(SystemExit) as caught:
        run_ranks({"seed": 1}, 2)
    assert caught.value.code == 143
    assert "continues" in capsys.readouterr().err


def test_a_rank_ends_with_its_job(tmp_path):
    """However the job ends: the kernel releases what it held."""
    code = (
        "import sys, time; from pathlib import Path; from dpft.sweep.ranks import end_with_job; "
        "end_with_job(Path(sys.argv[1])); print('there', flush=True); time.sleep(60)"
    )
    with (tmp_path / "alive").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        rank = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        with rank:
            assert rank.stdout.readline() == b"there\n"
            assert rank.poll() is None
            held.close()
            assert rank.wait(10) == -signal.SIGKILL


@pytest.mark.slow
def test_a_run_of_two_ranks_from_one_command(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    done = dpft(*SETTINGS, "name=two", "ranks=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("BLEU") == 1
    path = tmp_path / "runs/two"
    assert read_record(path)["training"]["ranks"] == 2
    assert "ranks" not in json.loads((path / "identity.json").read_text())["config"]
