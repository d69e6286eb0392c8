"""A rank of a pipeline holds its own stages and no more, and reads no more of the files."""

import gc

import pytest
import torch

from dpft.config.compose import compose
from dpft.config.errors import RankError
from dpft.config.schema import parse
from dpft.models import partial
from dpft.parallel.cohort import Pipelines
from dpft.tasks import load_task
from dpft.training.mechanisms import make_mechanism
from dpft.training.setup import _agreed, assemble
from tests.models import test_partial as counting
from tests.parallel.ranks import together

SETTINGS = ("task=text2text", "task.source=sample", "eps=3", "optim.batch_size=4", "optim.steps=1")


def bytes_alive():
    """Of all tensors of this process that have memory."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor) and not found.is_meta:
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def assembled(cohort, schedule, words):
    """What this rank holds of a model: names, bytes, numbers read, and the digest of the whole."""
    partial.safe_open = counting.Counted
    run = parse(compose([*SETTINGS, "parallel=pipeline", *words]))
    before = bytes_alive()
    ranks = Pipelines(schedule=schedule)
    parts = assemble(run, load_task(run.task), make_mechanism(run, 40), torch.device("cpu"), ranks)
    held = {n: p.numel() for n, p in parts.loaded.model.named_parameters() if not p.is_meta}
    buffers = sum(b.numel() * b.element_size() for b in parts.loaded.model.buffers())
    alive = bytes_alive() - before - buffers
    return held, alive, counting.Counted.read, parts.digest, dict(ranks.owners)


CASES = {
    "full": ("1f1b", ("model=tiny", "model.tied=false", "clip=per_device", "clip.count=2")),
    # Its table is frozen and in two stages; adapters are drawn, and no file has them.
    "lora": ("1f1b", ("model=tiny", "adapt=lora", "clip=bk")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rank_holds_its_own_stages_and_reads_nothing_else(case):
    schedule, words = CASES[case]
    ranks = together(assembled, 2, schedule, words)
    run = parse(compose([*SETTINGS, *words]))
    task = load_task(run.task)
    whole = assemble(run, task, make_mechanism(run, 40), torch.device("cpu"))
    sizes = {n: p.numel() for n, p in whole.loaded.model.named_parameters()}
    owners = ranks[0][4]
    assert owners.keys() == whole.clipper.parameters.keys()
    for rank, (held, alive, read, digest, _) in enumerate(ranks):
        trained = {name for name, owner in owners.items() if owner == rank}
        assert held.keys() & owners.keys() == trained
        assert held == {name: sizes[name] for name in held}
        # Little beside them: what a clipper notes of thresholds and the like.
        assert 4 * sum(held.values()) <= alive < 4 * sum(held.values()) + 4096
        stored = sum(n for name, n in held.items() if "lora_" not in name)
        assert read == stored
        assert digest == whole.digest  # by which a continued run knows its model
    assert ranks[0][0].keys() | ranks[1][0].keys() == sizes.keys()
    both = ranks[0][0].keys() & ranks[1][0].keys()
    assert len(both) == (case == "lora")
    whole.clipper.close()


def test_a_rank_that_reads_another_model_is_found():
    with pytest.raises(RankError, match="rank 1 has read another b than a rank before it"):
        _agreed([{"a": "1", "b": "2"}, {"b": "3"}])
    assert _agreed([{"a": "1", "b": "2"}, {"b": "2"}]) == {"a": "1", "b": "2"}
