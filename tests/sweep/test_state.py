"""States read from run directories made by hand."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console

from dpft.cli import sweep
from dpft.config.errors import ConfigError
from dpft.report.terminal import clock
from dpft.runs import RunLockedError
from dpft.runs.finished import marked
from dpft.runs.ledger import chained_lines
from dpft.runs.noise_key import key_fingerprint, key_from_seed
from dpft.sweep import journal as events
from dpft.sweep.arguments import ParsedOverrides
from dpft.sweep.folder import SweepFolder, default_name, folder_of
from dpft.sweep.journal import Event, Journal
from dpft.sweep.points import SweepPlan, SweepPoint
from dpft.sweep.state import States
from dpft.sweep.table import Display, as_table, cells, shortened, summary
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
    journal = Journal(folder.journal)
    journal.add(started(folder, points[6]))  # of an earlier attempt
    journal.add(Event(events.BEGUN))
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


def test_what_is_done_keeps_its_time_when_the_sweep_is_started_again(folder, tmp_path):
    one, journal = point(tmp_path, 1), Journal(folder.journal)
    describe(folder, one)
    finished(one.path, one.digest)
    hour = ("2026-01-01T00:00:00+00:00", "2026-01-01T00:01:30+00:00", "2026-01-02T00:00:00+00:00")
    journal.add(started(folder, one, time=hour[0], pid=NOBODY))
    journal.add(Event(events.FINISHED, one.digest, time=hour[1]))
    journal.add(Event(events.BEGUN))
    for time in (None, hour[2]):  # before the run's job says that it has nothing to do, and after
        if time:
            journal.add(Event(events.FINISHED, one.digest, time=time))
        (row,) = States(folder).rows()
        assert (row.state, row.seconds) == ("done", 90.0)


def test_what_was_spent_is_never_rounded_down(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    (row,) = States(folder).rows()
    assert cells(replace(row, epsilon=2.00001))[3] == "2.001"
    assert cells(replace(row, epsilon=math.inf))[3] == "no finite number"


def test_a_guarantee_that_an_audit_refuted_stays_an_error(folder, tmp_path):
    """The command failed when the run ended; who types it again must not take the run for good."""
    one = point(tmp_path, 1)
    describe(folder, one)
    audit = {"refuted": True, "epsilon_lower": 9.0, "confidence": 0.95}
    finished(one.path, one.digest, audit=audit)
    Journal(folder.journal).add(Event(events.FINISHED, one.digest))
    (row,) = States(folder).rows()

    assert row.state == "done"
    assert row.error is not None
    assert "do not release" in row.error


def test_what_unfinished_runs_have_spent_is_told_beside_the_cost(folder, tmp_path, capsys):
    points = [point(tmp_path, seed) for seed in range(3)]
    describe(folder, *points)
    for one, steps in zip(points, (3, 0, 2), strict=True):
        ledger(one.path, steps)
        Journal(folder.journal).add(started(folder, one, pid=NOBODY))
    Journal(folder.journal).add(Event(events.DIVERGED, points[2].digest, error="not finite"))
    sweep._show_cost(States(folder).rows(), searched=False)
    told = " ".join(capsys.readouterr().out.split())
    both = "seed=0: epsilon 2.442 at delta 1e-05 (2.220 so far); seed=2: epsilon "
    assert f"{both}2.442 at delta 1e-05 (2.146 so far). The lesser" in told
    with (points[2].path / "ledger.jsonl").open("a") as file:
        file.write('{"step": 2, "epsilon_rdp":::::}\n')
    sweep._show_cost(States(folder).rows(), searched=False)
    told = " ".join(capsys.readouterr().out.split())
    assert f"{both}no finite number. The lesser" in told


def test_no_total_is_stated_where_an_unfinished_run_has_the_noise_of_a_finished_one(
    folder, tmp_path, capsys
):
    points = [point(tmp_path, seed) for seed in range(3)]
    describe(folder, *points)
    for one, seed in zip(points[:2], (1, 2), strict=True):
        finished(one.path, one.digest, seeds={"seed": 0, "noise": seed})
    ledger(points[2].path, 3, key=key_fingerprint(key_from_seed(1)))
    Journal(folder.journal).add(started(folder, points[2], pid=NOBODY))
    sweep._show_cost(States(folder).rows(), searched=False)
    told = " ".join(capsys.readouterr().out.split())
    assert "no total holds and none is stated" in told
    assert "costs up to" not in told


def test_what_earlier_points_of_the_same_words_have_spent_counts_too(
    folder, tmp_path, monkeypatch, capsys
):
    """A config of one's own was edited between two starts: the runs are others, the records not."""
    before, now = [point(tmp_path, seed) for seed in (1, 2, 3)], point(tmp_path, 4)
    describe(folder, *before)
    for one in before:
        Journal(folder.journal).add(started(folder, one, pid=NOBODY))
    finished(before[0].path, before[0].digest)
    ledger(before[1].path, 3)
    (before[0].path / "ledger.jsonl").write_text("")
    describe(folder, now)
    finished(now.path, now.digest)
    monkeypatch.setattr(Ended, "wait", lambda self, seconds: 0)
    monkeypatch.setattr(sweep, "Multirun", Ended)
    sweep._run((), folder, secret=False)
    told = " ".join(capsys.readouterr().out.split())
    assert "1 point: 1 done" in told
    assert "2 runs were trained with privacy on e2e" in told
    assert f"by RDP: {before[1].path}: epsilon 2.442 at delta 1e-05 (2.220 so far)" in told
    assert told.endswith(f"are counted too: {before[0].path}; {before[1].path}")


