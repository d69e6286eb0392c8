"""A rank that dies or leaves ends all, and the same command goes on to the same bits."""

import os
import random
import signal
import time
from types import SimpleNamespace

import pytest

from tests.parallel.kills import campaign
from tests.parallel.launched import (
    LONG,
    SETTINGS,
    STEPS,
    Agent,
    Torchrun,
    await_,
    end,
    lives,
    ranks,
)
from tests.torture import Watched, content, differing, leftovers

ADAPTIVE = "clip=per_layer_adaptive"


@pytest.fixture
def unbroken(complete):
    """A run that nobody killed: its files, and how long it took."""
    run = complete(2, ADAPTIVE)
    return SimpleNamespace(files=content(run.path), seconds=run.seconds)


def statuses(processes, seconds=120):
    """How the ranks ended, which they must within that time."""
    try:
        return [process.finish(seconds).returncode for process in processes]
    finally:
        for process in processes:
            process.__exit__()


def test_ranks_that_are_killed_at_any_moment_end_like_unbroken_ones(tmp_path, unbroken):
    draw = random.Random(0)
    folder = tmp_path / "runs/run"
    watched = Watched(folder, steps=STEPS, private=True)
    command = [*SETTINGS, ADAPTIVE, "name=run"]
    # The folder's first files are written before the ranks meet again.
    both = ranks(command, tmp_path, tmp_path, run=folder, last=draw.randrange(30, 90))
    first, second = statuses(both)
    assert first == -signal.SIGKILL
    assert second in (0, 2)  # it may have been through by then
    assert watched.look()[1] == 0
    both, which = ranks(command, tmp_path, tmp_path), draw.randrange(2)
    time.sleep(draw.random() * unbroken.seconds)
    both[which].kill()
    end(both[1 - which].pid, signal.SIGTERM)  # as torchrun does
    assert statuses(both)[1 - which] in (0, 2, 143, -signal.SIGTERM)
    assert watched.look()[1] == 0
    assert statuses(ranks(command, tmp_path, tmp_path)) == [0, 0]
    assert watched.look() == (STEPS, 0)
    assert differing(unbroken.files, content(folder)) == {}
    assert leftovers(folder) == []


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=LONG)])
def test_torchrun_begins_again_and_force_is_meant_once(tmp_path, unbroken, rank):
    folder = tmp_path / "runs/run"
    ledger = folder / "ledger.jsonl"
    with Agent([*SETTINGS, ADAPTIVE, "name=run", "force=true"], tmp_path, restarts=1) as run:
        await_(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > 1, 120)
        end(run.ranks()[rank], signal.SIGKILL)
        assert run.finish(120) == 0, run.said
    assert differing(unbroken.files, content(folder)) == {}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def test_shards_of_which_one_is_killed_end_with_a_message(tmp_path):
    first, second = ranks(
        [*SETTINGS, ADAPTIVE, "parallel=fsdp", "optim.steps=500"], tmp_path, tmp_path
    )
    first.wait_for(lambda: any(tmp_path.glob("runs/*/private/metrics.jsonl")))
    second.kill()
    result = first.finish(60)
    for process in (first, second):
        process.__exit__()
    assert result.returncode == 2
    assert "another rank does not answer" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_rank_that_lacks_a_file_ends_all_with_its_message(tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "own.csv").write_text("source,target\n" + "".join(f"{i},b\n" for i in range(40)))
    own = ("task=text2text", "task.train_file=own.csv", "task.test_share=0.1", "threads=1")
    both = ranks(["train", *own, "eps=3", "optim.steps=2", "optim.batch_size=4"], *folders)
    results = [process.finish(60) for process in both]
    for process in both:
        process.__exit__()
    assert [result.returncode for result in results] == [2, 2]
    said = [" ".join(result.stderr.split()) for result in results]
    assert "own.csv" in said[1]
    assert "rank 1 of 2 stopped: " in said[0]
    assert "own.csv" in said[0]
    assert not (folders[0] / "runs").exists() or not list((folders[0] / "runs").iterdir())


def test_ranks_that_read_other_records_stop_before_a_step(tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        rows = "".join(f"{i},{folder.name if i == 7 else 'b'}\n" for i in range(40))
        (folder / "own.csv").write_text("source,target\n" + rows)
    own = ("task=text2text", "task.train_file=own.csv", "task.test_share=0.1", "threads=1")
    both = ranks(["train", *own, "eps=3", "optim.steps=2", "optim.batch_size=4"], *folders)
    for process in both:
        result = process.finish()
        process.__exit__()
        assert result.returncode == 2
        assert "something else than another rank" in " ".join(result.stderr.split())
    for ledger in folders[0].glob("runs/*/ledger.jsonl"):
        assert ledger.read_bytes().count(b"\n") == 1  # its header


@pytest.mark.parametrize(("number", "told"), [(signal.SIGTERM, (0, 1)), (signal.SIGINT, (1,))])
def test_ranks_that_are_told_to_stop_say_once_that_the_same_command_continues(
    tmp_path, number, told
):
    words = ("optim.steps=500", "checkpoint_every=400", "name=run")
    both = ranks([*SETTINGS, ADAPTIVE, *words], tmp_path, tmp_path)
    ledger = tmp_path / "runs/run/ledger.jsonl"
    both[0].wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > 3)
    for rank in told:  # one is enough: they stop together
        os.kill(both[rank].pid, number)
    results = [process.finish(90) for process in both]
    for process in both:
        process.__exit__()
    assert [result.returncode for result in results] == [128 + number] * 2
    said = "".join(result.stderr for result in results)
    assert said.count("dpft: stopped; the same command continues where it left off") == 1
    assert "Traceback" not in said
    # They agreed on the step, which they saved together.
    (saved,) = (tmp_path / "runs/run/checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    assert f"(step {step} of 500 is saved)" in " ".join(said.split())
    assert ledger.read_bytes().count(b"\n") == 1 + step


@pytest.mark.skipif("DPFT_LONG" not in os.environ, reason="takes an hour: DPFT_LONG=1 runs it")
def test_fifty_kills_under_torchrun(tmp_path):
    for result in campaign(tmp_path, kills=50):
        assert result.fine, result


@pytest.mark.skipif("DPFT_LONG" not in os.environ, reason="a minute: DPFT_LONG=1 runs it")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_torchrun_that_is_told_to_stop_leaves_nothing_behind(tmp_path, number):
    with Torchrun([*SETTINGS, ADAPTIVE, "optim.steps=500", "name=run"], tmp_path) as run:
        ledger = tmp_path / "runs/run/ledger.jsonl"
        await_(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > 3, 300)
        pids = run.ranks().values()
        end(run.pid, number)
        assert run.finish(60)
        assert not any(map(lives, pids))
        assert run.said.count("the same command continues where it left off") == 1
