"""Small models with an adaptation, for the tests."""

import torch
import yaml

from dpft.config.flags import Flag, flag
from dpft.config.folder import conf_dir
from dpft.config.schema import Adapt, build
from dpft.models.adapt import adapt
from dpft.models.load import LoadedModel
from dpft.models.needs import Needs
from dpft.tasks.objectives.generation import CausalExample
from tests.privacy.architectures import shake
from tests.privacy.small_models import build as build_case

CLASSES = ("a", "b", "c")
NEEDS = {
    "gpt2": Needs("causal"),
    "llama": Needs("causal"),
    "roberta_mlm": Needs("masked"),
    "roberta_classifier": Needs("classifier", CLASSES),
    "vit": Needs("image", CLASSES),
    "wrn": Needs("image", CLASSES),
}
EXAMPLES = [
    CausalExample((5, 6, 7), (8, 9, 10, 0)),
    CausalExample(tuple(range(11, 23)), (8, 0)),
    CausalExample((4, 3), (12, 13, 0)),
]
# Small, for models of two blocks with 12 dimensions and 16 positions.
SMALL = {
    "full": Adapt("full"),
    "scratch": Adapt("scratch"),
    "linear": Adapt("linear"),
    "bias": Adapt("bias"),
    "attention": Adapt("attention"),
    "top2": Adapt("top2", blocks=1),
    "lora": Adapt("lora", rank=2, alpha=4),
    "prefix": Adapt("prefix", length=3, hidden=5),
    "rgp": Adapt("rgp", rank=2, follow="update"),
}


def adapted(model, name, tied=True, settings=None, seed=0):
    """A case of `small_models` and its model as it is trained, in float64."""
    case = build_case(model, tied)
    loaded = LoadedModel(case.model, None, (flag(Flag.RANDOM_WEIGHTS),))
    settings = settings or SMALL[name]
    result = adapt(loaded, settings, NEEDS[model], seed)
    result.model.double()
    case.model = result.model.train()
    return case, result


def moved(model, name, tied=True):
    """The same away from where an adapter's gradient is zero by construction."""
    case, result = adapted(model, name, tied)
    torch.manual_seed(5)
    shake(case.model, 0.1)
    if result.reparametrisation is not None:
        result.reparametrisation.begin(1)
    return case, result


def shipped(name):
    text = (conf_dir() / "adapt" / f"{name}.yaml").read_text()
    raw = yaml.safe_load(text)
    return build(Adapt, raw.get("adapt", raw), "adapt")


def trained(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}