class Ended:
    """In place of Hydra's process: it has ended with an error."""

    def __init__(self, words, log):
        log.write_text("secret settings\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait(self, seconds):
        return 1


@pytest.mark.parametrize("secret", [True, False])
def test_of_secret_trials_no_file_learns_what_failed(folder, tmp_path, monkeypatch, capsys, secret):
    points = [point(tmp_path, seed) for seed in (1, 2)]
    describe(folder, *points)
    finished(points[0].path, points[0].digest)
    Journal(folder.journal).add(Event(events.FAILED, points[1].digest, error="out of memory"))
    monkeypatch.setattr(sweep, "Multirun", Ended)
    monkeypatch.setattr(sweep, "Journal", lambda path: type("", (), {"add": lambda *_: None})())
    with pytest.raises(typer.Exit):
        sweep._run((), folder, secret)
    told = "".join(capsys.readouterr())

    for known in ("seed=", "out of memory", "1 done", "0.25"):
        assert (known in told) is not secret
    assert ("why is secret as well" in told) is secret


@pytest.mark.parametrize("secret", [True, False])
def test_a_trial_that_diverged_is_done_and_a_run_that_diverged_failed(
    folder, tmp_path, monkeypatch, capsys, secret
):
    """To diverge is the worst of scores, and of secret trials no score may be known."""
    points = [point(tmp_path, seed) for seed in (1, 2)]
    describe(folder, *points)
    finished(points[0].path, points[0].digest)
    Journal(folder.journal).add(Event(events.DIVERGED, points[1].digest, error="not finite"))
    monkeypatch.setattr(Ended, "wait", lambda self, seconds: 0)
    monkeypatch.setattr(sweep, "Multirun", Ended)
    monkeypatch.setattr(sweep, "Journal", lambda path: type("", (), {"add": lambda *_: None})())
    if secret:
        sweep._run((), folder, secret)
        assert "not finite" not in "".join(capsys.readouterr())
        return
    with pytest.raises(typer.Exit):
        sweep._run((), folder, secret)
    assert "1 failed" in capsys.readouterr().out


def test_a_sweep_whose_jobs_slurm_has_dropped_ends(folder, tmp_path, monkeypatch, capsys):
    one = point(tmp_path, 1)
    describe(folder, one)
    monkeypatch.setattr(Ended, "wait", lambda self, seconds: None)
    monkeypatch.setattr(sweep, "Multirun", Ended)
    monkeypatch.setattr(sweep.Queue, "lost", lambda self: ["3_0"])
    with pytest.raises(typer.Exit):
        sweep._run((), folder, secret=False)
    said = capsys.readouterr().err
    assert "Slurm knows the jobs (3_0) no longer" in said
    assert "the same command goes on" in said


def test_a_marker_of_another_configuration_is_not_done(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    finished(one.path, "another")
    assert States(folder).rows()[0].state == "waiting"


def test_a_score_with_another_digit_is_not_shown_and_the_run_is_to_be_made_again(folder, tmp_path):
    """Its job makes the record again; what was looked at before must not stay in the table."""
    one = point(tmp_path, 1)
    describe(folder, one)
    finished(one.path, one.digest)
    Journal(folder.journal).add(Event(events.FINISHED, one.digest))
    record = one.path / "record.json"
    sound = record.read_text()
    record.write_text(sound.replace('"BLEU": 0.25', '"BLEU": 0.95'))
    states = States(folder)
    (row,) = states.rows()
    assert (row.state, row.score) == ("waiting", None)
    record.write_text(sound)
    (row,) = states.rows()
    assert (row.state, row.score) == ("done", 0.25)


def test_a_torn_ledger_line_is_not_spent_and_an_empty_ledger_is_nothing(folder, tmp_path):
    one, two = point(tmp_path, 1), point(tmp_path, 2)
    describe(folder, one, two)
    ledger(one.path, 2)
    with (one.path / "ledger.jsonl").open("a") as file:
        file.write('{"step": 2, "epsi')
    ledger(two.path, 0)
    rows = States(folder).rows()
    assert [(row.step, row.epsilon) for row in rows] == [(2, spent(2)), (0, 0.0)]


def test_a_run_that_goes_on_elsewhere_shows_its_step_and_all_that_was_spent(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    ledger(one.path, 5)
    line = {"step": 3, "compute": {"threads": 2}, "epsilon_rdp": 3.0}
    with (one.path / "ledger.jsonl").open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    (row,) = States(folder).rows()
    assert (row.step, row.epsilon) == (4, 3.0)


def test_of_a_run_without_privacy_only_the_step_is_read(folder, tmp_path):
    one = point(tmp_path, 1, private=False)
    describe(folder, one)
    (one.path / "private").mkdir(parents=True)
    (one.path / "private/metrics.jsonl").write_text('{"step": 4, "loss": 9.5}\n')
    (row,) = States(folder).rows()
    assert (row.step, row.epsilon) == (5, None)
    assert cells(row)[2:4] == ("5", "none")
    assert "9.5" not in str(row)


def test_a_second_job_for_a_run_in_use_does_not_change_its_state(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    journal = Journal(folder.journal)
    journal.add(started(folder, one))
    second = {"pid": NOBODY}
    journal.add(started(folder, one, **second))
    journal.add(Event(events.SKIPPED, one.digest, error="in use by process 1", **second))
    assert States(folder).rows()[0].state == "running"


def test_a_run_that_another_program_holds_is_skipped_and_why_is_told(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    journal = Journal(folder.journal)
    process = {"pid": NOBODY}
    journal.add(started(folder, one, **process))
    journal.add(Event(events.SKIPPED, one.digest, error="in use by process 1", **process))
    (row,) = States(folder).rows()
    assert (row.state, row.error) == ("skipped", "in use by process 1")


def test_another_metric_may_be_shown_and_a_wrong_one_is_told(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    finished(one.path, one.digest)
    assert States(folder, "NIST").rows()[0].score == 2.0
    (row,) = States(folder, "bleu").rows()
    assert row.state == "done"
    assert "sweep.metric is 'bleu'; expected one of BLEU, NIST" in row.error


def test_points_that_a_sweeper_chooses_are_met_one_by_one(folder, tmp_path):
    folder.describe(ParsedOverrides(("hydra/sweeper=optuna",)), (), SweepPlan(None, 0, tmp_path))
    assert States(folder).rows() == []
    journal = Journal(folder.journal)
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


def test_a_sweep_is_run_by_one_process(folder):
    with folder.lock(), pytest.raises(RunLockedError, match="dpft sweep --watch"):
        folder.lock()
    with pytest.raises(KeyError), folder.lock():
        raise KeyError
    folder.lock().close()  # whatever the last one ended by, the next may begin


def test_the_same_words_are_the_same_sweep():
    one = default_name(ParsedOverrides(("seed=1,2",)), (("eps=3",),))
    assert one == default_name(ParsedOverrides(("seed=1,2",)), (("eps=3",),))
    assert one != default_name(ParsedOverrides(("seed=1,2",)), (("eps=8",),))
    with pytest.raises(ConfigError, match=r"--name is '\.\./x'"):
        folder_of(Path("runs"), "../x")


def test_a_sweep_goes_on_with_another_launcher(folder, tmp_path):
    """Also `dpft select`, whose second selection under another name would spend again."""
    plan = SweepPlan((point(tmp_path, 1),), 0, tmp_path)
    alone = ParsedOverrides(("seed=1,2",))
    launched = ParsedOverrides(("seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"))
    assert default_name(alone, ()) == default_name(launched, ())
    for words in (alone, launched, alone):
        folder.describe(words, (), plan)
    with pytest.raises(ConfigError, match="holds another sweep"):
        folder.describe(ParsedOverrides(("seed=1,2", "hydra/sweeper=optuna")), (), plan)


def test_a_table_fits_and_shows_what_is_urgent(folder, tmp_path):
    points = [point(tmp_path, seed) for seed in range(6)]
    describe(folder, *points)
    finished(points[0].path, points[0].digest)
    finished(points[1].path, points[1].digest)
    Journal(folder.journal).add(started(folder, points[4], pid=os.getpid()))
    rows = States(folder).rows()
    assert [row.label for row in shortened(rows, 2)] == ["seed=1", "seed=4"]
    assert [row.label for row in shortened(rows, 99)] == [row.label for row in rows]
    console = Console(record=True, width=90, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(as_table(rows, summary(rows)))
    shown = console.export_text()
    console.file.close()
    assert "6 points: 2 done, 1 running, 3 waiting" in shown
    assert "BLEU" in shown
    assert clock(3671) == "1:01:11"


@pytest.mark.parametrize("dumb", [False, True])
def test_where_nothing_can_be_redrawn_lines_can_be_left_out(
    folder, tmp_path, capsys, monkeypatch, dumb
):
    if dumb:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")
    describe(folder, point(tmp_path, 1))
    Journal(folder.journal).add(Event(events.FAILED, "hash-1", error="no"))
    said = []
    for lines in (True, False):
        with Display(lines=lines) as display:
            display.show(States(folder).rows())
        said.append(capsys.readouterr().err)
    assert said[0].startswith("[0/1 done]")
    assert said[1] == ""
