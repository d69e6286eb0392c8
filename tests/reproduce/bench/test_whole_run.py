"""A whole run is timed by its own steps, and leaves nothing."""

from functools import partial

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.whole_run import figures, jobs_of, measure, table
from dpft.training.executors import Programs
from tests.small_runs import WORDS


def words(*more):
    return [word for word in WORDS if not word.startswith(("name=", "optim.steps="))] + list(more)


@pytest.mark.parametrize("label", ["none, eager", "bk, compiled"])
def test_every_step_of_a_run_is_timed_after_it_has_warmed_up(label, tmp_path, monkeypatch):
    monkeypatch.setattr("dpft.training.session.Programs", partial(Programs, backend="graph"))
    found = measure(jobs_of(words("clip=bk"), tmp_path, threads=1, steps=2)[label])
    assert len(found["steps"]) == 2
    assert all(step["seconds"] > 0 and step["microbatches"] >= 1 for step in found["steps"])
    assert found["records"] == 12
    assert found["private"] is (label != "none, eager")


def test_what_is_typed_is_not_varied(tmp_path):
    def labels(*typed):
        return list(jobs_of(typed, tmp_path, threads=1, steps=1))

    both = ["none, compiled", "none, eager"]
    assert labels("clip=bk", "eps=2") == [*both, "bk, compiled", "bk, eager"]
    assert labels("clip=none") == both
    assert labels("clip=ghost", "clip.threshold=1", "compile=true") == [
        "none, compiled",
        "ghost, compiled",
    ]
    with pytest.raises(ConfigError, match="runs_dir=here next to --run"):
        labels("runs_dir=here")


def step(seconds):
    return {"seconds": seconds, "records": 10, "microbatches": 3}


def result(*seconds, private=False):
    return {"status": "ok", "steps": [step(one) for one in seconds], "warnings": [],
            "private": private, "records": 9, "batch_size": 8, "parameters": 5}  # fmt: skip


def test_a_step_that_compiles_does_not_count():
    found = figures(result(1, 1, 1, 1, 1, 1, 90, 0.1))
    assert found == {"records a second": 10, "ms of a step": 1000, "microbatches": 3}


def test_the_table_has_ratios_to_the_fastest_run_without_privacy():
    refused = {"status": "refused", "message": "ValueError: not this one"}
    found = {"none, compiled": result(1), "none, eager": result(2)}
    found |= {"bk, eager": result(3, private=True), "bk, compiled": refused}
    known = {"cpu": "a processor", "threads": 1, "packages": {"torch": "2.0"}}
    shown = table({"device": "cpu", "environment": known}, 0.5, found)
    assert shown.rows[-1] == ["time, to the fastest none", "1.00", "2.00", "3.00", "-"]
    assert ("bk, compiled", "ValueError: not this one") in shown.notes
