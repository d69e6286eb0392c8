"""``model.checkpointing``: the same sums, with activations computed again in the backward."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.config.compose import compose
from dpft.config.errors import ConfigError, ModelError
from dpft.config.schema import Adapt, Model, parse
from dpft.models.adapt import adapt
from dpft.models.architecture import checkpoint
from dpft.models.load import LoadedModel, load_model
from dpft.models.needs import Needs
from dpft.plan.metering import Meter
from dpft.privacy import make_clipper
from dpft.tasks.objectives.causal import CausalExample, collate, token_nll
from tests.models.adapted import adapted
from tests.models.test_adapt_clip import moved_from_start
from tests.privacy.reference import clear, clip_records, record_gradients, same_grads

STYLES = ["bk", "per_layer", "materialised", "ghost", "lee_kifer"]


@pytest.mark.parametrize("name", ["full", "lora", "rgp"])
@pytest.mark.parametrize("model", ["gpt2", "llama", "roberta_mlm", "roberta_classifier", "vit"])
def test_every_plan_gives_the_sum_of_the_autograd_loop(model, name):
    case, loaded = adapted(model, name)
    moved_from_start(case, loaded)
    records = record_gradients(case.model, case.record_loss, case.batch)
    checkpoint(loaded.model, model)
    assert any(getattr(m, "gradient_checkpointing", False) for m in case.model.modules())
    for style in STYLES:
        clear(case.model)
        clipper = make_clipper(case.model, style, threshold=0.3)
        clipper.check(case.losses(case.model, case.rows(slice(0, 3))))
        clipper.backward(case.all_losses())
        groups = [group.parameters for group in clipper.groups]
        C = clipper.thresholds
        _, total = clip_records(records, groups, lambda k, n, C=C: min(1.0, C[k] / n))
        same_grads(case.model, total, 1e-10)
        clipper.close()


def peak(style, name, checkpointing):
    """Bytes of tensors at most in the first step, beyond those of the model."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_positions": 64, "n_embd": 64, "n_layer": 8, "n_head": 2}
    others = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0}
    with Meter() as meter:
        model = GPT2LMHeadModel(GPT2Config(**sizes, **others, eos_token_id=0))
        if checkpointing:
            checkpoint(model, "gpt2")
        settings = Adapt("lora", rank=2, alpha=4) if name == "lora" else Adapt(name)
        model = adapt(LoadedModel(model, None, ()), settings, Needs("causal"), 0).model.train()
        data = collate([CausalExample((1,), tuple(range(2, 49))) for _ in range(8)])
        clipper = make_clipper(model, style, threshold=None if style == "none" else 1.0)
        before = meter.peak = meter.now
        some = clipper.to_check(8)
        if some is not None:
            clipper.check(token_nll(model, data.rows(some)).mean(1))
        clipper.backward(token_nll(model, data).mean(1))
    return meter.peak - before


@pytest.mark.parametrize("name", ["full", "lora"])
def test_it_saves_the_memory_that_it_saves_without_privacy(name):
    """Also where embeddings are frozen: nothing below the first adapter keeps a gradient alive.

    Nor does a step that is checked, whose backwards recompute what they have no need of.
    """
    plain, private = (peak(style, name, checkpointing=True) for style in ("none", "per_layer"))
    assert private <= 1.2 * plain
    assert private < 0.3 * peak("per_layer", name, checkpointing=False)


def test_a_model_without_blocks_and_what_drops_keys_are_refused_by_name():
    settings = Model("random-wrn", "random:wrn", init="scratch", checkpointing=True)
    with pytest.raises(ModelError, match=r"WideResNet.*model\.checkpointing=false"):
        load_model(settings, Needs("image", ("a", "b")), 0)
    base = ["task=e2e", "model=tiny", "eps=3", "privacy.delta=1e-5", "model.checkpointing=true"]
    for more, said in (("adapt=prefix", "prefix"), ("parallel=pipeline", "pipeline")):
        with pytest.raises(ConfigError, match=said):
            parse(compose([*base, more]))
    checkpointed, usual = (parse(compose(some)) for some in (base, base[:-1]))
    assert checkpointed.identity() != usual.identity()
