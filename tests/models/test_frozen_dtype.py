"""A frozen base in bfloat16: half the memory, and LoRA clipped as on one in float32."""

import pytest
import torch

from dpft.config.compose import compose
from dpft.config.errors import SettingError
from dpft.config.schema import parse
from dpft.models.adapt import adapt
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.privacy import make_clipper
from dpft.training.run import run_experiment
from dpft.training.trained import loaded_run
from tests.privacy.reference import loop_of
from tests.small_runs import settings

ROUNDED = ["adapt=lora", "precision=bfloat16", "model.dtype=bfloat16"]
NEEDS = Needs("causal")


def lora(*words):
    run = parse(compose(["model=random-llama", "eps=3", *words]))
    return adapt(load_model(run.model, NEEDS, 0), run.adapt, NEEDS, 0).model.train()


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


def test_a_run_on_a_rounded_base_is_finished_and_loaded_again(tmp_path):
    words = ["task=language_modeling", "model=random-llama", "decode.max_new_tokens=2"]
    path = run_experiment(settings(tmp_path, *words, *ROUNDED)).path
    merged = loaded_run(path).loaded.model
    assert all(p.isfinite().all() for p in merged.parameters())


@pytest.mark.parametrize(
    "words", [["adapt=full", *ROUNDED[1:]], ["adapt=lora", "model.dtype=bfloat16"]], ids=str
)
def test_only_what_is_frozen_and_multiplied_in_bfloat16_is_rounded(words):
    with pytest.raises(SettingError) as error:
        parse(compose(["model=random-llama", "eps=3", *words]))
    assert error.value.key == "model.dtype"
