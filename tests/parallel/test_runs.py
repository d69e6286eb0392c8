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
from tests.parallel.ranks import SETTINGS, STEPS, ranks
from tests.torture import Watched, content, differing, leftovers

ADAPTIVE = "clip=per_layer_adaptive"
SIGMA = ("eps=null", "privacy.noise_multiplier=1")
FSDP = ("parallel=fsdp",)
PIPELINE = ("parallel=pipeline", "model.tied=false")
PLAIN = ("clip=none", "eps=null", "optim=sgd", "optim.momentum=0.9")
PER_DEVICE = ("clip=per_device_adaptive", "record_norms=1")


def start(size, folder, *settings, **death):
    return ranks([*SETTINGS, *settings, "name=run"], *[folder] * size, **death)


def ended(processes, *statuses, seconds=240):
    """What the ranks have said, all of which end within that time and with these statuses."""
    results = [process.finish(seconds) for process in processes]
    assert [result.returncode for result in results] == [*statuses], results
    return [(result.stdout, " ".join(result.stderr.split())) for result in results]


def killed(size, folder, lines, *settings):
    """A run whose first rank dies when its ledger has so many lines; what the others have said."""
    ledger = folder / "runs/run/ledger.jsonl"
    statuses = [-signal.SIGKILL] + [2] * (size - 1)
    return ended(start(size, folder, *settings, amid=(ledger, lines)), *statuses)[1:]


# Without noise Adam makes a step of a gradient that is zero but for rounding: hence SGD.
LAYOUTS = {
    "data": (2, (ADAPTIVE,), (), {"ranks": 2}),
    "data, without privacy": (2, PLAIN, (), {}),
    "shards": (2, (ADAPTIVE, "optim=adamw"), FSDP, {"ranks": 2, "layout": "fsdp"}),
    "shards of four": (4, ("clip=ghost", "adapt=lora"), FSDP, {"ranks": 4, "layout": "fsdp"}),
    "pipeline": (2, PER_DEVICE, PIPELINE, {"ranks": 2, "layout": "pipeline", "microbatches": 8}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (LAYOUTS[n][0] > 2)) for n in LAYOUTS]
)
def test_ranks_end_where_one_process_does(complete, name):
    size, settings, layout, noted = LAYOUTS[name]
    own = ("model.tied=false",) if layout[:2] == PIPELINE else ()
    several = complete(size, *settings, *layout)
    assert not any(several.said[1:])  # the first rank alone shows what came of it
    paths = complete(1, *settings, *own).path, several.path
    weights = [load_file(path / "model/model.safetensors") for path in paths]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=2e-5)
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
        # By another layout sums are rounded otherwise: under the same noise, another release.
        compute = ledgers[1].header["compute"]
        for key in ("ranks", "layout", "microbatches"):
            assert compute.get(key) == two["training"].get(key) == noted.get(key)
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
    size, own, layout, _ = LAYOUTS[name]
    settings = (*own, *layout)
    whole = complete(size, *settings).path
    # The third step is released, and no rank's weights have moved by it.
    for _, said in killed(size, tmp_path, 4, *settings):
        assert "another rank does not answer" in said
        assert "Traceback" not in said
    (_, again), *_ = ended(start(size, tmp_path, *settings), *[0] * size)
    assert "continuing" in again
    for file in ("model/model.safetensors", "ledger.jsonl"):
        assert (tmp_path / "runs/run" / file).read_bytes() == (whole / file).read_bytes()


