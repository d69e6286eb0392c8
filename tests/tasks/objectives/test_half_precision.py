"""Half precision: what is rounded, and that a record moves a step's sum by its threshold alone.

The sums of two batches that differ in one record are compared, where the batches are made so that
rounding shows: many equal records, and one that is longer than all others.
"""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from dpft.config.errors import ModelError
from dpft.privacy import make_clipper
from dpft.privacy.sampling import FixedShapes
from dpft.tasks.objectives.classifier import ClassExample, Classifier
from dpft.tasks.objectives.evaluation import Mixed
from dpft.tasks.objectives.generation import Causal, CausalExample
from dpft.tasks.objectives.independence import check_independence
from dpft.tasks.objectives.objective import Batch
from dpft.tasks.units import Records, Users, finite_losses
from dpft.training import setup as preparation
from dpft.training.run import run_experiment
from tests.small_runs import ready, settings

E2E = ("task=e2e", "model=tiny", "task.limit_train=48", "optim.batch_size=16", "clip=bk")
C = 0.1
EQUAL = 32
BUDGET = 1 << 14
SHAPES = FixedShapes(16 * EQUAL)


class Tokenizer:
    eos_token_id = pad_token_id = 0


def gpt2():
    torch.manual_seed(0)
    sizes = {"vocab_size": 200, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "bos_token_id"), 0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **none, eos_token_id=0)).train()


def bert():
    torch.manual_seed(0)
    sizes = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}
    config = BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=64)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0
    return BertForSequenceClassification(config).train()


def example(kind, length, seed=0):
    drawn = torch.randint(1, 200, (length,), generator=torch.Generator().manual_seed(seed))
    ids = tuple(drawn.tolist())
    if kind == "gpt2":
        return CausalExample(ids[:5], ids[5:])
    return ClassExample(ids, None, seed % 2)


KINDS = {
    "gpt2": (gpt2, Causal(Tokenizer(), 64)),
    "bert": (bert, Classifier(Tokenizer(), 64, ("a", "b"))),
}


def clipped_sum(model, data, indices):
    """The sum of clipped gradients as a step forms it, in float64."""
    clipper = make_clipper(model, "bk", threshold=C)
    model.zero_grad()
    for piece in data.microbatches(indices, BUDGET):
        losses, batch = finite_losses(data, model, data.batch(piece, 0))
        clipper.backward(losses, rows=batch.rows_per_unit, weights=batch.weights)
    clipper.close()
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([p.grad.flatten().double() for p in trained])


def moved(model, data, one):
    """Return the change by removing one unit, of the sum of all and of the others, over ``C``."""
    others = [i for i in range(len(data)) if i != one]
    change = clipped_sum(model, data, range(len(data))) - clipped_sum(model, data, others)
    own = clipped_sum(model, data, [one])
    return float(change.norm()) / C, float((change - own).norm()) / C


@pytest.mark.parametrize(("kind", "long"), [("gpt2", 40), ("bert", 21)])
def test_a_long_record_moves_the_sum_of_like_ones_by_its_own_clipped_gradient(kind, long):
    make, objective = KINDS[kind]
    examples = [example(kind, 17)] * EQUAL + [example(kind, long, seed=1)]
    data = Records(Mixed(objective), examples, SHAPES)
    for one in (0, EQUAL):
        change, of_others = moved(make(), data, one)
        assert change <= 1 + 1e-5
        assert of_others <= 1e-5


@pytest.mark.parametrize("shapes", [SHAPES, None], ids=["fixed", "loose"])
def test_a_user_with_longer_records_moves_the_sum_by_its_own_clipped_gradient(shapes):
    make, objective = KINDS["gpt2"]
    examples = [example("gpt2", 17)] * EQUAL + [example("gpt2", 21, seed=1)]
    owners = [f"a{number:03}" for number in range(EQUAL)] + ["zoe"]
    data = Users(Mixed(objective), examples, owners, 8, b"key", shapes)
    change, of_others = moved(make(), data, EQUAL)
    if shapes is None:
        assert of_others > 1e-2
    else:
        assert change <= 1 + 1e-5
        assert of_others <= 1e-5


def test_rounding_that_depends_on_other_records_is_refused():
    """Half precision whose shapes say that they are fixed, and are not."""
    make, objective = KINDS["gpt2"]

    class Loose(Mixed):
        def collate(self, examples, widths=None):
            return super().collate(examples)

        def widths(self, example, coarse=False):
            return (64, 63)

    examples = [example("gpt2", 17 + k, seed=k) for k in range(12)]
    model = make()
    clipper = make_clipper(model, "bk", threshold=C)
    loose = Records(Loose(objective), examples, FixedShapes(48))
    with pytest.raises(ModelError, match="depends on what else is in its batch"):
        check_independence(loose, model, clipper, BUDGET)


class Squares:
    """Losses of a linear layer; remembers in which type it multiplied."""

    def losses(self, model, batch):
        out = model(batch.tensors["x"])
        self.dtype = out.dtype
        return out.square().sum(1)


def test_products_are_rounded_and_nothing_else():
    torch.manual_seed(0)
    model, batch = nn.Linear(64, 3), Batch({"x": torch.randn(5, 64)})
    inner = Squares()
    losses = Mixed(inner).losses(model, batch)
    assert inner.dtype == torch.bfloat16
    assert losses.dtype == torch.float32
    assert not torch.equal(losses, inner.losses(model, batch))
    torch.testing.assert_close(losses, inner.losses(model, batch), rtol=0.05, atol=0.05)
    assert model.weight.dtype == torch.float32


@pytest.mark.parametrize(("precision", "backward"), [("bfloat16", False), ("float32", True)])
def test_attention_that_makes_no_numbers_of_padding_is_refused(
    tmp_path, monkeypatch, precision, backward
):
    """Kernels of some GPUs do so: every padded record would be left out, alone and among others."""
    genuine = nn.functional.scaled_dot_product_attention

    def broken(query, key, value, attn_mask=None, **more):
        out = genuine(query, key, value, attn_mask=attn_mask, **more)
        if attn_mask is None:
            return out
        seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -1e30
        unseen = ~seen.any(-1, keepdim=True)
        if not backward:
            return out.masked_fill(unseen, float("nan"))
        if query.requires_grad:
            query.register_hook(lambda g: g.masked_fill(unseen, float("nan")))
        return out

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", broken)
    what = "gradient" if backward else "loss"
    with pytest.raises(ModelError, match=f"no finite {what}.*attention makes none of padding"):
        run_experiment(settings(tmp_path, *E2E, f"precision={precision}"))
    assert not (tmp_path / "small").exists()


def test_a_private_run_in_half_precision_trains_and_checks_in_fixed_shapes(tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr(
        preparation, "check_independence", lambda *arguments: checked.append(arguments)
    )
    run = settings(tmp_path, *E2E, "precision=bfloat16", "optim.microbatch_tokens=1024")
    with ready(run) as (found, *_):
        ((units, model, clipper, budget, _),) = checked
        assert units is found.units
        assert units.shapes == FixedShapes(16)
        assert (model, clipper) == (found.parts.loaded.model, found.parts.clipper)
        assert budget == 1024
        assert found.header["compute"]["shapes"] == "fixed"
        for piece in units.microbatches(range(48), budget):
            batch = units.batch(piece, 0)
            rows, width = batch.batch.tensors["input_ids"].shape
            assert rows == len(piece) == 2
            assert width + 1 in (16, 24, 32, 48, 64, 96, 100)
            assert units.losses(model, batch).isfinite().all()
