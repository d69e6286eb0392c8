"""Trackers: what leaves the private folder, what a restart leaves, and that none stops a run."""

import csv
import json
import sys

import pytest

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.privacy import Mechanism
from dpft.runs.folders import run_path
from dpft.training import trackers
from dpft.training.session import Session
from dpft.training.trackers import CSV, Tracking, public_settings
from tests.small_runs import WORDS, ready, settings

SUMMARY = {
    "records": 7, "dropped": 0, "microbatches": 1, "loss": 6.4, "seconds": 0.1,
    "norm_mean": [3.0], "clipped": [1.0],
}  # fmt: skip


def test_only_what_the_guarantee_covers_is_tracked(tmp_path):
    tracker = Tracking(settings(tmp_path, "track=csv"), tmp_path, print)

    def tracked(sigma=1.0):
        mechanism = Mechanism(100, 10, 4, sigma, (1.0,) if sigma else (), 1e-5)
        return tracker.figures(mechanism, (), 0, 0.1, (1.0,), SUMMARY)

    assert set(tracked()) == {"learning_rate", "epsilon", "noise_multiplier", "threshold/0"}
    assert tracked(sigma=0.0)["train/loss"] == 6.4  # nothing is guaranteed there


def test_tracked_settings_name_no_data_and_no_seed_of_the_noise():
    secret = ["task=text2text", "task.train_file=/home/ann/patients.jsonl", "runs_dir=/home/ann"]
    run = parse(compose([*secret, "privacy.noise_seed=12345"]))
    shown = f"{public_settings(run)}"
    for word in ("ann", "patients", "12345"):
        assert word not in shown
    assert "optim.lr" in shown


class Failing:
    """Begins unless ``start`` is 0, and takes step 1 alone."""

    def __init__(self, start):
        if not start:
            raise OSError("no network")

    def log(self, values, step=None):
        if step != 1:
            raise OSError("no network")

    def finish(self):
        raise OSError("no network")


@pytest.mark.parametrize(("start", "last"), [(0, 1), (1, 1), (1, 2)])
def test_a_tracker_that_fails_is_reported_once_and_stops_nothing(
    tmp_path, monkeypatch, start, last
):
    said = []
    monkeypatch.setattr(trackers, "make_tracker", lambda run, folder, start: Failing(start))
    tracker = Tracking(settings(tmp_path, "track=csv"), tmp_path, said.append)
    tracker.begin(start)
    for step in range(1, last + 1):
        tracker.log(step, {})
    tracker.close()
    assert len(said) == 1
    assert "no network" in said[0]


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_steps_that_are_repeated_have_one_line_in_the_file(tmp_path):
    for start, steps in enumerate(((1, 2), (2, 3))):
        tracker = CSV(tmp_path / "track.csv", start)
        for step in steps:
            tracker.log({"epsilon": step * 10.0 + start}, step)
        tracker.finish()
    table = rows(tmp_path / "track.csv")
    found = [(row["step"], float(row["epsilon"])) for row in table]
    assert found == [("1", 10.0), ("2", 21.0), ("3", 31.0)]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_every_tracker_takes_a_run(tmp_path, monkeypatch, name):
    """With the real package, where it is installed."""
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlflow")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    said = []
    run = parse(compose([f"track={name}", "privacy.noise_seed=12345"]))
    tracker = Tracking(run, tmp_path, said.append)
    tracker.begin(0)
    for step in (1, 2):
        tracker.log(step, {"epsilon": float(step), "threshold/h.0": 0.1})
    tracker.log(None, {"test/BLEU": 0.6})
    tracker.close()
    assert not said
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "epsilon" or b"epsilon" in path.read_bytes() for path in files)
    for word in (b"12345", sys.argv[0].encode()):
        assert not any(word in path.read_bytes() for path in files), word
    assert {path.read_text() for path in tmp_path.rglob("mlflow.user")} <= {"dpft"}


def test_figures_of_records_that_were_not_declared_public_stay_private(tmp_path, capsys):
    """On a file of the user's, of which a share is held out."""
    texts = [json.dumps({"text": f"text number {n}", "label": "ab"[n % 2]}) for n in range(80)]
    (tmp_path / "train.jsonl").write_text("\n".join(texts))
    words = [word for word in WORDS if not word.startswith(("task", "name"))]
    words += [
        *("task=classification", f"task.train_file={tmp_path / 'train.jsonl'}"),
        *("task.dev_share=0.3", "task.text_column=text", "task.label_column=label"),
        *("task.classes=[a,b]", "decode.split=dev", "evaluate.every=1", "track=csv"),
        *(f"runs_dir={tmp_path}", "optim.lr=1.0"),
    ]
    own, public = (
        parse(compose([*words, f"name={name}", f"evaluate.public={name == 'public'}".lower()]))
        for name in ("own", "public")
    )
    assert public.identity() == own.identity()
    found = []
    for run in (own, public):
        with ready(run) as (prepared, directory, progress):
            tracking = Tracking(run, directory.path, progress.warn)
            with tracking as tracker, Session(prepared) as session:
                session.train(tracker)
        found.append((session.evaluation, capsys.readouterr().err))
    section, said = found[0]
    assert "history" not in section
    assert (section["of"], section["public"], section["evaluations"]) == ("dev", False, 3)
    assert "dev: loss" not in said
    lines = (run_path(own) / "private/evaluations.jsonl").read_text().splitlines()
    assert {"loss", "accuracy", "step"} == json.loads(lines[0]).keys()
    table = rows(run_path(own) / "track.csv")
    assert [row["step"] for row in table] == ["1", "2"]
    assert float(table[0]["epsilon"]) < float(table[1]["epsilon"])
    noiseless = ("eval", "loss", "records", "norm", "clipped", "dropped", "seconds", "microbatches")
    assert not [name for name in table[0] if any(word in name for word in noiseless)]
    section, said = found[1]
    assert "step 1/2 dev: loss" in " ".join(said.split())
    table = rows(run_path(public) / "track.csv")
    assert [row["step"] for row in table] == ["0", "1", "2"]
    assert [bool(row["epsilon"]) for row in table] == [False, True, True]
    accuracies = [entry["accuracy"] for entry in section["history"]]
    assert [float(row["eval/accuracy"]) for row in table] == accuracies
