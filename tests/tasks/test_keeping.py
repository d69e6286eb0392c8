"""What is kept of large data changes how soon a run starts, and nothing else."""

import json

import pytest

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.runs.array_store import ArrayStore
from dpft.tasks import kept_readings
from dpft.tasks.keeping import code, keeping_of
from dpft.tasks.objectives import encoding
from dpft.training.run import run_experiment


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "LARGE", 1)
    monkeypatch.setattr(kept_readings, "LARGE", 0)
    rows = [{"text": f"text {n} " * (1 + n % 5), "who": f"u{n % 20}"} for n in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*overrides):
        typed = [
            "task=language_modeling", f"task.train_file={tmp_path}/a.jsonl", "task.test_share=0.2",
            "task.max_length=24", "task.unit=user", "task.user_column=who", "task.limit_eval=2",
            "optim.batch_size=4", "optim.steps=2", "privacy.noise_seed=1", "threads=1",
            f"runs_dir={tmp_path}/runs",
        ]  # fmt: skip
        outcome = run_experiment(parse(compose([*typed, *overrides])))
        return (outcome.path / "ledger.jsonl").read_text(), outcome.record["scores"]

    return run


def test_runs_on_what_was_kept_are_the_same_runs(run, tmp_path):
    plain = run("name=plain", "cache=none")
    cache = tmp_path / "runs/private/cache"
    assert not cache.exists()
    assert run("name=first") == plain
    entries = sorted(path for path in cache.iterdir() if path.is_dir())
    assert len(entries) == 2  # what was read, and what was encoded
    made = [(entry / "arrays.json").stat().st_mtime_ns for entry in entries]
    assert run("name=second") == plain
    assert sorted(path for path in cache.iterdir() if path.is_dir()) == entries
    assert [(entry / "arrays.json").stat().st_mtime_ns for entry in entries] == made


def test_where_it_is_kept_is_no_part_of_a_run(tmp_path):
    raw = compose(["task=e2e", f"runs_dir={tmp_path}", "name=a/b"])
    plain, elsewhere, nowhere = (
        parse({**raw, "cache": cache}) for cache in ("auto", str(tmp_path / "my"), "none")
    )
    assert plain.identity() == elsewhere.identity() == nowhere.identity()
    assert parse({k: v for k, v in raw.items() if k != "cache"}).cache == "auto"
    folders = [keeping_of(run, print, print).store.folder for run in (plain, elsewhere)]
    assert folders == [tmp_path / "a/private/cache", tmp_path / "my/private/cache"]
    assert keeping_of(nowhere, print, print) is None


def test_other_code_makes_other_arrays(monkeypatch):
    before = code()
    assert code() == before
    monkeypatch.setattr("dpft.tasks.keeping.version", lambda name: f"{name} of tomorrow")
    assert code() != before


def test_who_is_waited_for_is_said(tmp_path):
    from dpft.tasks.keeping import Keeping

    class Busy(ArrayStore):
        def get(self, identity, fill, waiting):
            waiting()

    said = []
    Keeping(Busy(tmp_path), said.append, said.append).get("encoded records", "", print)
    assert "waiting for another run, which prepares encoded records" in said[0]
