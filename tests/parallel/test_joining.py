"""Ranks find each other, whatever an earlier life has left, and tell why they part."""

import os
import signal
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dpft.config.errors import DataError, RankError
from dpft.config.schema import Parallel
from dpft.parallel import joining
from dpft.parallel.cohort import SingleProcess, together
from dpft.parallel.joining import agreed
from dpft.parallel.layouts import joined
from tests.parallel.launched import environment
from tests.processes import Forked


def life(store, size, late=0.0):
    """The stores that so many ranks agree on; the last one comes later than the others."""
    found = {}

    def begin(rank):
        time.sleep(late if rank == size - 1 else 0.0)
        found[rank] = agreed(store, rank, size, timedelta(seconds=20))

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_agree_on_a_place_that_no_earlier_life_knows(size):
    store = dist.HashStore()
    for number in range(3):
        places = life(store, size, late=0.3)
        assert not places[0].check(["key"])
        places[0].set("key", f"{number}")
        assert [place.get("key") for place in places] == [f"{number}".encode()] * size


def test_a_rank_that_dies_before_all_are_there_is_replaced_by_its_successor():
    store = dist.HashStore()
    with pytest.raises(RankError, match=r"ranks \[0\] to begin"):
        agreed(store, 1, 2, timedelta(seconds=0.1))  # dies
    assert len(life(store, 2, late=0.2)) == 2


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined(torch.device("cpu"), Parallel()) as cohort:
        assert isinstance(cohort, SingleProcess)
        tensor = torch.ones(3)
        cohort.add_up([tensor])
        cohort.meet(word="x")
        assert (list(cohort.share([3, 1])), cohort.from_first(5)) == ([3, 1], 5)
        assert tensor.tolist() == [1] * 3
        with pytest.raises(ValueError, match="why"):
            cohort.meet(ValueError("why"))


def _heard(number, frame):
    raise SystemExit(143)


def join_and(what, late):
    """A rank; it says what it has come to."""
    time.sleep(late)
    if what == "die":  # one of them, when each knows that the other is there
        signal.signal(signal.SIGTERM, _heard)
        grouped = dist.init_process_group

        def met(*args, rank, **more):
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            print("met", flush=True)
            grouped(*args, rank=rank, **more)

        dist.init_process_group = met
    try:
        layout = Parallel("fsdp" if what == "fail amid" else "data")
        if what == "be unlike" and os.environ["RANK"] == "1":
            layout = Parallel("pipeline")
        with joined(torch.device("cpu"), layout) as cohort:
            cohort.meet(word="here")
            print("joined", flush=True)
            if what == "wait":
                time.sleep(60)
            if what == "fail" and cohort.rank == 1:
                raise DataError("there is no train.csv")
            if what == "fail amid":
                with together(cohort):
                    if cohort.rank == 1:
                        raise DataError("there is no train.csv")
                    cohort.gather([0] * 1000)
            if what == "stop" and cohort.rank == 1:
                raise KeyboardInterrupt
            cohort.meet()
    except (RankError, DataError, KeyboardInterrupt) as error:
        print(error, flush=True)


@pytest.fixture
def server():
    """The store of torchrun, which outlives its ranks."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def begin(server, what, late=(0.0, 0.0)):
    processes = []
    for rank in range(2):
        with environment(
            RANK=rank,
            WORLD_SIZE=2,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=server.port,
            TORCHELASTIC_USE_AGENT_STORE=True,
            OMP_NUM_THREADS=1,
        ):
            processes.append(Forked(join_and, what, late[rank]))
    return processes


def said(processes):
    results = [process.finish(60) for process in processes]
    assert [result.returncode for result in results] == [0, 0], results
    for process in processes:
        process.__exit__()
    return [result.stdout for result in results]


@pytest.mark.parametrize("late", [(0.0, 0.7), (0.7, 0.0)])
def test_ranks_that_are_begun_again_do_not_wait_for_the_dead(server, late):
    """Of torch's own, the rank that comes first connects to the dead one's address and waits."""
    processes = begin(server, "wait")
    for process in processes:
        process.wait_for(lambda process=process: "joined" in process.said[0])
    for process in processes:
        process.__exit__()
    began = time.monotonic()
    assert said(begin(server, "go on", late)) == ["joined\n"] * 2
    assert time.monotonic() - began < 30


def test_a_rank_that_waits_for_a_dead_one_hears_that_it_is_to_stop(server):
    """torch waits for it in C++, where no handler of Python's is called."""
    first, second = begin(server, "die")
    assert second.finish(60).returncode == -signal.SIGKILL
    first.wait_for(lambda: "met" in first.said[0])
    time.sleep(0.5)  # it is in C++ by then; else the other handler hears it
    os.kill(first.pid, signal.SIGTERM)
    assert first.finish(10).returncode in (-signal.SIGTERM, 143)
    for process in (first, second):
        process.__exit__()


POINTS = {
    "heard of": (joining, "_meeting_place"),
    "named": (joining, "agreed"),
    "connected": (dist, "init_process_group"),
    "patient": (joining, "_set_pg_timeout"),
}


def join_by_variables(dies, then):
    """A rank that holds the store itself, or asks the first one; it may die before it is ``dies``.

    Times are short, so that the test is.
    """
    joining._JOINING_HERE = joining._CONNECTING = joining._MEETING = timedelta(seconds=2)
    if dies is not None:
        setattr(*POINTS[dies], lambda *_, **more: os.kill(os.getpid(), signal.SIGKILL))
    try:
        with joined(torch.device("cpu"), Parallel()) as cohort:
            time.sleep(then)
            cohort.meet()
            print("met", flush=True)
    except RankError as error:
        print(error, flush=True)


def by_variables(*ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank, arguments in enumerate(ranks):
        with environment(RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port):
            processes.append(Forked(join_by_variables, *arguments))
    return processes


@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("dies", POINTS)
def test_a_rank_that_dies_while_it_joins_is_not_waited_for(dies, dead):
    processes = by_variables(*[(dies if rank == dead else None, 0.0) for rank in range(2)])
    other = processes[1 - dead].finish(20)
    assert processes[dead].finish(20).returncode == -signal.SIGKILL
    for process in processes:
        process.__exit__()
    assert other.returncode == 0, other.stderr
    assert "rank" in other.stdout
    assert "met" not in other.stdout


def test_a_rank_that_is_slow_once_it_has_joined_is_waited_for():
    """Longer than connecting may take."""
    processes = by_variables((None, 0.0), (None, 4.0))
    assert said(processes) == ["met\n"] * 2


def test_ranks_of_unlike_layouts_stop_at_once(server):
    """Each would wait for half an hour for a group that the other does not make."""
    for told in said(begin(server, "be unlike")):
        assert "has computed something else than another rank" in told
        assert "joined" not in told


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("fail", "rank 1 of 2 stopped: there is no train.csv"),
        ("fail amid", "rank 1 of 2 stopped: there is no train.csv"),
        ("stop", "rank 1 of 2 was told to stop; the same command continues"),
    ],
)
def test_those_who_are_left_behind_say_why(server, what, reason):
    first, _ = said(begin(server, what))
    assert reason in first
