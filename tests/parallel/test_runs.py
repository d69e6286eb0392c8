"""Whole runs of several ranks, as torchrun starts them: what one process would have done."""

import json
import signal

import pytest
import torch
from safetensors.torch import load_file

from dpft.runs import read_ledger, read_record
from tests.parallel import launched
from tests.parallel.launched import LONG, SETTINGS, STEPS
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


def continue_to_the_same_bits(complete, folder, *settings, size=2):
    """Of two runs of several ranks, one is killed amid its steps and begun again."""
    whole = complete(size, *settings).path
    ledger = folder / "runs/run/ledger.jsonl"
    # The third step is released, and no rank's weights have moved by it.
    others = killed(size, folder, (ledger, 4), *settings)
    for result in others:
        assert result.returncode == 2
        assert "another rank does not answer" in " ".join(result.stderr.split())
        assert "Traceback" not in result.stderr
    again, *_ = finished(ranks(size, folder, *settings, "name=run"))
    assert "continuing" in again.stderr
    for name in ("model/model.safetensors", "ledger.jsonl"):
        assert (folder / "runs/run" / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize(
    ("clip", "optim"),
    # Without noise Adam makes a step of a gradient that is zero but for rounding.
    [("bk", "adam"), ("per_layer_adaptive", "adam"), ("none", "sgd")],
)
def test_two_ranks_end_where_one_process_does(complete, clip, optim):
    plain = ["eps=null", "optim=sgd", "optim.momentum=0.9"]
    settings = (f"clip={clip}", *(plain if optim == "sgd" else []))
    both = complete(2, *settings)
    assert both.said[1] == ""  # the first rank alone shows what came of it
    paths = complete(1, *settings).path, both.path
    one, two = map(read_record, paths)
    close(*map(weights, paths))
    assert one["config_hash"] == two["config_hash"]
    assert one["privacy"] == two["privacy"]
    assert (one["training"].get("ranks"), two["training"]["ranks"]) == (None, 2)
    # Nothing of a layout is typed, so that records of any number of ranks have one hash.
    assert "parallel" not in json.loads((both.path / "identity.json").read_text())["config"]
    if clip != "none":
        ledgers = [read_ledger(path / "ledger.jsonl") for path in paths]
        assert ledgers[1].header["compute"]["ranks"] == 2
        spent = [[entry["epsilon_rdp"] for entry in ledger.entries] for ledger in ledgers]
        assert spent[0] == spent[1]


def test_what_has_run_is_not_run_again(complete):
    path = complete(2, "clip=bk").path
    again = finished(ranks(2, path.parent.parent, "clip=bk", "name=run"))
    assert "has already run" in again[0].stderr


def test_a_rank_that_is_killed_ends_all_and_the_same_command_continues(complete, tmp_path):
    continue_to_the_same_bits(complete, tmp_path, "clip=per_layer_adaptive")


@pytest.mark.parametrize(("before", "after"), [pytest.param(2, 1, marks=LONG), (1, 2)])
def test_on_another_number_of_ranks_repeated_steps_are_charged(tmp_path, before, after):
    """Shares are added up in another order: each is a second release, or the run stops."""
    settings = ("clip=per_layer_adaptive", "checkpoint_every=100")
    ledger = tmp_path / "runs/run/ledger.jsonl"
    killed(before, tmp_path, (ledger, 3), *settings)
    spent = read_ledger(ledger).steps_spent
    assert spent == 2

    def begun(*more):
        words = (*settings, *more, "name=run")
        return ranks(after, tmp_path, *words) if after > 1 else [alone(tmp_path, *words)]

    told = begun()
    for process in told:
        assert process.finish().returncode
    said = " ".join(told[0].said[1].split())
    assert "ranks: " in said
    assert f"{spent} of them behind the checkpoint" in said
    assert read_ledger(ledger).steps_spent == spent
    finished(begun("replay=charge"))
    contents, record = read_ledger(ledger), read_record(tmp_path / "runs/run")
    assert contents.further[0].compute.get("ranks", 1) == after
    assert contents.steps_spent == STEPS + spent == record["privacy"]["steps_taken"]
    assert contents.entries[-1]["epsilon_rdp"] == record["privacy"]["epsilon"]["rdp"]
    assert record["privacy"]["stated"] > 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("audit=bound",), "audit with 2 processes"),
        (("adapt=rgp",), "adapt=rgp with 2 processes"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(tmp_path, settings, said):
    for process in ranks(2, tmp_path, *settings):
        result = process.finish()
        assert result.returncode == 2
        assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("optim.lr=0.1", "optim.lr: 0.002 -> 0.1"),
        ("clip.clip_function=automatic", 'clip.clip_function: "abadi" -> "automatic"'),
    ],
)
def test_ranks_that_were_started_with_other_settings_are_refused(tmp_path, other, said):
    """They would add to the sums of another run, whose record and weights are the first one's."""
    _STARTED.extend(launched.ranks(SETTINGS, tmp_path, tmp_path, others=(other, "name=elsewhere")))
    first, second = (process.finish() for process in _STARTED)
    assert first.returncode == second.returncode == 2
    assert "rank 1 of 2 stopped" in " ".join(first.stderr.split())
    assert said in " ".join(second.stderr.split())
    assert "elsewhere" not in second.stderr  # where a run lies is the first rank's to know
    assert not (tmp_path / "runs").exists()
