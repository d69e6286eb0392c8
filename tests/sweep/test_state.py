"""States read from run directories made by hand."""

import json
import os

import pytest

from dpft.cli import sweep
from dpft.config.errors import ConfigError, LogError
from dpft.runs.finished import marked
from dpft.runs.ledger import chained_lines
from dpft.sweep import folder as events
from dpft.sweep.folder import Event, SweepFolder, default_name, folder_of
from dpft.sweep.points import ParsedOverrides, SweepPlan, SweepPoint
from dpft.sweep.state import States, cells, summary
from tests.report.pages.example import epsilon, mechanism
from tests.report.pages.example import record as whole

NOBODY = 2**22 + 1  # no process has so high a number


@pytest.fixture
def folder(tmp_path):
    found = folder_of(tmp_path / "runs", "mine")
    found.path.mkdir(parents=True)
    return found


def point(tmp_path, seed, private=True):
    path = tmp_path / "runs" / f"run-{seed}"
    return SweepPoint(("task=e2e", f"seed={seed}"), f"hash-{seed}", path, private)


def describe(folder, *points):
    folder.describe(
        ParsedOverrides(("seed=1,2",)), (), SweepPlan(points, 0, folder.path.parents[1])
    )


def ledger(path, steps, total=8, key=None):
    path.mkdir(parents=True)
    stated = mechanism(steps=total, noise_multiplier=0.8)
    header = {"mechanism": stated, "key": key or path.name, "compute": {"threads": 1}}
    lines = [{"step": s, "epsilon_rdp": spent(s + 1)} for s in range(steps)]
    (path / "ledger.jsonl").write_bytes(chained_lines(header, lines))


def spent(steps):
    """Epsilon after so many steps of a `ledger`."""
    return epsilon(steps, mechanism(noise_multiplier=0.8))


def finished(path, digest, bleu=0.25, **sections):
    path.mkdir(parents=True, exist_ok=True)
    record = {**whole(), **sections}
    record["training"]["steps"] = 8
    record["privacy"]["stated"] = 2.9
    record["scores"]["test"]["metrics"] = {"BLEU": bleu, "NIST": 2.0}
    (path / "record.json").write_text(json.dumps(record))
    (path / "DONE").write_text(marked(path, digest).spelled())


def started(folder, point, **fields):
    return Event(events.STARTED, point.digest, folder.outside(point.path), **fields)


def test_every_state_is_told(folder, tmp_path):
    points = [point(tmp_path, seed) for seed in range(7)]
    describe(folder, *points)
    journal = folder.journal
    journal.add(started(folder, points[6]))  # of an earlier attempt
    journal.add(Event(events.BEGAN))
    finished(points[0].path, points[0].digest)
    journal.add(Event(events.FINISHED, points[0].digest))
    ledger(points[1].path, 3)
    journal.add(started(folder, points[1], pid=os.getpid()))
    ledger(points[2].path, 5)
    journal.add(started(folder, points[2], pid=NOBODY))
    journal.add(started(folder, points[3]))
    journal.add(Event(events.FAILED, points[3].digest, error="no data"))
    journal.add(Event(events.SKIPPED, points[4].digest))
    journal.add(started(folder, points[5], pid=NOBODY, host="elsewhere"))
    rows = States(folder).rows()
    assert [row.state for row in rows] == [
        *("done", "running", "stopped", "failed", "skipped", "running", "waiting")
    ]
    assert [row.label for row in rows[:2]] == ["seed=0", "seed=1"]
    assert cells(rows[0])[2:5] == ("8/8", "2.900", "0.25")
    assert (rows[1].step, rows[1].steps, rows[1].epsilon) == (3, 8, spent(3))
    assert (rows[2].step, rows[2].epsilon) == (5, spent(5))
    assert rows[3].error == "no data"
    assert rows[1].seconds is not None
    assert summary(rows) == (
        "7 points: 1 done, 2 running, 1 failed, 1 stopped, 1 skipped, 1 waiting"
    )


