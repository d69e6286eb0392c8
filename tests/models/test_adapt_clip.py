"""Every adaptation under every clipping style: the autograd loop's sum, or a reason why not."""

import pytest
import torch
import yaml

from dpft.config.errors import ConfigError
from dpft.config.folder import conf_dir
from dpft.config.schema import Clip, build
from dpft.privacy import make_clipper
from dpft.training.assembly import attach_clipper
from tests.covering import covering
from tests.models.adapted import SMALL, adapted
from tests.privacy.reference import clear, clip_records, grads_of, record_gradients

CLIPS = {
    file.stem: build(Clip, yaml.safe_load(file.read_text()), "clip")
    for file in sorted((conf_dir() / "clip").glob("*.yaml"))
}
# Adaptations that leave one layer, one block, or none of GPT-2's own to be grouped.
REFUSED = {
    ("linear", "block_wise"): "none with trainable parameters was found",
    ("linear", "uniform"): "none with trainable parameters was found",
    ("linear", "two_group"): "none with trainable parameters was found",
    ("linear", "per_device"): "count=1",
    ("linear", "per_device_adaptive"): "count=1",
    ("linear", "custom"): "groups without a trainable parameter",
    ("top2", "two_group"): "use flat",
    ("top2", "uniform"): "count=1",
    ("top2", "custom"): "groups without a trainable parameter",
    ("bias", "custom"): "groups without a trainable parameter",
    ("attention", "custom"): "groups without a trainable parameter",
    ("lora", "custom"): "groups without a trainable parameter",
    ("rgp", "custom"): "groups without a trainable parameter",
    ("prefix", "custom"): "trainable parameters in no group",
    ("prefix", "block_wise"): "none with trainable parameters was found",
    ("prefix", "uniform"): "none with trainable parameters was found",
    ("prefix", "two_group"): "none with trainable parameters was found",
}


def moved_from_start(case, loaded):
    """Away from where an adapter's gradient is zero by construction."""
    torch.manual_seed(5)
    with torch.no_grad():
        for p in case.model.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn_like(p))
    if loaded.reparametrisation is not None:
        loaded.reparametrisation.begin(1)


def clip_factor(settings, thresholds):
    def factor(k, n):
        if not settings.private:
            return 1.0
        C = thresholds[k]
        return min(1.0, C / n) if settings.clip_function == "abadi" else C / (n + 0.01)

    return factor


@pytest.mark.parametrize("name", SMALL)
def test_every_clipping_style_gives_the_sum_of_the_autograd_loop(name):
    case, loaded = adapted("gpt2", name, tied=False)
    moved_from_start(case, loaded)
    records = record_gradients(case.model, case.record_loss, case.batch)
    for style, settings in CLIPS.items():
        clear(case.model)
        if (name, style) in REFUSED:
            with pytest.raises(ConfigError, match=REFUSED[name, style]):
                attach_clipper(settings, case.model)
            continue
        clipper = attach_clipper(settings, case.model)
        clipper.backward(case.all_losses())
        groups = [group.parameters for group in clipper.groups] or [list(clipper.parameters)]
        factor = clip_factor(settings, clipper.thresholds)
        _, total = clip_records(records, groups, factor)
        for parameter, grad in grads_of(case.model).items():
            torch.testing.assert_close(
                grad, total[parameter], rtol=1e-8, atol=1e-10, msg=f"{style}: {parameter}"
            )
        clipper.close()


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
    assert not [f["parameter"] for f in clipper.explain() if f["form"] == "unused"]
