"""Whole runs with ``parallel=pipeline``: what one process with the same groups would do."""

import json
import os

import numpy as np
import pytest

from dpft.runs import read_ledger, read_record
from tests.parallel.launched import LONG, STEPS
from tests.parallel.test_runs import (
    SIGMA,
    alone,
    close,
    continue_to_the_same_bits,
    finished,
    killed,
    ranks,
    started,  # noqa: F401
    weights,
)

PIPELINE = ("parallel=pipeline", "model.tied=false")
ADAPTIVE = ("clip=per_device_adaptive", "record_norms=1")


@pytest.mark.parametrize(
    ("size", "settings", "layout"),
    [
        # Two pipelines of two ranks, each of which takes a share of every batch.
        (4, ("clip=per_device", "optim=adamw", "record_norms=1"), ("parallel.length=2",)),
        (2, ADAPTIVE, ()),
        pytest.param(
            *(2, ("clip=bk", "adapt=lora", "record_norms=1"), ("parallel.schedule=gpipe",)),
            marks=LONG,
        ),
    ],
)
def test_pipelines_end_where_one_process_does(complete, size, settings, layout):
    one = complete(1, *settings, "model.tied=false").path
    several = complete(size, *settings, *PIPELINE, *layout).path
    close(weights(one), weights(several))
    records = read_record(one), read_record(several)
    for section in ("config_hash", "privacy", "mechanism", "model", "dataset"):
        assert records[0][section] == records[1][section]
    training = records[1]["training"]
    assert (training["layout"], training["ranks"], training["pipeline"]) == ("pipeline", size, 2)
    ledgers = [read_ledger(path / "ledger.jsonl") for path in (one, several)]
    spent = [[entry["epsilon_rdp"] for entry in ledger.entries] for ledger in ledgers]
    assert spent[0] == spent[1]
    of_layout = {"compute": None, "shapes": None}
    headers = [{**ledger.header, **of_layout} for ledger in ledgers]
    assert headers[0] == headers[1]
    # By another schedule sums are added up in another order.
    compute = ledgers[1].header["compute"]
    told = [compute[name] for name in ("layout", "ranks", "pipeline", "schedule", "microbatches")]
    assert told == ["pipeline", size, 2, training["schedule"], 8]
    same_metrics(one, several)


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


def test_pipelines_that_are_killed_continue_to_the_same_bits(complete, tmp_path):
    continue_to_the_same_bits(complete, tmp_path, *ADAPTIVE, *PIPELINE)


def test_a_pipelines_run_goes_on_in_one_process(tmp_path):
    """From its parts of a checkpoint; in other shapes a repeated step is a second release."""
    settings = (*ADAPTIVE, "model.tied=false", *SIGMA)
    ledger = tmp_path / "runs/run/ledger.jsonl"
    killed(2, tmp_path, (ledger, 4), *settings, "parallel=pipeline")
    (said,) = finished([alone(tmp_path, *settings, "name=run")])
    assert 'shapes: "fixed" -> (absent)' in said.stderr
    contents = read_ledger(ledger)
    assert (contents.stretch.step, contents.repeated) == (2, 1)
    spent = read_record(tmp_path / "runs/run")["privacy"]["steps_taken"]
    assert contents.steps_spent == spent == STEPS + 1


@pytest.mark.slow
@pytest.mark.skipif("DPFT_LONG" not in os.environ, reason="four ranks, thrice: DPFT_LONG=1 runs it")
def test_copies_of_pipelines_that_are_killed_continue_to_the_same_bits(complete, tmp_path):
    continue_to_the_same_bits(complete, tmp_path, *ADAPTIVE, *PIPELINE, "parallel.length=2", size=4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("clip=per_device", "parallel=pipeline"), "is input embedding and output head"),
        (("clip=ghost", *PIPELINE), "plan 'ghost' in a pipeline"),
        (("clip=none", "eps=null", *PIPELINE), "plan 'none' in a pipeline"),
        (("clip=per_device", *PIPELINE, "parallel.length=3"), "type parallel.length=N for an N"),
        (("clip=bk", "+parallel.schedule=zbv"), "has no effect on parallel=data"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused(tmp_path, settings, said):
    for process in ranks(2, tmp_path, *settings):
        result = process.finish()
        assert result.returncode == 2
        assert said in " ".join(result.stderr.split())
