"""In half precision a record moves a step's sum by its threshold, whatever else is in the step.

The sums of two batches that differ in one record are compared, where the batches are made so that
rounding shows: many equal records, and one that is longer than all others.
"""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from dpft.config.errors import ModelError
from dpft.privacy import make_clipper
from dpft.privacy.shapes import FixedShapes
from dpft.tasks.objectives.causal import Causal, CausalExample
from dpft.tasks.objectives.classifier import ClassExample, Classifier
from dpft.tasks.objectives.independence import check_independence
from dpft.tasks.objectives.mixed import Mixed
from dpft.tasks.units import Records, Users, finite_losses

C = 0.1
EQUAL = 32
BUDGET = 1 << 14
SHAPES = FixedShapes(16 * EQUAL)


class Tokenizer:
    eos_token_id = pad_token_id = 0


def gpt2():
    torch.manual_seed(0)
    sizes = {"vocab_size": 200, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
    config = GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    config.bos_token_id = config.eos_token_id = 0
    return GPT2LMHeadModel(config).train()


def bert():
    torch.manual_seed(0)
    sizes = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}
    config = BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=64)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0
    return BertForSequenceClassification(config).train()


def tokens(count, seed):
    drawn = torch.randint(1, 200, (count,), generator=torch.Generator().manual_seed(seed))
    return tuple(drawn.tolist())


def example(kind, length, seed=0):
    ids = tokens(length, seed)
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
        clipper.backward(losses, rows=batch.rows_per_unit, real=batch.real)
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
