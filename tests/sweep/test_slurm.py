"""A queue that has dropped a sweep's jobs, with Slurm's answers made up."""

import pytest

from dpft.sweep.slurm import Queue


class Slurm:
    """Answers as a cluster does: jobs in the queue, and accounts or none."""

    def __init__(self, queued=(), accounts=False, reachable=True):
        self.queued, self.accounts, self.reachable = queued, accounts, reachable

    def __call__(self, command):
        if command[0] == "sacct":
            return "" if self.accounts else None
        return "".join(f"{job}\n" for job in self.queued) if self.reachable else None


@pytest.fixture
def submitted(tmp_path):
    def submit(*jobs, results=()):
        for job in jobs:
            (tmp_path / job).mkdir(exist_ok=True)
            (tmp_path / job / f"{job}_submitted.pkl").touch()
        for job in results:
            (tmp_path / job / f"{job}_0_result.pkl").touch()
        return tmp_path

    return submit


def looks(folder, slurm, count=3, before=()):
    queue = Queue(folder(*before), every=0.0, ask=slurm)
    folder("3_0", "3_1")
    return [queue.lost() for _ in range(count)]


def test_jobs_that_the_queue_has_dropped_are_lost_at_the_second_look(submitted):
    assert looks(submitted, Slurm()) == [[], ["3_0", "3_1"], ["3_0", "3_1"]]


def test_others_are_waited_for(submitted):
    """One runs; one has a result; Slurm does not answer; accounts tell Submitit; no job at all."""
    assert looks(submitted, Slurm(queued=["3_1"])) == [[]] * 3
    assert looks(submitted, Slurm(reachable=False)) == [[]] * 3
    assert looks(submitted, Slurm(accounts=True)) == [[]] * 3
    assert looks(submitted, Slurm(), before=("3_0", "3_1")) == [[]] * 3


def test_what_has_a_result_is_not_lost(submitted):
    folder = submitted()
    queue = Queue(folder, every=0.0, ask=Slurm())
    submitted("3_0", "3_1", results=["3_0"])
    assert queue.lost() == []
    assert queue.lost() == ["3_1"]
    submitted(results=["3_1"])
    assert queue.lost() == []


def test_slurm_is_asked_rarely(submitted):
    queue = Queue(submitted(), ask=lambda command: pytest.fail("asked at once"))
    submitted("3_0")
    assert queue.lost() == []
