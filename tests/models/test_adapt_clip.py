"""Every adaptation under every clipping style: the autograd loop's sum, or a reason why not."""

import pytest
import torch

from dpft.models.architecture import checkpoint
from dpft.privacy import make_clipper
from tests.covering import covering
from tests.models.adapted import SMALL, adapted
from tests.privacy.reference import clear, clip_records, grads_of, record_gradients, same_grads
from tests.privacy.users import (
    ONE_EACH,
    clipper_of,
    gradients_of,
    median_norm,
    same_as_the_loop,
    text_users,
)


def moved_from_start(case, loaded):
    """Away from where an adapter's gradient is zero by construction."""
    torch.manual_seed(5)
    with torch.no_grad():
        for p in case.model.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn_like(p))
    if loaded.reparametrisation is not None:
        loaded.reparametrisation.begin(1)


ELSEWHERE = [
    ("gpt2", True, ("lora", "prefix", "rgp", "top2", "bias", "attention")),
    ("llama", True, ("lora", "prefix", "rgp", "top2", "attention")),
    ("roberta_mlm", True, ("lora", "rgp", "top2", "bias", "linear", "attention")),
    ("roberta_classifier", False, ("lora", "rgp", "top2", "bias", "linear", "attention")),
    ("vit", False, ("lora", "rgp", "top2", "bias", "linear", "attention")),
    ("wrn", False, ("bias", "linear")),
]


TAKEN = {(model, tied): names for model, tied, names in ELSEWHERE}
# Flat and per layer, with one backward and with two.
COVERING = covering(
    TAKEN,
    SMALL,
    ("bk", "ghost", "per_layer"),
    excluded=lambda model, name, _: name not in TAKEN[model],
)


@pytest.mark.parametrize(("model", "name", "style"), COVERING)
def test_other_families_give_the_sum_of_the_autograd_loop(model, name, style):
    case, loaded = adapted(model[0], name, model[1])
    moved_from_start(case, loaded)
    records = record_gradients(case.model, case.record_loss, case.batch)
    clear(case.model)
    clipper = make_clipper(case.model, style, threshold=0.1)
    clipper.backward(case.all_losses())
    parts = [group.parameters for group in clipper.groups]
    C = clipper.thresholds
    _, total = clip_records(records, parts, lambda k, n: min(1.0, C[k] / n))
    for parameter, grad in grads_of(case.model).items():
        torch.testing.assert_close(grad, total[parameter], rtol=1e-8, atol=1e-10, msg=parameter)


@pytest.mark.parametrize("name", ["lora", "prefix", "rgp"])
def test_norms_and_sums_equal_an_autograd_loop_over_users(name):
    """Users of one to nine records, in several microbatches, whatever the clipping style."""
    case, loaded = adapted("gpt2", name)
    model, data = case.model, text_users()
    moved_from_start(case, loaded)
    gradients = gradients_of(model, data, 1, range(len(data)))
    pieces = data.microbatches(range(len(data)), 110)
    assert len(pieces) > 1
    for style in ONE_EACH:
        clear(model)
        clipper = clipper_of(model, style, threshold=median_norm(gradients) + 1e-3)
        total = same_as_the_loop(model, data, clipper, gradients, pieces)
        assert all(total[n].abs().sum() > 0 for n in clipper.parameters)
        clipper.close()


# ``model.checkpointing``: the same sums, with activations computed again in the backward.


STYLES = ["bk", "per_layer", "materialised", "ghost", "lee_kifer"]


@pytest.mark.parametrize(
    ("model", "name"),
    [("gpt2", "lora"), ("llama", "full"), ("roberta_classifier", "rgp"), ("vit", "lora")],
)
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
