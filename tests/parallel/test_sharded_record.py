"""Sums of single records on shards are those of one process."""

import numpy as np
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.parallel.sharded import Shards, shard
from dpft.privacy import make_clipper
from tests.parallel.ranks import together


def narrow():
    config = GPT2Config(
        vocab_size=64, n_positions=64, bos_token_id=0, eos_token_id=0,
        n_embd=128, n_layer=4, n_head=2, tie_word_embeddings=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def sums_of_one_record_each(cohort):
    """Return the sums where each rank has one of two records; without a cohort, of both."""
    torch.manual_seed(0)
    model = narrow().double()
    rows = torch.randint(64, (2, 32))
    if cohort is not None:
        rows = rows[cohort.rank :][:1]
        shard(model)
    clipper = make_clipper(model, "bk", threshold=0.1, cohort=cohort and Shards())
    logits = model(input_ids=rows, use_cache=False).logits.transpose(1, 2)
    clipper.backward(F.cross_entropy(logits, rows, reduction="none").mean(1))
    return {name: whole_of(p.grad) for name, p in clipper.parameters.items()}


def whole_of(grad):
    return (grad.full_tensor() if isinstance(grad, DTensor) else grad).numpy()


def test_one_record_on_each_shard_has_the_sums_of_one_process():
    expected = sums_of_one_record_each(None)
    for got in together(sums_of_one_record_each, 2):
        for name, total in expected.items():
            np.testing.assert_allclose(got[name], total, rtol=1e-10, atol=1e-14, err_msg=name)
