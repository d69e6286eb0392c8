"""Every adaptation under every clipping style: the autograd loop's sum, or a reason why not."""

import pytest

from dpft.models.architecture import checkpoint
from tests.covering import covering
from tests.models.adapted import SMALL, moved
from tests.privacy import users
from tests.privacy.reference import clear, equals_loop

TAKEN = {
    ("gpt2", True): ("lora", "prefix", "rgp", "top2", "bias", "attention"),
    ("llama", True): ("lora", "prefix", "rgp", "top2", "attention"),
    ("roberta_mlm", True): ("lora", "rgp", "top2", "bias", "linear", "attention"),
    ("roberta_classifier", False): ("lora", "rgp", "top2", "bias", "linear", "attention"),
    ("vit", False): ("lora", "rgp", "top2", "bias", "linear", "attention"),
    ("wrn", False): ("bias", "linear"),
}
# Flat and per layer, with one backward and with two.
COVERING = covering(
    TAKEN,
    SMALL,
    ("bk", "ghost", "per_layer"),
    excluded=lambda model, name, _: name not in TAKEN[model],
)


@pytest.mark.parametrize(("model", "name", "style"), COVERING)
def test_other_families_give_the_sum_of_the_autograd_loop(model, name, style):
    case, _ = moved(model[0], name, model[1])
    equals_loop(case.model, case.losses_of, case.batch, style, threshold=0.1)


@pytest.mark.parametrize("name", ["lora", "prefix", "rgp"])
def test_norms_and_sums_equal_an_autograd_loop_over_users(name):
    model, data = moved("gpt2", name)[0].model, users.text_users()
    gradients = users.gradients_of(model, data, 1, range(len(data)))
    pieces = data.microbatches(range(len(data)), 110)
    assert len(pieces) > 1
    for style in users.ONE_EACH:
        clear(model)
        clipper = users.clipper_of(model, style, threshold=users.median_norm(gradients) + 1e-3)
        total = users.same_as_the_loop(model, data, clipper, gradients, pieces)
        assert all(total[n].abs().sum() > 0 for n in clipper.parameters)
        clipper.close()


# ``model.checkpointing``: the same sums, with activations computed again in the backward.


@pytest.mark.parametrize(
    ("model", "name"),
    [("gpt2", "lora"), ("llama", "full"), ("roberta_classifier", "rgp"), ("vit", "lora")],
)
def test_every_plan_gives_the_sum_of_the_autograd_loop(model, name):
    case, loaded = moved(model, name)
    checkpoint(loaded.model, model)
    assert any(getattr(m, "gradient_checkpointing", False) for m in case.model.modules())
    for style in users.ONE_EACH:
        clipper = equals_loop(case.model, case.losses_of, case.batch, style, threshold=0.3)
        clipper.check(case.losses_of(slice(0, 3)))
        clipper.close()
