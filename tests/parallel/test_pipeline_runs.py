"""Whole runs with ``parallel=pipeline``: what one process with the same groups would do."""

import json

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

PIPELINE = ("parallel=pipeline", "model.tied=false")


@pytest.mark.parametrize(
    "settings",
    [
        ("clip=per_device_adaptive", "optim=adamw"),
        ("clip=per_device", "adapt=lora", "parallel.schedule=gpipe"),
        ("clip=bk",),
    ],
)
def test_pipelines_end_where_one_process_does(tmp_path, settings):
    layout = [one for one in settings if one.startswith("parallel.")]
    plain = [one for one in settings if one not in layout]
    finished([alone(tmp_path, *plain, "model.tied=false", "name=one")])
    finished(ranks(2, tmp_path, *plain, *PIPELINE, *layout, "name=two"))
    one, two = (tmp_path / "runs" / name for name in ("one", "two"))
    close(weights(one), weights(two))
    records = read_record(one), read_record(two)
    assert records[0]["config_hash"] == records[1]["config_hash"]
    assert records[0]["privacy"] == records[1]["privacy"]
    assert records[1]["training"]["layout"] == "pipeline"
    ledgers = [read_ledger(path / "ledger.jsonl") for path in (one, two)]
    spent = [[entry["epsilon_rdp"] for entry in ledger.entries] for ledger in ledgers]
    assert spent[0] == spent[1]
    lines = (two / "private/metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["loss"] is not None for line in lines)


def test_pipelines_that_are_killed_continue_to_the_same_bits(tmp_path):
    continue_to_the_same_bits(tmp_path, "clip=per_device_adaptive", *PIPELINE)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("clip=per_device", "parallel=pipeline"), "is input embedding and output head"),
        (("clip=ghost", *PIPELINE), "plan 'ghost' in a pipeline"),
        (("clip=none", *PIPELINE), "plan 'none' in a pipeline"),
        (("clip=per_device", *PIPELINE, "parallel.length=3"), "2 processes in pipelines of 3"),
        (("clip=bk", "+parallel.schedule=zbv"), "has no effect on parallel=data"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused(tmp_path, settings, said):
    for process in ranks(2, tmp_path, *settings):
        result = process.finish()
        assert result.returncode == 2
        assert said in " ".join(result.stderr.split())