def test_on_another_number_of_ranks_repeated_steps_count_again(tmp_path):
    """From one to two and back: shares are added up in another order, so each is a release."""
    settings = (ADAPTIVE, "checkpoint_every=100", *SIGMA)
    ledger = tmp_path / "runs/run/ledger.jsonl"
    for size, spent in ((1, 2), (2, 3)):
        killed(size, tmp_path, 1 + spent, *settings)
        assert read_ledger(ledger).steps_spent == spent
    ended(start(1, tmp_path, *settings), 0)
    contents, record = read_ledger(ledger), read_record(tmp_path / "runs/run")
    assert [entry["step"] for entry in contents.entries] == [0, 1, 0, *range(STEPS)]
    assert [one.compute.get("ranks", 1) for one in contents.stretches] == [2, 1]
    assert contents.steps_spent == STEPS + 3 == record["privacy"]["steps_taken"]
    assert contents.entries[-1]["epsilon_rdp"] == record["privacy"]["epsilon"]["rdp"]


@pytest.mark.parametrize(
    ("size", "words", "said"),
    [(2, ("audit=bound",), "audit with 2 processes"), (1, FSDP, "parallel=fsdp with one process")],
)
def test_what_a_layout_cannot_do_is_refused(size, words, said):
    with pytest.raises(ConfigError, match=said):
        check_processes(parse(compose([*SETTINGS[1:], *words])), size)


def test_what_a_model_cannot_do_is_refused_on_every_rank(tmp_path):
    for _, said in ended(start(2, tmp_path, "clip=per_device", "parallel=pipeline"), 2, 2):
        assert "is input embedding and output head" in said


# --- ranks that die or leave ---


@pytest.mark.slow
def test_ranks_that_are_killed_at_any_moment_end_like_unbroken_ones(tmp_path, complete):
    unbroken, draw = complete(2, ADAPTIVE), random.Random(0)
    folder = tmp_path / "runs/run"
    watched = Watched(folder, steps=STEPS, private=True)
    # The folder's first files are written before the ranks meet again.
    first, second = start(2, tmp_path, ADAPTIVE, run=folder, last=draw.randrange(30, 90))
    assert first.finish(120).returncode == -signal.SIGKILL
    assert second.finish(120).returncode in (0, 2)  # it may have been through by then
    assert watched.look()[1] == 0
    both, which = start(2, tmp_path, ADAPTIVE), draw.randrange(2)
    time.sleep(draw.random() * unbroken.seconds)
    both[which].kill()
    with contextlib.suppress(ProcessLookupError):  # it may have followed already
        os.kill(both[1 - which].pid, signal.SIGTERM)  # as torchrun does
    assert both[1 - which].finish(120).returncode in (0, 2, 143, -signal.SIGTERM)
    assert watched.look()[1] == 0
    ended(start(2, tmp_path, ADAPTIVE), 0, 0)
    assert watched.look() == (STEPS, 0)
    assert differing(content(unbroken.path), content(folder)) == []
    assert leftovers(folder) == []


def test_ranks_that_are_told_to_stop_say_once_that_the_same_command_continues(tmp_path):
    both = start(2, tmp_path, ADAPTIVE, "optim.steps=500", "checkpoint_every=400")
    ledger = tmp_path / "runs/run/ledger.jsonl"
    both[0].wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > 3)
    os.kill(both[1].pid, signal.SIGTERM)  # one is enough: they stop together
    said = " ".join(said for _, said in ended(both, *[128 + signal.SIGTERM] * 2, seconds=90))
    assert said.count("dpft: stopped; the same command continues where it left off") == 1
    assert "Traceback" not in said
    # They agreed on the step, which they saved together.
    (saved,) = (tmp_path / "runs/run/checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    assert f"(step {step} of 500 is saved)" in said
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
    both = ranks([*OWN, "eps=3", "optim.steps=2", "optim.batch_size=4"], *folders)
    said = [text for _, text in ended(both, 2, 2, seconds=60)]
    if second == "nothing":
        assert "own.csv" in said[1]
        assert "rank 1 of 2 stopped: " in said[0]
        assert "own.csv" in said[0]
    else:
        assert all("something else than another rank" in text for text in said)
    for ledger in folders[0].glob("runs/*/ledger.jsonl"):
        assert ledger.read_bytes().count(b"\n") == 1  # its header