def test_what_unfinished_runs_have_spent_is_told_beside_the_cost(folder, tmp_path, capsys):
    points = [point(tmp_path, seed) for seed in range(3)]
    describe(folder, *points)
    for one, steps in zip(points, (3, 0, 2), strict=True):
        ledger(one.path, steps)
        folder.journal.add(started(folder, one, pid=NOBODY))
    folder.journal.add(Event(events.DIVERGED, points[2].digest, error="not finite"))
    sweep._show_cost(States(folder).rows(), searched=False)
    told = " ".join(capsys.readouterr().out.split())
    both = "seed=0: epsilon 2.442 at delta 1e-05 (2.220 so far); seed=2: epsilon "
    assert f"{both}2.442 at delta 1e-05 (2.146 so far). The smaller number" in told
    with (points[2].path / "ledger.jsonl").open("a") as file:
        file.write('{"step": 2, "epsilon_rdp":::::}\n')
    sweep._show_cost(States(folder).rows(), searched=False)
    told = " ".join(capsys.readouterr().out.split())
    assert f"{both}no finite number. The smaller number" in told


def test_a_score_with_another_digit_is_not_shown_and_the_run_is_to_be_made_again(folder, tmp_path):
    """Its job makes the record again; what was looked at before must not stay in the table."""
    one = point(tmp_path, 1)
    describe(folder, one)
    finished(one.path, one.digest)
    folder.journal.add(Event(events.FINISHED, one.digest))
    record = one.path / "record.json"
    sound = record.read_text()
    record.write_text(sound.replace('"BLEU": 0.25', '"BLEU": 0.95'))
    states = States(folder)
    (row,) = states.rows()
    assert (row.state, row.score) == ("waiting", None)
    record.write_text(sound)
    (row,) = states.rows()
    assert (row.state, row.score) == ("done", 0.25)


def test_of_a_run_without_privacy_only_the_step_is_read(folder, tmp_path):
    one = point(tmp_path, 1, private=False)
    describe(folder, one)
    (one.path / "private").mkdir(parents=True)
    (one.path / "private/metrics.jsonl").write_text('{"step": 4, "loss": 9.5}\n')
    (row,) = States(folder).rows()
    assert (row.step, row.epsilon) == (5, None)
    assert cells(row)[2:4] == ("5", "none")
    assert "9.5" not in str(row)


def test_points_that_a_sweeper_chooses_are_met_one_by_one(folder, tmp_path):
    folder.describe(ParsedOverrides(("hydra/sweeper=optuna",)), (), SweepPlan(None, 0, tmp_path))
    assert States(folder).rows() == []
    journal = folder.journal
    for seed in (3, 4):
        one = point(tmp_path, seed)
        run = folder.outside(one.path)
        journal.add(Event(events.STARTED, one.digest, run, one.overrides))
    rows = States(folder).rows()
    assert [(row.label, row.state) for row in rows] == [
        ("seed=3", "running"),
        ("seed=4", "running"),
    ]


def test_a_sweep_may_be_moved_with_its_runs(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    finished(one.path, one.digest)
    (tmp_path / "runs").rename(tmp_path / "moved")
    (row,) = States(SweepFolder(tmp_path / "moved/sweeps/mine")).rows()
    assert row.state == "done"


def test_a_folder_holds_one_sweep(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    describe(folder, one)
    with pytest.raises(ConfigError, match="holds another sweep"):
        folder.describe(ParsedOverrides(("seed=1,3",)), (), SweepPlan((one,), 0, tmp_path))
    folder.description.write_text("{")
    with pytest.raises(ConfigError, match=r"sweep.json is damaged"):
        folder.points()


def test_a_sweep_goes_on_with_another_launcher(folder, tmp_path):
    """Also `dpft sweep --select`, whose second selection under another name would spend again."""
    plan = SweepPlan((point(tmp_path, 1),), 0, tmp_path)
    alone = ParsedOverrides(("seed=1,2",))
    launched = ParsedOverrides(("seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"))
    assert default_name(alone, ()) == default_name(launched, ())
    for words in (alone, launched, alone):
        folder.describe(words, (), plan)
    with pytest.raises(ConfigError, match="holds another sweep"):
        folder.describe(ParsedOverrides(("seed=1,2", "hydra/sweeper=optuna")), (), plan)


@pytest.mark.parametrize("line", ["nonsense", '{"event": "dreamt"}', '{"event": "began", "a": 1}'])
def test_a_damaged_line_of_the_journal_is_named(folder, line):
    folder.journal.add(Event(events.BEGAN))
    file = folder.path / "journal.jsonl"
    file.write_text(f"{line}\n{file.read_text()}")
    with pytest.raises(LogError, match=r"journal.jsonl, line 1: .*runs do not depend on it"):
        folder.journal.read()
