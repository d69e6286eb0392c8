"""States read from run directories made by hand."""

import json

import pytest

from dpft.cli import sweep
from dpft.config.errors import ConfigError
from dpft.report.console import Console
from dpft.runs.folders import marked
from dpft.sweep.points import ParsedOverrides, SweepPlan, SweepPoint
from dpft.sweep.state import States, as_table, summary
from dpft.sweep.sweep_folder import Failure, SweepFolder, default_name, folder_of
from tests.report.pages.example import ledger, mechanism, record


@pytest.fixture
def folder(tmp_path):
    found = folder_of(tmp_path / "runs", "mine")
    found.path.mkdir(parents=True)
    return found


@pytest.fixture
def points(folder, tmp_path):
    """Four points of a sweep that is described, without runs."""
    found = [
        SweepPoint(("task=e2e", f"seed={seed}"), f"{seed}", tmp_path / f"runs/run-{seed}", True)
        for seed in range(4)
    ]
    describe(folder, found, "seed=1,2")
    return found


def describe(folder, points, *words):
    folder.describe(ParsedOverrides(words), (), SweepPlan(points, 0, folder.path.parents[1]))


def started(path, steps):
    stated = mechanism(steps=8, noise_multiplier=0.8)
    ledger(path, steps, mechanism=stated, key=path.name, compute={"threads": 1})


def finished(point, **sections):
    point.path.mkdir(parents=True)
    (point.path / "record.json").write_text(json.dumps(record(bleu=0.25, **sections)))
    (point.path / "DONE").write_text(marked(point.path, point.digest))


def test_every_state_is_told(folder, points, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    finished(points[0])
    started(points[1].path, 3)
    folder.fail(points[2].digest, Failure(error="no data", diverged=False))
    rows = States(folder).rows()
    assert [row.state for row in rows] == ["done", "started", "failed", "waiting"]
    assert [row.label for row in rows[:2]] == ["seed=0", "seed=1"]
    assert rows[2].error == "no data"
    assert summary(rows) == "4 points: 1 done, 1 started, 1 failed, 1 waiting"
    as_table(rows).show(Console())
    assert "seed=0 done 3.000 BLEU 0.2500 0:01:01" in " ".join(capsys.readouterr().out.split())
    folder.forget_failures()
    assert [row.state for row in States(folder).rows()][2] == "waiting"
    folder.failures.joinpath(f"{points[2].digest}.json").write_text("{")
    assert "cannot be read" in States(folder).rows()[2].error


def test_a_refuted_run_is_done_with_an_error(folder, points):
    finished(points[0], audit={"epsilon_lower": 9.0, "confidence": 0.95, "refuted": True})
    row = States(folder).rows()[0]
    assert (row.state, row.error[:9]) == ("done", "the audit")


def test_what_unfinished_runs_have_spent_is_told_beside_the_cost(folder, points, capsys):
    for one, steps in zip(points, (3, 0, 2), strict=False):
        started(one.path, steps)
    folder.fail(points[2].digest, Failure(error="not finite", diverged=True))
    sweep._show_cost(States(folder).rows())
    told = " ".join(capsys.readouterr().out.split())
    both = "seed=0: epsilon 2.442 at delta 1e-05 (2.220 so far); seed=2: epsilon "
    assert f"{both}2.442 at delta 1e-05 (2.146 so far). The smaller number" in told
    with (points[2].path / "ledger.jsonl").open("a") as file:
        file.write('{"step": 2, "epsilon_rdp":::::}\n')
    sweep._show_cost(States(folder).rows())
    told = " ".join(capsys.readouterr().out.split())
    assert f"{both}no finite number. The smaller number" in told


def test_a_score_with_another_digit_is_not_shown_and_the_run_is_to_be_made_again(folder, points):
    """Its job makes the record again; what was looked at before must not stay in the table."""
    finished(points[0])
    file = points[0].path / "record.json"
    sound, states = file.read_text(), States(folder)
    for text, expected in (
        (sound.replace('"BLEU": 0.25', '"BLEU": 0.95'), ("started", "-")),
        (sound, ("done", "BLEU 0.2500")),
    ):
        file.write_text(text)
        row = states.rows()[0]
        assert (row.state, row.score) == expected


def test_a_sweep_may_be_moved_with_its_runs(points, tmp_path):
    finished(points[0])
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert States(SweepFolder(tmp_path / "moved/sweeps/mine")).rows()[0].state == "done"


def test_a_folder_holds_one_sweep_whatever_launches_it(folder, points):
    """Also `dpft sweep --select`, whose second selection under another name would spend again."""
    alone, launched = (
        ("seed=1,2",),
        ("seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    )
    assert default_name(ParsedOverrides(alone), ()) == default_name(ParsedOverrides(launched), ())
    for words in (launched, alone):
        describe(folder, points, *words)
    for words in (("seed=1,3",), ("seed=1,2", "eps=1")):
        with pytest.raises(ConfigError, match="holds another sweep"):
            describe(folder, points, *words)
