"""A step that is one program gives what the eager step gives; `clipping.test_styles` has sums."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpft.privacy import Quantiles, make_clipper
from dpft.privacy.program import Program, UntraceableError
from tests.privacy.reference import program_of, same_sums
from tests.privacy.small_models import VOCAB, adapted, build, causal_losses, gpt2


@pytest.mark.parametrize("style", ["bk", "per_layer", "none"])
@pytest.mark.parametrize("name", ["lora", "dropout"])
def test_adapters_and_dropout_are_those_of_the_eager_step(name, style):
    case = build("gpt2") if name == "lora" else gpt2(True, dropout=0.3)
    if name == "lora":
        case.model = adapted(case.model)
    clipper = make_clipper(case.model, style, threshold=None if style == "none" else 0.7)
    program = program_of(clipper, case)
    for seed in range(2):
        torch.manual_seed(seed)
        found = program([*case.data.values()], None)
        torch.manual_seed(seed)
        case.model.zero_grad()
        clipper.backward(case.all_losses())
        same_sums(found, clipper, {n: p.grad for n, p in clipper.parameters.items()})


def test_weights_and_thresholds_are_inputs():
    case = build("gpt2")
    clipper = make_clipper(case.model, "per_layer", threshold=0.7, adaptive=Quantiles())
    program = program_of(clipper, case)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.mul_(1.1)
    clipper.policy.move([0.01 * (1 + k) for k in range(len(clipper.groups))])
    found = program([*case.data.values()], None)
    clipper.backward(case.all_losses())
    eager, below = {n: p.grad for n, p in clipper.parameters.items()}, clipper.policy.below.clone()
    same_sums(found, clipper, eager)
    # Taken over, they are added up, and so is what thresholds adapt to.
    clipper.add(found)
    same_sums(found, clipper, {n: p.grad / 2 for n, p in clipper.parameters.items()})
    assert torch.equal(clipper.policy.below, 2 * below)


@pytest.mark.parametrize("style", ["bk", "per_layer"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_record_that_is_not_finite_is_reported(style, bad):
    case = build("vit")
    clipper = make_clipper(case.model, style, threshold=0.7)
    program = program_of(clipper, case)
    tensors = [x.clone() for x in case.data.values()]
    assert bool(program(tensors, None).finite)
    tensors[0][1] = bad
    assert not bool(program(tensors, None).finite)
    assert all(p.grad is None for p in case.model.parameters())


def test_the_style_of_the_page_is_a_program():
    page = Path(__file__).parents[2] / "docs/explanation/program.md"
    text = page.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    made: dict[str, Any] = {}
    exec(compile(example, "program.md", "exec"), made)
    case = build("vit")
    clipper = made["clipped"](case.model)
    assert [group.name for group in clipper.groups] == ["rest", "head"]
    found = program_of(clipper, case)([*case.data.values()], None)
    assert (found.factors * found.norms < torch.tensor(clipper.thresholds)).all()
    clipper.backward(case.all_losses())
    same_sums(found, clipper, {n: p.grad for n, p in clipper.parameters.items()})
    # Thresholds of programs are float64; factors and sums have the type of the norms and weights.
    clipper.close()
    case.model.float()
    case.data = {key: x.float() if x.is_floating_point() else x for key, x in case.data.items()}
    found = program_of(made["clipped"](case.model), case)([*case.data.values()], None)
    assert {x.dtype for x in (found.norms, found.factors, *found.sums)} == {torch.float32}


class Names(TorchDispatchMode):
    """Notes which operations of torch run."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found.add(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["gpt2", "llama", "roberta_classifier", "vit"])
def test_fused_attention_is_part_of_the_program(name):
    case = build(name)
    assert case.model.config._attn_implementation == "sdpa"  # as models are loaded
    clipper = make_clipper(case.model, threshold=0.7)
    program = program_of(clipper, case)
    with Names() as names:
        found = program([*case.data.values()], None)
    assert sum("scaled_dot_product" in name for name in names.found) == 2  # and its backward
    clipper.backward(case.all_losses())
    same_sums(found, clipper, {n: p.grad for n, p in clipper.parameters.items()})


class Branching(nn.Module):
    """Looks at its input."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, 3)

    def forward(self, ids):
        out = self.table(ids).sum((1, 2))
        return out * 2 if bool(ids.sum() > 3) else out


def test_a_model_that_reads_a_number_is_no_program():
    model, ids = Branching(), torch.ones(2, 3, dtype=torch.long)
    clipper = make_clipper(model, threshold=1.0)
    with pytest.raises(UntraceableError, match="_local_scalar_dense"):
        Program(clipper, lambda tensors: model(*tensors), [ids], None, 1, "graph")
    clipper.backward(model(ids))  # which nothing of the attempt disturbs


@pytest.mark.slow
def test_compiled_code_gives_the_same():
    """In bfloat16, with dropout; compiling takes half a minute."""
    case = gpt2(True, dropout=0.3, layers=1)
    case.model.float()
    clipper = make_clipper(case.model, "bk", threshold=0.7)
    clipper.looks = False

    def losses(model, data):
        with torch.autocast("cpu", torch.bfloat16):
            return causal_losses(model, data).float()

    torch.manual_seed(0)
    drawn = torch.get_rng_state()
    program_of(clipper, case, losses=losses)  # which also runs an eager step
    after = torch.get_rng_state()
    torch.set_rng_state(drawn)
    program = program_of(clipper, case, backend="inductor", losses=losses)
    assert torch.equal(torch.get_rng_state(), after), "compiling draws nothing"
    torch.set_rng_state(drawn)
    found = program([*case.data.values()], None)
    torch.set_rng_state(drawn)
    clipper.backward(losses(case.model, case.data))
    torch.testing.assert_close(found.norms, clipper.norms, rtol=2e-2, atol=0)
    same_sums(found, clipper, {n: p.grad for n, p in clipper.parameters.items()}, 2e-2)
