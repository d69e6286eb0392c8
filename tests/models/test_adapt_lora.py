"""LoRA: begins as the model it adapts, trains its own layers, and follows the seed."""

import pytest
import torch

from dpft.config.adapt import Adapt
from dpft.config.errors import ModelError
from dpft.config.schema import Model
from dpft.models.adapt import adapt
from dpft.models.load import load_model
from dpft.models.lora import targets_of
from dpft.models.needs import Needs
from dpft.models.save import load_saved, save_model
from tests.models.adapted import adapted, trained
from tests.privacy.small_models import build

TARGETS = {
    "gpt2": ("c_attn",),
    "llama": ("q_proj", "v_proj"),
    "roberta_mlm": ("query", "value"),
    "roberta_classifier": ("query", "value"),
    "vit": ("q_proj", "v_proj"),
}


@pytest.mark.parametrize("model", TARGETS)
def test_it_adapts_queries_and_values_and_begins_as_the_model(model):
    assert targets_of(build(model, False).model) == TARGETS[model]
    plain = build(model, False).all_losses()
    case, _ = adapted(model, "lora", tied=False)
    assert torch.equal(case.all_losses(), plain)
    adapters = {name for name in trained(case.model) if ".lora_" in name}
    assert len(adapters) == 2 * 2 * len(TARGETS[model])  # A and B, in two blocks
    for name in adapters:
        assert any(f".{target}." in name for target in TARGETS[model])
    rest = trained(case.model) - adapters
    assert all("classifier.modules_to_save." in name for name in rest)
    assert bool(rest) == (model in ("roberta_classifier", "vit"))


CAUSAL = Needs("causal")


@pytest.mark.parametrize("targets", [("c_attn", "c_prjo"), ("q_projection",)])
def test_a_target_that_is_not_there_is_named(targets):
    loaded = load_model(Model("tiny", "bundled:tiny"), CAUSAL, 0)
    settings = Adapt("lora", rank=2, alpha=4, targets=targets)
    said = f"no linear layer {targets[-1]} outside a new head; expected names such as c_attn, c_fc"
    with pytest.raises(ModelError, match=said):
        adapt(loaded, settings, CAUSAL, 0)


def test_a_target_in_a_new_head_is_refused():
    """It is trained whole, as a copy beside it: an update there would be none."""
    needs = Needs("classifier", ("no", "yes"))
    loaded = load_model(Model("r", "random:roberta"), needs, 0)
    with pytest.raises(ModelError, match="no linear layer out_proj outside a new head"):
        adapt(loaded, Adapt("lora", rank=2, alpha=4, targets=("query", "out_proj")), needs, 0)


def test_a_head_that_is_the_input_embedding_is_no_target(tmp_path):
    """Merged, its update would change what the model reads as well."""
    settings = Adapt("lora", rank=2, alpha=4, targets=("lm_head",))
    tied = load_model(Model("tiny", "bundled:tiny"), CAUSAL, 0)
    with pytest.raises(ModelError, match=r"input embedding too.*model\.tied=false"):
        adapt(tied, settings, CAUSAL, 0)
    model = Model("tiny", "bundled:tiny", tied=False)
    loaded = adapt(load_model(model, CAUSAL, 0), settings, CAUSAL, 0)
    for name, p in loaded.model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(p)
    save_model(loaded, tmp_path)
    again = load_saved(model, CAUSAL, 0, tmp_path).model
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, loaded.model(ids).logits, rtol=0, atol=1e-3)
