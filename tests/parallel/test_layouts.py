"""Whole runs in every layout of ``conf/parallel``: what one process would have done."""

import pytest

from dpft.runs import read_ledger, read_record
from tests.parallel.launched import LONG
from tests.parallel.test_runs import (
    alone,
    close,
    continue_to_the_same_bits,
    finished,
    killed,
    ranks,
    started,  # noqa: F401
    weights,
)

SHARDED = ("parallel=fsdp",)
ADAPTIVE = ("clip=per_layer_adaptive", "optim=adamw")
PLAIN = ("clip=none", "eps=null", "optim=sgd", "optim.momentum=0.9")


@pytest.mark.parametrize(
    "settings",
    [
        ("clip=bk",),
        ADAPTIVE,
        ("clip=ghost", "adapt=lora"),
        PLAIN,
    ],
)
def test_shards_end_where_one_process_does(complete, settings):
    one, two = complete(1, *settings).path, complete(2, *settings, *SHARDED).path
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


@pytest.mark.parametrize("more", [(), pytest.param(("optim.batch_size=1",), marks=LONG)])
def test_shards_are_asked_of_held_out_records_and_train_the_same(complete, more):
    """Of one batch, for two ranks: each must run every layer as often as the other.

    Where a step draws nobody, weights move though no backward has let go of them.
    """
    plain, watched = (
        complete(2, "clip=bk", *words, *SHARDED).path
        for words in (more, (*more, "evaluate.every=1", "evaluate.best=loss"))
    )
    asked = read_record(watched)["evaluation"]
    assert [entry["step"] for entry in asked["history"]] == list(range(6))
    if asked["chosen"] == 5:
        name = "model/model.safetensors"
        assert (plain / name).read_bytes() == (watched / name).read_bytes()
    assert (plain / "ledger.jsonl").read_bytes() == (watched / "ledger.jsonl").read_bytes()


@LONG
def test_shards_take_the_weights_that_were_the_best_up_again(complete):
    """At a rate at which the loss rises soon."""
    settings = ("clip=bk", "optim.lr=0.1", "evaluate.every=1", "evaluate.best=loss")
    one, two = complete(1, *settings).path, complete(2, *settings, *SHARDED).path
    chosen = [read_record(path)["evaluation"]["chosen"] for path in (one, two)]
    assert chosen[0] == chosen[1] < 5
    close(weights(one), weights(two))


def test_shards_that_are_killed_continue_to_the_same_bits(complete, tmp_path):
    continue_to_the_same_bits(complete, tmp_path, *ADAPTIVE, *SHARDED)


def test_one_process_goes_on_from_what_shards_have_saved(complete, tmp_path):
    """Without privacy, where a step that is repeated costs nothing, to the same end."""
    saved = tmp_path / "runs/run/checkpoints/step-00000002/manifest.json"
    killed(2, tmp_path, (saved, 0), *PLAIN, *SHARDED)
    (told,) = finished([alone(tmp_path, *PLAIN, "name=run")])
    assert "continuing" in told.stderr
    close(weights(tmp_path / "runs/run"), weights(complete(1, *PLAIN).path))


def test_copies_of_shards_end_where_one_process_does(complete):
    """Two copies of the model, each spread over two of four ranks."""
    four = complete(4, "clip=bk", *SHARDED, "parallel.shards=2").path
    close(weights(complete(1, "clip=bk").path), weights(four))


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
