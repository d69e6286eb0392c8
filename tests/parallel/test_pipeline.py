"""Pipelines: each stage's sums are those of one process; norms travel in flat clipping only."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.pipelining as pipelining
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.parallel.pipeline import ClippedStage
from dpft.privacy import make_clipper
from tests.parallel.ranks import together

VOCAB, LENGTH, WIDTH, LAYERS = 19, 6, 12, 4
BATCH, CHUNKS = 12, 6
THRESHOLD = 3.0

# Schedule, stages on each rank, and whether a rank has the first and the last of them.
SCHEDULES = {
    "gpipe": (pipelining.ScheduleGPipe, 1, False),
    "1f1b": (pipelining.Schedule1F1B, 1, False),
    "interleaved": (pipelining.ScheduleInterleaved1F1B, 2, False),
    "zero bubble": (pipelining.ScheduleInterleavedZeroBubble, 2, False),
    "zbv": (pipelining.ScheduleZBVZeroBubble, 2, True),
}


class Part(nn.Module):
    """Blocks ``first`` to ``last - 1`` of GPT-2, with embeddings and head at its ends."""

    def __init__(self, model, first, last):
        super().__init__()
        body = model.transformer
        self.h = nn.ModuleDict({str(i): body.h[i] for i in range(first, last)})
        if first == 0:
            self.wte, self.wpe = body.wte, body.wpe
        if last == LAYERS:
            self.ln_f, self.lm_head = body.ln_f, model.lm_head
        mask = torch.full((LENGTH, LENGTH), float("-inf"), dtype=torch.float64).triu(1)
        self.register_buffer("mask", mask[None, None], persistent=False)

    def forward(self, x):
        if hasattr(self, "wte"):
            x = self.wte(x) + self.wpe(torch.arange(LENGTH)[None].expand(len(x), LENGTH))
        for block in self.h.values():
            x = block(x, attention_mask=self.mask)
            x = x[0] if isinstance(x, tuple) else x
        return self.lm_head(self.ln_f(x)) if hasattr(self, "lm_head") else x


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=3,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False,
        attn_implementation="eager", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).double().train()


def texts():
    return torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def losses_of(logits, ids):
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1)
    return each * (0.3 + (ids[:, 0] % 5).double())


def names_of(count):
    """For each stage, patterns of the parameters that it holds."""
    cuts = [LAYERS * k // count for k in range(count + 1)]
    patterns = []
    for k in range(count):
        mine = [f"h.{i}.*" for i in range(cuts[k], cuts[k + 1])]
        mine += ["wte.*", "wpe.*"] * (k == 0) + ["ln_f.*", "lm_head.*"] * (k == count - 1)
        patterns.append(tuple(mine))
    return cuts, tuple(patterns)


def reference(count, flat, records):
    """Sums, norms and the share of clipped records of one process."""
    model, ids = Part(gpt2(), 0, LAYERS), texts()[:records]
    style, options = "bk", {}
    if not flat:
        style, options = "per_device", {"patterns": names_of(count)[1]}
    clipper = make_clipper(model, style, threshold=THRESHOLD, **options)
    clipper.backward(losses_of(model(ids), ids))
    sums = {name: p.grad.numpy() for name, p in clipper.parameters.items()}
    clipper.close()
    return sums, clipper.norms.numpy(), float((clipper.factors < 1).double().mean())


class Alone:
    """What the clipper of a stage needs to know: sums of stages are not added up."""

    sharded = False

    def __init__(self, cohort):
        self.rank, self.size = cohort.rank, cohort.size


def staged(cohort, schedule, flat, records):
    """Sums and norms of the stages of this rank, and what it gave to collectives, in bytes."""
    sent = []
    reduce = dist.all_reduce

    def counted(tensor, *arguments, **named):
        sent.append(tensor.numel() * tensor.element_size())
        return reduce(tensor, *arguments, **named)

    for name in ("broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"):
        setattr(dist, name, None)  # nothing of that kind may be called
    kind, each, both_ends = SCHEDULES[schedule]
    count = each * cohort.size
    cuts, _ = names_of(count)
    places = [cohort.rank + cohort.size * j for j in range(each)]
    if both_ends:
        places = [cohort.rank, count - 1 - cohort.rank]
    model, ids, size = gpt2(), texts(), BATCH // CHUNKS
    hidden = torch.empty(size, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    first = torch.zeros(size, LENGTH, dtype=torch.long)
    logits = torch.empty(size, LENGTH, VOCAB, dtype=torch.float64, requires_grad=True)
    stages = []
    for place in places:
        part = Part(model, cuts[place], cuts[place + 1])
        own = THRESHOLD if flat else THRESHOLD / count**0.5
        stages.append(
            ClippedStage(
                *(part, place, count, torch.device("cpu")),
                input_args=(first if place == 0 else hidden,),
                output_args=(logits if place == count - 1 else hidden,),
                clipper=make_clipper(part, "bk", threshold=own, cohort=Alone(cohort)),
                real=None if records == BATCH else real_rows(size, records),
                flat=dist.group.WORLD if flat else None,
            )
        )
    runner = kind(
        stages if each > 1 else stages[0],
        n_microbatches=CHUNKS,
        loss_fn=losses_of,
        scale_grads=False,
    )
    dist.all_reduce = counted
    runner.step(*([ids] if 0 in places else []), target=ids if count - 1 in places else None)
    told = sum(stage.settle() for stage in stages)
    results = []
    for place, stage in zip(places, stages, strict=True):
        sums = {n: p.grad.numpy() for n, p in stage.clipper.parameters.items()}
        norms = torch.cat([stage.norms[k].flatten() for k in sorted(stage.norms)]).numpy()
        results.append((place, sums, norms))
        stage.clipper.close()
    return results, sum(sent), told


def real_rows(size, records):
    return lambda chunk: torch.arange(BATCH).view(-1, size)[chunk] < records


@pytest.mark.parametrize("records", [BATCH, 7])
@pytest.mark.parametrize(
    ("schedule", "flat"), [*((s, False) for s in SCHEDULES), ("gpipe", True), ("1f1b", True)]
)
def test_sums_are_those_of_one_process(schedule, flat, records):
    ranks = together(staged, 2, schedule, flat, records)
    count = 2 * SCHEDULES[schedule][1]
    sums, norms, clipped = reference(count, flat, records)
    assert clipped > 0.5
    seen = set()
    for results, sent, told in ranks:
        # Squared norms in float64, once; and nothing at all where each stage clips by itself.
        assert sent == told == (8 * BATCH if flat else 0)
        for place, got, got_norms in results:
            for name, total in got.items():
                np.testing.assert_allclose(total, sums[name], rtol=1e-10, atol=1e-12)
            seen |= got.keys()
            column = norms[:, 0 if flat else place]
            np.testing.assert_allclose(got_norms[:records], column, rtol=1e-10)
    assert seen == sums.keys()
