"""A step that is one program gives what the eager step gives, for every model and style."""

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
from dpft.privacy.spec import CLIP_FUNCTIONS
from tests.covering import covering
from tests.privacy.clipping.test_styles import ROWS, TOLERANCE, excluded, factor_of, partition_for
from tests.privacy.reference import clip_records, record_gradients
from tests.privacy.small_models import MODELS, VOCAB, adapted, build, causal_losses, gpt2

PADDING = (False, True)
GROUPS = ("flat", "per_layer", "uniform")
PLANS = ("bk", "fused", "ghost", "materialised")
NAMES = tuple(name for name in MODELS if name != "roberta_mlm")


def unfit(name, tied, groups, plan, function, rows, padding):
    return excluded(name, tied, groups, plan, rows=rows)


CASES = covering(
    NAMES, (True, False), GROUPS, PLANS, CLIP_FUNCTIONS, ROWS, PADDING,
    excluded=unfit,
)  # fmt: skip


def program_of(clipper, case, rows=1, real=None, backend="graph", losses=None):
    """The program of a case's records, as they are in its order of tensors."""
    names = [*case.data]

    def of_units(tensors):
        found = (losses or case.losses)(case.model, dict(zip(names, tensors, strict=True)))
        return found.view(-1, rows).mean(1)

    tensors = [x.repeat_interleave(rows, 0) for x in case.data.values()]
    clipper.backward(of_units(tensors), rows=rows)  # with all checks
    case.model.zero_grad()
    return Program(clipper, of_units, tensors, real, rows, backend)


def same_sums(found, clipper, total, tolerance=TOLERANCE):
    for name, own in zip(clipper.parameters, found.sums, strict=True):
        torch.testing.assert_close(own, total[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("combination", CASES, ids=lambda values: "-".join(map(str, values)))
def test_norms_and_sums_equal_the_autograd_loop(combination):
    name, tied, groups, plan, function, rows, padding = combination
    case = build(name, tied)
    order = [2, 0, 1][: case.batch]  # not the records that the program was traced with
    records = record_gradients(case.model, case.record_loss, case.batch)
    units = [
        {n: sum(records[(i + row) % 3][n] for row in range(rows)) / rows for n in records[i]}
        for i in order
    ]
    partition = partition_for(groups, case.model)
    options = {"groups": partition, "plan": plan, "clip_function": function}
    clipper = make_clipper(case.model, threshold=0.7, **options)
    factor = factor_of(function, clipper.thresholds)
    norms, total = clip_records(units, [group.parameters for group in clipper.groups], factor)
    case.data = case.rows([0, 1, 2])
    real = torch.tensor([True, True, True]) if padding else None
    program = program_of(clipper, case, rows, real)
    index = [(i + row) % 3 for i in order for row in range(rows)]
    tensors = [*case.rows(index).values()]
    if padding:  # the last unit becomes padding, of numbers that must not count
        real = torch.tensor([True, True, False])
        norms, total = clip_records(
            units[:2], [group.parameters for group in clipper.groups], factor
        )
    found = program(tensors, real)
    torch.testing.assert_close(found.norms[: len(norms)], norms, rtol=TOLERANCE, atol=TOLERANCE)
    same_sums(found, clipper, total)
    assert bool(found.finite)
    clipper.close()


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


@pytest.mark.parametrize("style", ["bk", "per_layer", "ghost"])
def test_no_record_exceeds_its_threshold_in_bfloat16(style):
    case = build("gpt2")
    case.model.float()
    threshold, losses = 0.05, causal_losses

    def rounded(model, data):
        with torch.autocast("cpu", torch.bfloat16):
            return losses(model, data).float()

    clipper = make_clipper(case.model, style, threshold=threshold)
    case.losses, size = rounded, case.batch
    # Each record among rows of padding, in the shape that all are computed in.
    program = program_of(clipper, case, real=torch.ones(size, dtype=torch.bool))

    def added(real):
        found = program([*case.data.values()], real)
        return torch.cat([g.flatten().double() for g in found.sums])

    alone = torch.stack([added(torch.arange(size) == i) for i in range(size)])
    lengths = alone.norm(dim=1)
    assert (lengths <= threshold * (1 + 1e-5)).all()
    assert (lengths > 0.95 * threshold).all()
    together = added(torch.ones(size, dtype=torch.bool))
    assert (together - alone.sum(0)).norm() < 1e-4 * threshold * size


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
