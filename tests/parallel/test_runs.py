"""Whole runs of several ranks, in every layout: what one process would have done."""

import contextlib
import json
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.parallel.launch import check_processes
from dpft.runs import read_ledger, read_record
from tests.parallel import launched
from tests.parallel.launched import SETTINGS, STEPS
from tests.processes import Forked, command
from tests.torture import Watched, content, differing, leftovers


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """All processes of a test, ended and cleaned up behind it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _STARTED.clear()
    yield
    for process in _STARTED:
        process.__exit__()


_STARTED = []
SIGMA = ("eps=null", "privacy.noise_multiplier=1")
FSDP = ("parallel=fsdp",)
PIPELINE = ("parallel=pipeline", "model.tied=false")
PLAIN = ("clip=none", "eps=null", "optim=sgd", "optim.momentum=0.9")
PER_DEVICE = ("clip=per_device_adaptive", "record_norms=1")


def alone(folder, *settings):
    _STARTED.append(command([*SETTINGS, *settings], folder))
    return _STARTED[-1]


def ranks(size, folder, *settings):
    processes = launched.ranks([*SETTINGS, *settings], *[folder] * size)
    _STARTED.extend(processes)
    return processes


def finished(processes):
    results = [process.finish() for process in processes]
    assert [result.returncode for result in results] == [0] * len(results), results
    return results


def weights(path):
    return load_file(path / "model/model.safetensors")


def close(one, two):
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=2e-5)


def killed(size, folder, amid, *settings):
    """A run whose first rank dies amid its steps; what the others have said."""
    words = [*SETTINGS, *settings, "name=run"]
    if size == 1:
        processes = [Forked(launched.dies, words, folder, *amid)]
    else:
        processes = launched.ranks(words, *[folder] * size, amid=amid)
    _STARTED.extend(processes)
    first = processes[0].finish()
    assert first.returncode == -signal.SIGKILL, first
    return [process.finish(60) for process in processes[1:]]


# Without noise Adam makes a step of a gradient that is zero but for rounding: hence SGD.
LAYOUTS = {
    "data": (2, ("clip=per_layer_adaptive",), ()),
    "data, without privacy": (2, PLAIN, ()),
    "shards": (2, ("clip=per_layer_adaptive", "optim=adamw"), FSDP),
    "shards of four": (4, ("clip=ghost", "adapt=lora"), FSDP),
    "pipeline": (2, PER_DEVICE, PIPELINE),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (LAYOUTS[n][0] > 2)) for n in LAYOUTS],
)
def test_ranks_end_where_one_process_does(complete, name):
    size, settings, layout = LAYOUTS[name]
    own = ("model.tied=false",) if layout[:2] == PIPELINE else ()
    several = complete(size, *settings, *layout)
    assert not any(several.said[1:])  # the first rank alone shows what came of it
    paths = complete(1, *settings, *own).path, several.path
    close(*map(weights, paths))
    one, two = map(read_record, paths)
    for section in ("config_hash", "privacy", "model", "dataset"):
        assert one[section] == two[section]
    assert one["training"].get("ranks") is None
    assert two["training"]["ranks"] == size
    # Nothing of a layout is typed, so that records of any number of ranks have one hash.
    assert "parallel" not in json.loads((several.path / "identity.json").read_text())["config"]
    if settings != PLAIN:
        ledgers = [read_ledger(path / "ledger.jsonl") for path in paths]
        spent = [[entry["epsilon_rdp"] for entry in ledger.entries] for ledger in ledgers]
        assert spent[0] == spent[1]
        # By another layout sums are added up in another order.
        compute = ledgers[1].header["compute"]
        for key in ("ranks", "layout", "microbatches"):
            assert compute.get(key) == two["training"].get(key)
    if own:
        same_metrics(*paths)


def same_metrics(*runs):
    """Of the whole batch and of all groups, whichever ranks saw them."""
    for one, several in zip(*(lines(path, "metrics") for path in runs), strict=True):
        assert one["records"] == several["records"]
        for name in ("loss", "norm_mean", "clipped"):
            assert several[name] == pytest.approx(one[name], rel=1e-3), name
    for one, several in zip(*(lines(path, "norms") for path in runs), strict=True):
        assert one["groups"] == several["groups"]
        rows = (sorted(found["norms"]) for found in (one, several))
        np.testing.assert_allclose(*rows, rtol=1e-3)


def lines(path, name):
    return [json.loads(line) for line in (path / f"private/{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["data", "shards", "pipeline"])
def test_a_rank_that_is_killed_ends_all_and_the_same_command_continues(complete, tmp_path, name):
    size, *words = LAYOUTS[name]
    settings = (*words[0], *words[1])
    whole = complete(size, *settings).path
    ledger = tmp_path / "runs/run/ledger.jsonl"
    # The third step is released, and no rank's weights have moved by it.
    for result in killed(size, tmp_path, (ledger, 4), *settings):
        assert result.returncode == 2
        assert "another rank does not answer" in " ".join(result.stderr.split())
        assert "Traceback" not in result.stderr
    again, *_ = finished(ranks(size, tmp_path, *settings, "name=run"))
    assert "continuing" in again.stderr
    for file in ("model/model.safetensors", "ledger.jsonl"):
        assert (tmp_path / "runs/run" / file).read_bytes() == (whole / file).read_bytes()


def test_on_another_number_of_ranks_repeated_steps_count_again(tmp_path):
    """From one to two and back: shares are added up in another order, so each is a release."""
    settings = ("clip=per_layer_adaptive", "checkpoint_every=100", *SIGMA)
    ledger = tmp_path / "runs/run/ledger.jsonl"
    killed(1, tmp_path, (ledger, 3), *settings)
    assert read_ledger(ledger).steps_spent == 2
    killed(2, tmp_path, (ledger, 4), *settings)
    assert read_ledger(ledger).steps_spent == 3
    finished([alone(tmp_path, *settings, "name=run")])
    contents, record = read_ledger(ledger), read_record(tmp_path / "runs/run")
    assert [entry["step"] for entry in contents.entries] == [0, 1, 0, *range(STEPS)]
    assert [one.compute.get("ranks", 1) for one in contents.stretches] == [2, 1]
    assert contents.steps_spent == STEPS + 3 == record["privacy"]["steps_taken"]
    assert contents.entries[-1]["epsilon_rdp"] == record["privacy"]["epsilon"]["rdp"]


@pytest.mark.parametrize(
    ("size", "words", "said"),
    [
        (2, ("audit=bound",), "audit with 2 processes"),
        (1, FSDP, "parallel=fsdp with one process"),
    ],
)
def test_what_a_layout_cannot_do_is_refused(size, words, said):
    with pytest.raises(ConfigError, match=said):
        check_processes(parse(compose([*SETTINGS[1:], *words])), size)


def test_what_a_model_cannot_do_is_refused_on_every_rank(tmp_path):
    for process in ranks(2, tmp_path, "clip=per_device", "parallel=pipeline"):
        result = process.finish()
        assert result.returncode == 2
        assert "is input embedding and output head" in " ".join(result.stderr.split())


# --- ranks that die or leave ---

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
    both = launched.ranks(command, tmp_path, tmp_path, run=folder, last=draw.randrange(30, 90))
    first, second = statuses(both)
    assert first == -signal.SIGKILL
    assert second in (0, 2)  # it may have been through by then
    assert watched.look()[1] == 0
    both, which = launched.ranks(command, tmp_path, tmp_path), draw.randrange(2)
    time.sleep(draw.random() * unbroken.seconds)
    both[which].kill()
    with contextlib.suppress(ProcessLookupError):  # it may have followed already
        os.kill(both[1 - which].pid, signal.SIGTERM)  # as torchrun does
    assert statuses(both)[1 - which] in (0, 2, 143, -signal.SIGTERM)
    assert watched.look()[1] == 0
    assert statuses(launched.ranks(command, tmp_path, tmp_path)) == [0, 0]
    assert watched.look() == (STEPS, 0)
    assert differing(content(unbroken.path), content(folder)) == []
    assert leftovers(folder) == []


def test_ranks_that_are_told_to_stop_say_once_that_the_same_command_continues(tmp_path):
    words = ("optim.steps=500", "checkpoint_every=400", "name=run")
    both = launched.ranks([*SETTINGS, ADAPTIVE, *words], tmp_path, tmp_path)
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


OWN = ("train", "task=text2text", "task.train_file=own.csv", "task.test_share=0.1", "threads=1")


@pytest.mark.parametrize("second", ["nothing", "other records"])
def test_ranks_that_read_other_data_stop_before_a_step(tmp_path, second):
    folders = [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        if number == 0 or second != "nothing":
            rows = "".join(f"{i},{folder.name if i == 7 else 'b'}\n" for i in range(40))
            (folder / "own.csv").write_text("source,target\n" + rows)
    results = ended(
        launched.ranks([*OWN, "eps=3", "optim.steps=2", "optim.batch_size=4"], *folders), 60
    )
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
