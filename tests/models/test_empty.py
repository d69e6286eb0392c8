"""Models without weights, which another process sends."""

import pytest

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.models import load
from dpft.models.load import load_model
from dpft.models.needs import Needs

CAUSAL = Needs("causal")


def settings(name, *more):
    return parse(compose([f"model={name}", *more])).model


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        (settings("tiny"), CAUSAL),
        (settings("tiny", "model.tied=false"), CAUSAL),
        (settings("random-llama"), CAUSAL),
        (settings("random-openai-gpt"), CAUSAL),
        (settings("random-roberta"), Needs("classifier", ("no", "yes"))),
        (settings("random-roberta"), Needs("masked")),
        (settings("random-vit"), Needs("image", ("no", "yes"))),
    ],
)
def test_it_is_the_model_but_for_its_numbers(model, needs, monkeypatch):
    whole = load_model(model, needs, 0).model
    monkeypatch.setattr(load.Files, "pretrained", None)  # which reads the weights
    empty = load_model(model, needs, 0, weights=False).model
    assert type(empty) is type(whole)
    for kind in ("named_parameters", "named_buffers"):
        expected, got = (dict(getattr(m, kind)(remove_duplicate=False)) for m in (whole, empty))
        assert expected.keys() == got.keys()
        for name, tensor in expected.items():
            assert got[name].shape == tensor.shape
            assert got[name].dtype == tensor.dtype
            assert got[name].requires_grad == tensor.requires_grad
            assert got[name].device == tensor.device
        ties = [[id(t) for t in found.values()] for found in (expected, got)]
        alike = [[ids.index(one) for one in ids] for ids in ties]
        assert alike[0] == alike[1]
