"""A rank that dies or leaves ends all, and the same command goes on to the same bits."""

import contextlib
import os
import random
import signal
import time

import pytest

from tests.parallel.launched import SETTINGS, STEPS, environment, ranks
from tests.torture import Watched, content, differing, leftovers

ADAPTIVE = "clip=per_layer_adaptive"


def ended(processes, seconds=120):
    """How the ranks ended, which they must within that time."""
    try:
        return [process.finish(seconds) for process in processes]
    finally:
        for process in processes:
            process.__exit__()


def statuses(processes):
    return [result.returncode for result in ended(processes)]


@pytest.mark.slow
def test_ranks_that_are_killed_at_any_moment_end_like_unbroken_ones(tmp_path, complete):
    unbroken, draw = complete(2, ADAPTIVE), random.Random(0)
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
    with contextlib.suppress(ProcessLookupError):  # it may have followed already
        os.kill(both[1 - which].pid, signal.SIGTERM)  # as torchrun does
    assert statuses(both)[1 - which] in (0, 2, 143, -signal.SIGTERM)
    assert watched.look()[1] == 0
    assert statuses(ranks(command, tmp_path, tmp_path)) == [0, 0]
    assert watched.look() == (STEPS, 0)
    assert differing(content(unbroken.path), content(folder)) == {}
    assert leftovers(folder) == []


def test_force_is_meant_once_where_torchrun_begins_again(tmp_path, complete):
    folder = tmp_path / "runs/run"
    command = [*SETTINGS, ADAPTIVE, "name=run", "force=true"]
    both = ranks(command, tmp_path, tmp_path, amid=(folder / "ledger.jsonl", 2))
    assert statuses(both) == [-signal.SIGKILL, 2]
    with environment(TORCHELASTIC_RESTART_COUNT=1):
        both = ranks(command, tmp_path, tmp_path)
    assert statuses(both) == [0, 0]
    assert differing(content(complete(2, ADAPTIVE).path), content(folder)) == {}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


OWN = ("train", "task=text2text", "task.train_file=own.csv", "task.test_share=0.1", "threads=1")


@pytest.mark.parametrize("second", ["nothing", "other records"])
def test_ranks_that_read_other_data_stop_before_a_step(tmp_path, second):
    folders = [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        if number == 0 or second != "nothing":
            rows = "".join(f"{i},{folder.name if i == 7 else 'b'}\n" for i in range(40))
            (folder / "own.csv").write_text("source,target\n" + rows)
    results = ended(ranks([*OWN, "eps=3", "optim.steps=2", "optim.batch_size=4"], *folders), 60)
    assert [result.returncode for result in results] == [2, 2]
    said = [" ".join(result.stderr.split()) for result in results]
    if second == "nothing":
        assert "own.csv" in said[1]
        assert "rank 1 of 2 stopped: " in said[0]
        assert "own.csv" in said[0]
    else:
        assert all("something else than another rank" in text for text in said)
    for ledger in folders[0].glob("runs/*/ledger.jsonl"):
        assert ledger.read_bytes().count(b"\n") == 1  # its header


def test_ranks_that_are_told_to_stop_say_once_that_the_same_command_continues(tmp_path):
    words = ("optim.steps=500", "checkpoint_every=400", "name=run")
    both = ranks([*SETTINGS, ADAPTIVE, *words], tmp_path, tmp_path)
    ledger = tmp_path / "runs/run/ledger.jsonl"
    both[0].wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > 3)
    os.kill(both[1].pid, signal.SIGTERM)  # one is enough: they stop together
    results = ended(both, 90)
    assert [result.returncode for result in results] == [128 + signal.SIGTERM] * 2
    said = "".join(result.stderr for result in results)
    assert said.count("dpft: stopped; the same command continues where it left off") == 1
    assert "Traceback" not in said
    # They agreed on the step, which they saved together.
    (saved,) = (tmp_path / "runs/run/checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    assert f"(step {step} of 500 is saved)" in " ".join(said.split())
    assert ledger.read_bytes().count(b"\n") == 1 + step
