"""Ranks find each other, whatever an earlier life has left, and tell why they part."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dpft.config.errors import ConfigError, DataError, RankError
from dpft.config.schema import Parallel
from dpft.parallel import layouts
from dpft.parallel.cohort import TrainingCohort, together
from dpft.parallel.launch import check_launcher, launched
from dpft.parallel.layouts import joined
from tests.parallel.ranks import free_port, in_group


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined(torch.device("cpu"), Parallel()) as cohort:
        assert isinstance(cohort, TrainingCohort)
        tensor = torch.ones(3)
        cohort.all_reduce([tensor])
        cohort.barrier(word="x")
        assert (list(cohort.share([3, 1])), cohort.broadcast_object(5)) == ([3, 1], 5)
        assert tensor.tolist() == [1] * 3
        with pytest.raises(ValueError, match="why"):
            cohort.barrier(ValueError("why"))


def _heard(number, frame):
    raise SystemExit(143)


def join_and(what):
    """A rank; it says what it has come to."""
    if what == "die":  # one of them, when the other waits for it
        signal.signal(signal.SIGTERM, _heard)
        grouped = dist.init_process_group

        def met(*args, rank, **more):
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            print("met", flush=True)
            grouped(*args, rank=rank, **more)

        dist.init_process_group = met
    if what == "alone":
        layouts._JOINING = timedelta(seconds=2)
    try:
        layout = Parallel("fsdp" if what == "fail amid" else "data")
        if what == "be unlike" and os.environ["RANK"] == "1":
            layout = Parallel("pipeline")
        with joined(torch.device("cpu"), layout) as cohort:
            cohort.barrier(word="here")
            print("joined", flush=True)
            if what == "wait":
                time.sleep(60)
            if what == "fail" and cohort.rank == 1:
                raise DataError("there is no train.csv")
            if what == "fail amid":
                with together(cohort):
                    if cohort.rank == 1:
                        raise DataError("there is no train.csv")
                    cohort.all_gather([0] * 1000)
            if what == "stop" and cohort.rank == 1:
                raise KeyboardInterrupt
            cohort.barrier()
    except (RankError, DataError, KeyboardInterrupt) as error:
        print(error, flush=True)


@pytest.fixture
def server():
    """The store of torchrun, which outlives its ranks."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def begin(server, what, life=0):
    agent = {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": life}
    return [in_group(rank, 2, server.port, join_and, what, **agent) for rank in range(2)]


def said_by(processes):
    results = [process.finish(60) for process in processes]
    assert [result.returncode for result in results] == [0] * len(processes), results
    return [result.stdout for result in results]


def test_ranks_that_are_begun_again_do_not_wait_for_the_dead(server):
    """By the keys of its earlier life, a rank would connect to a dead one's address and wait."""
    processes = begin(server, "wait")
    for process in processes:
        process.wait_for(lambda process=process: "joined" in process.said[0])
    for process in processes:
        process.kill()
    began = time.monotonic()
    assert said_by(begin(server, "go on", life=1)) == ["joined\n"] * 2
    assert time.monotonic() - began < 30


def test_a_rank_that_waits_for_a_dead_one_hears_that_it_is_to_stop(server):
    """torch waits for it in C++, where no handler of Python's is called."""
    first, second = begin(server, "die")
    assert second.finish(60).returncode == -signal.SIGKILL
    first.wait_for(lambda: "met" in first.said[0])
    time.sleep(0.5)  # it is in C++ by then; else the other handler hears it
    os.kill(first.pid, signal.SIGTERM)
    assert first.finish(10).returncode in (-signal.SIGTERM, 143)


def test_a_rank_whose_peer_never_comes_says_so():
    (text,) = said_by([in_group(1, 2, free_port(), join_and, "alone")])
    assert "the ranks did not find each other" in text


def test_ranks_of_unlike_layouts_stop_at_once(server):
    """Each would wait for half an hour for a group that the other does not make."""
    for text in said_by(begin(server, "be unlike")):
        assert "has computed something else than another rank" in text
        assert "joined" not in text


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("fail", "rank 1 of 2 stopped: there is no train.csv"),
        ("fail amid", "rank 1 of 2 stopped: there is no train.csv"),
        ("stop", "rank 1 of 2 was interrupted; the same command continues"),
    ],
)
def test_those_who_are_left_behind_say_why(server, what, reason):
    first, _ = said_by(begin(server, what))
    assert reason in first


# How a process finds out that it is one of several, and what it refuses to be.
TORCHRUN = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
TORCHRUN |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
# Of a step of one task in a job of two: what `srun -n 1` says below `sbatch --ntasks=2`.
ONE_TASK = {"SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.fixture
def variables(request, monkeypatch):
    for name in (*TORCHRUN, *ONE_TASK, "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "processes"),
    # The last: torchrun below srun, one task a node.
    [({}, 1), (ONE_TASK, 1), (TORCHRUN | {"SLURM_STEP_NUM_TASKS": "2"}, 2)],
    indirect=["variables"],
)
@pytest.mark.usefixtures("variables")
def test_groups_and_single_processes_go_on(processes):
    check_launcher()
    check_launcher(processes)
    assert launched() == processes


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE is 2: .* torchrun .* ranks=N"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS is 2"),
        # Scripts for other programs export the size alone.
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "but RANK, LOCAL_RANK, MASTER_PORT is"),
        ({}, "ranks is 3, but this is one process"),
        (TORCHRUN, "ranks is 3, but this is one of 2 processes"),
    ],
    indirect=["variables"],
)
@pytest.mark.usefixtures("variables")
def test_processes_that_are_no_group_or_of_another_number_are_refused(message):
    with pytest.raises(ConfigError, match=message):
        check_launcher(3)
