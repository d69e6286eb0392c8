"""A rank of a pipeline holds its own stage and no more."""

import gc

import pytest
import torch

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.parallel.cohort import Pipeline
from dpft.tasks import load_task
from dpft.training.mechanisms import make_mechanism
from dpft.training.setup import assemble
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


def made(*words, **more):
    run = parse(compose([*SETTINGS, *words]))
    return assemble(run, load_task(run.task), make_mechanism(run, 40), torch.device("cpu"), **more)


def assembled(cohort, words):
    """What this rank holds of a model: names, bytes, and the digest of the whole."""
    before, ranks = bytes_alive(), Pipeline()
    parts = made("parallel=pipeline", *words, cohort=ranks)
    held = {n: p.numel() for n, p in parts.loaded.model.named_parameters() if not p.is_meta}
    buffers = sum(b.numel() * b.element_size() for b in parts.loaded.model.buffers())
    alive = bytes_alive() - before - buffers
    return held, alive, parts.digest, dict(ranks.owners)


# With LoRA the table is frozen and in two stages.
@pytest.mark.parametrize(("word", "shared"), [("model.tied=false", 0), ("adapt=lora", 1)])
def test_a_rank_holds_its_own_stage_and_nothing_else(word, shared):
    words = ("model=tiny", "clip=per_device", "clip.count=2", word)
    ranks = together(assembled, 2, words)
    whole = made(*words)
    sizes = {n: p.numel() for n, p in whole.loaded.model.named_parameters()}
    owners = ranks[0][3]
    assert owners.keys() == whole.clipper.parameters.keys()
    for rank, (held, alive, digest, _) in enumerate(ranks):
        trained = {name for name, owner in owners.items() if owner == rank}
        assert held.keys() & owners.keys() == trained
        assert held == {name: sizes[name] for name in held}
        # Little beside them: what a clipper notes of thresholds and the like.
        assert 4 * sum(held.values()) <= alive < 4 * sum(held.values()) + 4096
        assert digest == whole.digest  # by which a continued run knows its model
    assert ranks[0][0].keys() | ranks[1][0].keys() == sizes.keys()
    assert len(ranks[0][0].keys() & ranks[1][0].keys()) == shared
    whole.clipper.close()
