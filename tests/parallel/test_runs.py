"""Whole runs of several ranks, in every layout: what one process would have done."""

import json
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpft.runs import read_ledger, read_record
from tests.parallel import launched
from tests.parallel.launched import SETTINGS, STEPS
from tests.processes import Forked, command


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
    "shards of adapters": (2, ("clip=ghost", "adapt=lora"), FSDP),
    "copies of shards": (4, ("clip=bk",), (*FSDP, "parallel.shards=2")),
    "pipeline": (2, PER_DEVICE, PIPELINE),
    "copies of pipelines": (
        *(4, ("clip=per_device", "optim=adamw", "record_norms=1")),
        (*PIPELINE, "parallel.length=2"),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
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
        for key in ("ranks", "layout", "shards", "pipeline", "schedule"):
            assert compute.get(key) == two["training"].get(key)
    if own:
        same_metrics(*paths)


def same_metrics(*runs):
    """Of the whole batch and of all groups, whichever ranks saw them."""
    for one, several in zip(*(lines(path, "metrics") for path in runs), strict=True):
        assert one["records"] == several["records"]
        for name in ("loss", "norm_mean", "norm_max", "clipped"):
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


def test_shards_are_asked_of_held_out_records_and_train_the_same(complete):
    """Of one batch, for two ranks: each must run every layer as often as the other."""
    plain, watched = (
        complete(2, "clip=bk", *words, *FSDP).path
        for words in ((), ("evaluate.every=1", "evaluate.best=loss"))
    )
    asked = read_record(watched)["evaluation"]
    assert [entry["step"] for entry in asked["history"]] == list(range(6))
    if asked["chosen"] == 5:
        file = "model/model.safetensors"
        assert (plain / file).read_bytes() == (watched / file).read_bytes()
    assert (plain / "ledger.jsonl").read_bytes() == (watched / "ledger.jsonl").read_bytes()


def test_one_process_goes_on_from_what_shards_have_saved(complete, tmp_path):
    """Without privacy, where a step that is repeated costs nothing, to the same end."""
    saved = tmp_path / "runs/run/checkpoints/step-00000002/manifest.json"
    killed(2, tmp_path, (saved, 0), *PLAIN, *FSDP)
    (told,) = finished([alone(tmp_path, *PLAIN, "name=run")])
    assert "continuing" in told.stderr
    close(weights(tmp_path / "runs/run"), weights(complete(1, *PLAIN).path))


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
    ("size", "settings", "said"),
    [
        (2, ("audit=bound",), "audit with 2 processes"),
        (1, FSDP, "parallel=fsdp with one process"),
        (2, (*FSDP, "optim=lamb"), "optim=lamb with parallel=fsdp"),
        (2, (*FSDP, "parallel.shards=3"), "expected a number that divides them"),
        (2, ("clip=per_device", "parallel=pipeline"), "is input embedding and output head"),
    ],
)
def test_what_a_layout_cannot_do_is_refused(tmp_path, size, settings, said):
    for process in ranks(size, tmp_path, *settings):
        result = process.finish()
        assert result.returncode == 2
        assert said in " ".join(result.stderr.split())


def test_ranks_that_were_started_with_other_settings_are_refused(tmp_path):
    """They would add to the sums of another run, whose record and weights are the first one's."""
    other = ("optim.lr=0.1", "name=elsewhere")
    _STARTED.extend(launched.ranks(SETTINGS, tmp_path, tmp_path, others=other))
    first, second = (process.finish() for process in _STARTED)
    assert first.returncode == second.returncode == 2
    assert "rank 1 of 2 stopped" in " ".join(first.stderr.split())
    assert "optim.lr: 0.002 -> 0.1" in second.stderr
    assert "elsewhere" not in second.stderr  # where a run lies is the first rank's to know
    assert not (tmp_path / "runs").exists()
