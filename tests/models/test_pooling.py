"""Mean pooling: an ordinary BERT whose classifier reads the mean over a text's tokens."""

import pytest
import torch
from torch.nn.functional import layer_norm
from transformers import AutoModelForSequenceClassification

from dpft.config.adapt import Adapt
from dpft.config.errors import ModelError
from dpft.config.schema import Model
from dpft.models.adapt import adapt
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.models.save import load_saved, save_model

CLASSES = Needs("classifier", ("one", "two"))
PLAIN = Model("random-bert", "random:bert")
POOLED = Model("random-bert", "random:bert", pooling="mean")
IDS = torch.tensor([[5, 9, 11, 7], [8, 6, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


@torch.no_grad()
def test_the_head_reads_the_mean_over_what_is_no_padding():
    plain, pooled = (load_model(s, CLASSES, 0).model.eval() for s in (PLAIN, POOLED))
    states = plain.bert(IDS, MASK).last_hidden_state
    kept = MASK[..., None]
    mean = (states * kept).sum(1) / kept.sum(1)
    expected = layer_norm(mean, mean.shape[1:]).tanh()
    read = pooled.bert(IDS, MASK).pooler_output
    # The token's own vector counts for a thousandth.
    torch.testing.assert_close(read, expected, atol=1e-2, rtol=0)
    assert (plain.bert(IDS, MASK).pooler_output - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "trained"), [("linear", {"classifier.weight", "classifier.bias"}), ("full", None)]
)
def test_what_pools_is_not_trained(name, trained):
    loaded = load_model(POOLED, CLASSES, 0)
    last = loaded.model.config.num_hidden_layers - 1
    model = adapt(loaded, Adapt(name), CLASSES, 0).model
    moving = {n for n, p in model.named_parameters() if p.requires_grad}
    assert not [n for n in moving if "pooler" in n or f"layer.{last}." in n]
    assert moving == trained if trained else "bert.encoder.layer.0.output.dense.weight" in moving


@torch.no_grad()
def test_what_is_saved_is_an_ordinary_model(tmp_path):
    loaded = load_model(POOLED, CLASSES, 0)
    save_model(loaded, tmp_path)
    ours = loaded.model.eval()(IDS, MASK).logits
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()(IDS, MASK).logits
    again = load_saved(POOLED, CLASSES, 0, tmp_path).model.eval()(IDS, MASK).logits
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, again)


def test_other_families_are_refused():
    with pytest.raises(ModelError, match=r"is a RobertaForSequence.*type model\.pooling=null"):
        load_model(Model("random-roberta", "random:roberta", pooling="mean"), CLASSES, 0)
