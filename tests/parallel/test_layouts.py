"""Whole runs in every layout of ``conf/parallel``: what one process would have done."""

import pytest

from dpft.runs import read_ledger, read_record
from tests.parallel.test_runs import (
    alone,
    close,
    continue_to_the_same_bits,
    finished,
    ranks,
    started,  # noqa: F401
    weights,
)

SHARDED = ("parallel=fsdp",)


@pytest.mark.parametrize(
    "settings",
    [
        ("clip=bk",),
        ("clip=per_layer_adaptive", "optim=adamw"),
        ("clip=ghost", "adapt=lora"),
        ("clip=none", "optim=sgd", "optim.momentum=0.9"),
    ],
)
def test_shards_end_where_one_process_does(tmp_path, settings):
    finished([alone(tmp_path, *settings, "name=one")])
    finished(ranks(2, tmp_path, *settings, *SHARDED, "name=two"))
    one, two = (tmp_path / "runs" / name for name in ("one", "two"))
    close(weights(one), weights(two))
    records = read_record(one), read_record(two)
    assert records[0]["config_hash"] == records[1]["config_hash"]
    assert records[0]["privacy"] == records[1]["privacy"]
    assert records[0]["model"] == records[1]["model"]
    training = records[1]["training"]
    assert (training["ranks"], training["layout"], training["shards"]) == (2, "fsdp", 2)
    if settings[0] != "clip=none":
        ledgers = [read_ledger(path / "ledger.jsonl") for path in (one, two)]
        assert ledgers[1].header["compute"]["layout"] == "fsdp"
        spent = [[entry["epsilon_rdp"] for entry in ledger.entries] for ledger in ledgers]
        assert spent[0] == spent[1]


def test_shards_that_are_killed_continue_to_the_same_bits(tmp_path):
    continue_to_the_same_bits(tmp_path, "clip=per_layer_adaptive", *SHARDED)


def test_one_process_goes_on_from_what_shards_have_saved(tmp_path):
    """Without privacy, where a step that is repeated costs nothing, to the same end."""
    settings = ("clip=none", "optim=sgd", "optim.momentum=0.9", "optim.steps=8")
    finished([alone(tmp_path, *settings, "name=one")])
    begun = ranks(2, tmp_path, *settings, *SHARDED, "name=two")
    begun[0].wait_for((tmp_path / "runs/two/checkpoints/step-00000002").exists)
    for process in begun:
        process.kill()
    (told,) = finished([alone(tmp_path, *settings, "name=two")])
    assert "continuing" in told.stderr
    close(*(weights(tmp_path / "runs" / name) for name in ("one", "two")))


def test_copies_of_shards_end_where_one_process_does(tmp_path):
    """Two copies of the model, each spread over two of four ranks."""
    finished([alone(tmp_path, "clip=bk", "name=one")])
    finished(ranks(4, tmp_path, "clip=bk", *SHARDED, "parallel.shards=2", "name=four"))
    close(*(weights(tmp_path / "runs" / name) for name in ("one", "four")))


@pytest.mark.parametrize(
    ("size", "settings", "said"),
    [
        (1, SHARDED, "parallel=fsdp with one process"),
        (2, (*SHARDED, "optim=lamb"), "optim=lamb with parallel=fsdp"),
        (2, (*SHARDED, "adapt=prefix"), "adapt=prefix with parallel=fsdp"),
        (2, (*SHARDED, "parallel.shards=3"), "expected a number that divides them"),
        (2, ("+parallel.shards=2",), "has no effect on parallel=data"),
    ],
)
def test_what_a_layout_cannot_do_is_refused(tmp_path, size, settings, said):
    for process in ranks(size, tmp_path, *settings):
        result = process.finish()
        assert result.returncode == 2
        assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "runs").exists()
