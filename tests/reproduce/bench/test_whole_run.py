"""A whole run is timed by its own steps, and leaves nothing."""

from functools import partial

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.whole_run import WARM_UP, figures, jobs_of, measure, table
from dpft.training.executors import Programs
from tests.small_runs import WORDS


def words(*more):
    return [word for word in WORDS if not word.startswith("name=")] + list(more)


@pytest.mark.parametrize("label", ["none, eager", "bk, compiled"])
def test_every_phase_of_a_run_is_timed_after_it_has_warmed_up(label, tmp_path, monkeypatch):
    monkeypatch.setattr("dpft.training.session.Programs", partial(Programs, backend="graph"))
    settings = words("clip=bk", f"optim.steps={WARM_UP + 3}")
    job = jobs_of(settings, tmp_path, threads=1, steps=2)[label]
    reported = []
    found = measure(job, iter([reported.append] * 2))
    assert reported == [sum(step["seconds"].values()) for step in found["steps"]]
    phases = {"data", "clipped sums", "noise", "ledger", "optimizer", "logs", "waiting"}
    assert all(step["seconds"].keys() == phases for step in found["steps"])
    assert min(step["microbatches"] for step in found["steps"]) >= 1
    assert found["records"] == 12


def test_a_run_of_too_few_steps_is_an_error(tmp_path):
    job = jobs_of(words("compile=false"), tmp_path, threads=1, steps=2)["none, eager"]
    with pytest.raises(ConfigError, match=f"type optim.steps={WARM_UP + 3}"):
        measure(job, [])


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


def step(seconds, records=10):
    return {"seconds": {"data": seconds / 2, "waiting": seconds / 2}, "records": records,
            "microbatches": 3}  # fmt: skip


def result(*seconds, private=False):
    return {"status": "ok", "steps": [step(one) for one in seconds], "warnings": [],
            "private": private, "records": 9, "batch_size": 8, "parameters": 5}  # fmt: skip


def test_a_step_that_compiles_does_not_count():
    found = figures(result(1, 1, 1, 1, 1, 1, 90, 0.1), cuda=False)
    assert found["records a second"] == 10
    assert found["ms of a step"] == 1000
    assert found["ms of host work"] == found["ms of data"] == 500


def test_the_table_has_ratios_to_the_fastest_run_without_privacy():
    refused = {"status": "refused", "message": "ValueError: not this one"}
    found = {"none, compiled": result(1), "none, eager": result(2)}
    found |= {"bk, eager": result(3, private=True), "bk, compiled": refused}
    known = {"cpu": "a processor", "threads": 1, "packages": {"torch": "2.0"}}
    shown = table({"device": "cpu", "environment": known}, 0.5, found)
    assert shown.rows[-1] == ["time, to the fastest none", "1.00", "2.00", "3.00", "-"]
    assert ("bk, compiled", "ValueError: not this one") in shown.notes
