"""A frozen base in bfloat16 or NF4, and LoRA clipped as on one in float32."""

import copy
import importlib.util

import pytest
import torch

from dpft.config.compose import compose
from dpft.config.errors import ConfigError, SettingError
from dpft.config.schema import parse
from dpft.models.adapt import adapt
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.models.nf4 import PackedLinear, pack, unpack
from dpft.privacy import make_clipper
from dpft.training.run import run_experiment
from dpft.training.trained import loaded_run
from tests.privacy.reference import loop_of
from tests.small_runs import settings

ROUNDED = ["adapt=lora", "precision=bfloat16", "model.dtype=bfloat16"]
PACKED = [*ROUNDED[:2], "model.dtype=nf4"]
NEEDS = Needs("causal")

packs = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None,
    reason="bitsandbytes is not installed: pip install 'dpft[nf4]'",
)


def lora(*words):
    run = parse(compose(["model=random-llama", "eps=3", *words]))
    model = adapt(load_model(run.model, NEEDS, 0), run.adapt, NEEDS, 0).model.train()
    if run.model.dtype == "nf4":
        pack(model)
    return model


def test_the_base_is_rounded_and_what_is_trained_is_not():
    model, whole = lora(*ROUNDED), lora("adapt=lora")
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    assert {p.dtype for p in frozen.values()} == {torch.bfloat16}
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    for name, parameter in whole.named_parameters():
        if name in frozen:
            assert frozen[name].equal(parameter.bfloat16())
    assert all(b.dtype != torch.bfloat16 for b in model.buffers())


def test_clipped_sums_are_those_of_autograd_on_the_rounded_base():
    model = lora(*ROUNDED)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # which begins at zero
            torch.nn.init.normal_(parameter, std=0.02)
    ids = torch.randint(1, 200, (6, 12))

    def losses():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids).logits.float()
        nll = torch.nn.functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")
        return nll.sum(1)

    clipper = make_clipper(model, "bk", threshold=0.5)
    norms, total = loop_of(model, clipper, lambda i: losses()[i], len(ids))
    clipper.backward(losses())
    # Autograd rounds a layer's gradient to bfloat16; ours is the exact product of the same factors.
    torch.testing.assert_close(clipper.norms, norms, rtol=1e-2, atol=0.0)
    for name, parameter in clipper.parameters.items():
        assert (parameter.grad - total[name]).norm() <= 2e-2 * total[name].norm()
    clipper.close()


@packs
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_clipped_sums_on_a_packed_base_are_those_of_autograd_on_the_unpacked_one(family):
    packed = lora(f"model=random-{family}", "model.dropout=0", *PACKED).double()
    torch.manual_seed(0)
    for name, parameter in packed.named_parameters():
        if "lora_B" in name:  # which begins at zero
            torch.nn.init.normal_(parameter, std=0.02)
    plain = copy.deepcopy(packed)
    unpack(plain)
    plain.double()
    assert not any(isinstance(module, PackedLinear) for module in plain.modules())
    ids = torch.randint(1, 200, (6, 12))
    positions = torch.arange(12).repeat(6, 1)

    def losses(model):
        logits = model(input_ids=ids, position_ids=positions).logits
        nll = torch.nn.functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")
        return nll.sum(1)

    clipper = make_clipper(packed, "bk", threshold=0.5)
    clipper.backward(losses(packed))
    sums = [p.grad.clone() for p in packed.parameters() if p.requires_grad]
    norms, factors = clipper.norms[:, 0], clipper.factors[:, 0]
    clipper.close()
    trained = [p for p in plain.parameters() if p.requires_grad]
    alone = [torch.autograd.grad(one, trained, retain_graph=True) for one in losses(plain)]
    true = torch.stack([torch.cat([g.flatten() for g in one]).norm() for one in alone])
    torch.testing.assert_close(norms, true, rtol=1e-10, atol=0.0)
    assert float(factors.min()) < 1
    for place, total in enumerate(sums):
        expected = sum(factor * one[place] for factor, one in zip(factors, alone, strict=True))
        torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-12)


def test_a_packed_base_is_refused_on_a_cpu_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["task=text2text", f"task.train_file={tmp_path}/none.csv", "eps=3", *PACKED]
    words += ["model=custom", f"model.path={tmp_path}/none", f"runs_dir={tmp_path}/runs"]
    with pytest.raises(ConfigError, match=r"model\.dtype is nf4.* on a GPU"):
        run_experiment(parse(compose(words)))
    assert not (tmp_path / "runs").exists()


LANGUAGE = ["task=language_modeling", "model=random-llama", "decode.max_new_tokens=2"]


@pytest.mark.parametrize(
    "words",
    [
        [*LANGUAGE, *ROUNDED],
        pytest.param([*LANGUAGE, *PACKED], marks=packs),
        ROUNDED,  # a classifier, whose new head is trained in float32
    ],
    ids=str,
)
def test_a_run_on_a_rounded_base_is_finished_and_loaded_again(tmp_path, monkeypatch, words):
    monkeypatch.setattr("dpft.training.run.check_nf4", lambda device: None)
    finished = run_experiment(settings(tmp_path, *words))
    merged = loaded_run(finished.path).loaded.model
    assert {p.dtype for p in merged.parameters()} == {torch.bfloat16}
    assert all(p.isfinite().all() for p in merged.parameters())
    found = finished.record["model"]
    before = found["parameters"] - found["trainable_parameters"]
    assert before == sum(p.numel() for p in merged.parameters() if p.dtype == torch.bfloat16)


@pytest.mark.parametrize(
    "words",
    [["adapt=full", *ROUNDED[1:]], ["adapt=lora", "model.dtype=bfloat16"], PACKED[1:]],
    ids=str,
)
def test_only_what_is_frozen_and_multiplied_in_bfloat16_is_rounded(words):
    with pytest.raises(SettingError) as error:
        parse(compose(["model=random-llama", "eps=3", *words]))
    assert error.value.key == "model.dtype"
