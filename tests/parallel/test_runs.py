"""Whole runs of several ranks, as torchrun starts them: what one process would have done."""

import json
import time

import pytest
import torch
from safetensors.torch import load_file

from dpft.runs import read_ledger, read_record
from tests.parallel import launched
from tests.processes import command

SETTINGS = (
    *("train", "task=text2text", "task.source=sample", "task.limit_train=120", "task.limit_eval=2"),
    *("optim.batch_size=32", "optim.steps=5", "eps=3", "privacy.noise_seed=1", "threads=1"),
    *("decode=greedy", "decode.max_new_tokens=4", "checkpoint_every=2"),
)


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """All processes of a test, ended and cleaned up behind it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _STARTED.clear()
    yield
    for process in _STARTED:
        process.__exit__()


_STARTED = []


def alone(folder, *settings):
    _STARTED.append(command([*SETTINGS, *settings], folder))
    return _STARTED[-1]


def ranks(size, folder, *settings):
    """Processes with the environment that torchrun gives them."""
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


def continue_to_the_same_bits(folder, *settings, size=2):
    """Of two runs of several ranks, one is killed amid its steps and begun again."""
    finished(ranks(size, folder, *settings, "name=whole"))
    processes = ranks(size, folder, *settings, "name=killed")
    ledger = folder / "runs/killed/ledger.jsonl"
    processes[0].wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > 3)
    for process in processes:
        process.kill()
    finished(ranks(size, folder, *settings, "name=killed"))
    whole, killed = (folder / "runs" / name for name in ("whole", "killed"))
    for name in ("model/model.safetensors", "ledger.jsonl"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()


@pytest.mark.parametrize(
    ("clip", "optim"),
    # Without noise Adam makes a step of a gradient that is zero but for rounding.
    [("bk", "adam"), ("per_layer_adaptive", "adam"), ("none", "sgd")],
)
def test_two_ranks_end_where_one_process_does(tmp_path, clip, optim):
    settings = (f"clip={clip}", f"optim={optim}")
    finished([alone(tmp_path, *settings, "name=one")])
    results = finished(ranks(2, tmp_path, *settings, "name=two"))
    assert results[1].stdout == ""  # the first rank alone shows what came of it
    one, two = (read_record(tmp_path / "runs" / name) for name in ("one", "two"))
    close(*(weights(tmp_path / "runs" / name) for name in ("one", "two")))
    assert one["config_hash"] == two["config_hash"]
    assert one["privacy"] == two["privacy"]
    assert (one["training"].get("ranks"), two["training"]["ranks"]) == (None, 2)
    if clip != "none":
        ledgers = [
            read_ledger(tmp_path / "runs" / name / "ledger.jsonl") for name in ("one", "two")
        ]
        assert ledgers[1].header["compute"]["ranks"] == 2
        spent = [[entry["epsilon_rdp"] for entry in ledger.entries] for ledger in ledgers]
        assert spent[0] == spent[1]
    again = finished(ranks(2, tmp_path, *settings, "name=two"))
    assert "has already run" in again[0].stderr


def test_a_rank_that_is_killed_ends_all_and_the_same_command_continues(tmp_path):
    finished(ranks(2, tmp_path, "clip=per_layer_adaptive", "name=whole"))
    first, second = ranks(2, tmp_path, "clip=per_layer_adaptive", "name=killed")
    ledger = tmp_path / "runs/killed/ledger.jsonl"
    first.wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > 3)
    second.kill()
    began = time.monotonic()
    result = first.finish()
    assert time.monotonic() - began < 60
    if result.returncode:  # or it was through with the last step by then
        assert "another rank does not answer" in " ".join(result.stderr.split())
        assert "Traceback" not in result.stderr
    finished(ranks(2, tmp_path, "clip=per_layer_adaptive", "name=killed"))
    whole, killed = (tmp_path / "runs" / name for name in ("whole", "killed"))
    for name in ("model/model.safetensors", "ledger.jsonl"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_on_another_number_of_ranks_repeated_steps_are_charged(tmp_path, before, after):
    """Shares are added up in another order: each is a second release, or the run stops."""
    settings = ("clip=per_layer_adaptive", "name=one", "checkpoint_every=100")

    def begun(size, *more):
        return (
            ranks(size, tmp_path, *settings, *more)
            if size > 1
            else [alone(tmp_path, *settings, *more)]
        )

    first, *others = begun(before)
    ledger = tmp_path / "runs/one/ledger.jsonl"
    first.wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > 1)
    for process in (first, *others):
        process.kill()
    spent = read_ledger(ledger).steps_spent
    told = begun(after)
    for process in told:
        assert process.finish().returncode
    said = " ".join(told[0].said[1].split())
    assert "ranks: " in said
    assert f"{spent} of them behind the checkpoint" in said
    assert read_ledger(ledger).steps_spent == spent
    finished(begun(after, "replay=charge"))
    contents, record = read_ledger(ledger), read_record(tmp_path / "runs/one")
    assert contents.further[0].compute.get("ranks", 1) == after
    assert contents.steps_spent == 5 + spent == record["privacy"]["steps_taken"]
    assert contents.entries[-1]["epsilon_rdp"] == record["privacy"]["epsilon"]["rdp"]
    assert record["privacy"]["stated"] > 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("audit=bound",), "audit with 2 processes"),
        (("out_of_memory=halve",), "out_of_memory=halve with 2 processes"),
        (("adapt=rgp",), "adapt=rgp with 2 processes"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(tmp_path, settings, said):
    for process in ranks(2, tmp_path, *settings):
        result = process.finish()
        assert result.returncode == 2
        assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "runs").exists()


def test_a_layout_is_no_setting(tmp_path):
    """Nothing of it is typed, so that records of any number of ranks have one hash."""
    finished(ranks(2, tmp_path, "clip=bk", "name=two"))
    settings = json.loads((tmp_path / "runs/two/identity.json").read_text())["config"]
    assert "parallel" not in settings
