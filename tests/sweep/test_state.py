"""States read from run directories made by hand."""

import json

import pytest

from dpft.cli import sweep
from dpft.config.errors import ConfigError
from dpft.report.console import Console
from dpft.runs.finished import marked
from dpft.runs.ledger import chained_lines
from dpft.sweep.folder import Failure, SweepFolder, default_name, folder_of
from dpft.sweep.points import ParsedOverrides, SweepPlan, SweepPoint
from dpft.sweep.state import States, as_table, summary
from tests.report.pages.example import epsilon, mechanism
from tests.report.pages.example import record as whole


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
    (path / "DONE").write_text(marked(path, digest))


def test_every_state_is_told(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    points = [point(tmp_path, seed) for seed in range(4)]
    describe(folder, *points)
    finished(points[0].path, points[0].digest)
    ledger(points[1].path, 3)
    folder.fail(points[2].digest, Failure(error="no data", diverged=False))
    rows = States(folder).rows()
    assert [row.state for row in rows] == ["done", "started", "failed", "waiting"]
    assert [row.label for row in rows[:2]] == ["seed=0", "seed=1"]
    assert rows[2].error == "no data"
    assert summary(rows) == "4 points: 1 done, 1 started, 1 failed, 1 waiting"
    as_table(rows).show(Console())
    assert "seed=0 done 2.900 BLEU 0.2500 0:01:01" in " ".join(capsys.readouterr().out.split())
    folder.forget_failures()
    assert [row.state for row in States(folder).rows()][2] == "waiting"
    folder.failures.joinpath(f"{points[2].digest}.json").write_text("{")
    assert "cannot be read" in States(folder).rows()[2].error


def test_a_refuted_run_is_done_with_an_error(folder, tmp_path):
    one = point(tmp_path, 1)
    describe(folder, one)
    audit = {"epsilon_lower": 9.0, "confidence": 0.95, "refuted": True}
    finished(one.path, one.digest, audit=audit)
    (row,) = States(folder).rows()
    assert (row.state, row.error[:9]) == ("done", "the audit")


def test_what_unfinished_runs_have_spent_is_told_beside_the_cost(folder, tmp_path, capsys):
    points = [point(tmp_path, seed) for seed in range(3)]
    describe(folder, *points)
    for one, steps in zip(points, (3, 0, 2), strict=True):
        ledger(one.path, steps)
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


def test_a_score_with_another_digit_is_not_shown_and_the_run_is_to_be_made_again(folder, tmp_path):
    """Its job makes the record again; what was looked at before must not stay in the table."""
    one = point(tmp_path, 1)
    describe(folder, one)
    finished(one.path, one.digest)
    record = one.path / "record.json"
    sound = record.read_text()
    record.write_text(sound.replace('"BLEU": 0.25', '"BLEU": 0.95'))
    states = States(folder)
    (row,) = states.rows()
    assert (row.state, row.score) == ("started", "-")
    record.write_text(sound)
    (row,) = states.rows()
    assert (row.state, row.score) == ("done", "BLEU 0.2500")


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
        folder.describe(ParsedOverrides(("seed=1,2", "eps=1")), (), plan)
