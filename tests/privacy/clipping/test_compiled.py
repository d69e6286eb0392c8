"""Blocks compiled by torch.compile: the same sums, every use counted, and nothing compiled later.

Most tests compile by ``aot_eager``: it traces, partitions and differentiates as inductor does, and
runs torch's own kernels. By inductor two products are compiled, which takes 3 CPU seconds; what it
writes in C++ takes 15 for a block, and is compiled with DPFT_LONG=1.
"""

import os

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch.nn import functional as F

from dpft.privacy import UnsupportedLayerError, make_clipper
from tests.privacy.reference import (
    clear,
    clip_records,
    grads_of,
    record_gradients,
    reference_clip,
    same_grads,
)
from tests.privacy.small_models import build

# Dynamo's own doing: it hides these warnings from users, by filters that "error" comes before.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

TOLERANCE = 1e-10
C = 0.5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 6)

    def forward(self, x):
        return x + self.mixed(self.down(F.gelu(self.up(self.norm(x)))))

    def mixed(self, x):
        return x


class Stack(nn.Module):
    """Two blocks between an embedding and a head; ``(B, T)`` tokens to ``(B, T, V)`` logits."""

    def __init__(self, block=Block):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList([block(), block()])
        self.head = nn.Linear(6, 9)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def stack(block=Block):
    torch.manual_seed(0)
    return Stack(block).double()


def losses(model, ids):
    return F.cross_entropy(model(ids).transpose(1, 2), ids.roll(1, 1), reduction="none").sum(1)


def ids(batch=4, length=5):
    return torch.randint(9, (batch, length), generator=torch.Generator().manual_seed(1))


def compiled(model, style="bk", backend="aot_eager", **settings):
    clipper = make_clipper(model, style, threshold=C, **settings)
    clipper.compile(backend)
    return clipper


def functions():
    """How many were compiled; a graph that broke in two is an error of its own."""
    return counters["stats"]["unique_graphs"]


def check(model, record_loss, batch, losses_of, backend="aot_eager"):
    """Every plan, batches that are checked and others, of several records and of one."""
    records = record_gradients(model, record_loss, batch)
    for style, plan in (
        ("bk", None),
        ("materialised", None),
        ("block_wise", None),
        ("per_layer", "bk"),
    ):
        clipper = compiled(model, style, backend, plan=plan)
        parts = [group.parameters for group in clipper.groups]
        limits = clipper.thresholds
        norms, total = clip_records(records, parts, lambda k, n, c=limits: min(1.0, c[k] / n))
        whole, most, last = slice(None), slice(0, -1), slice(-1, None)
        seen = set()
        for cut in ([whole], [whole], [most, last], [most, last], [whole]):
            clear(model)
            before = functions()
            for rows in cut:
                clipper.backward(losses_of(rows))
            same_grads(model, total, TOLERANCE)
            if cut == [whole]:
                torch.testing.assert_close(clipper.norms, norms, rtol=TOLERANCE, atol=TOLERANCE)
            # What later batches of these shapes need was compiled in the first.
            assert functions() == before or len(cut) not in seen
            seen.add(len(cut))
        clipper.close()
    assert not counters["graph_break"]


def test_every_plan_equals_the_autograd_loop():
    model, data = stack(), ids()
    check(
        model,
        lambda i: losses(model, data[i : i + 1])[0],
        4,
        lambda rows: losses(model, data[rows]),
    )


def test_adapters_beside_frozen_layers_equal_the_autograd_loop():
    """Of frozen layers nothing is asked, and the first block is given no gradient."""
    model, data = stack(), ids()
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["up", "down"])).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p) * p.requires_grad)
    norms, total = reference_clip(
        model, lambda i: losses(model, data[i : i + 1])[0], 4, lambda n: min(1, C / n)
    )
    clipper = compiled(model)
    for _ in range(3):
        clear(model)
        clipper.backward(losses(model, data))
        torch.testing.assert_close(clipper.norms[:, 0], norms, rtol=TOLERANCE, atol=TOLERANCE)
        same_grads(model, total, TOLERANCE)


class Products(nn.Module):
    """What inductor gives to torch's own kernels; nothing is left to write in C++."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 10, bias=False)
        self.down = nn.Linear(10, 6, bias=False)

    def forward(self, x):
        return self.down(self.up(x))


long = pytest.mark.skipif("DPFT_LONG" not in os.environ, reason="a minute: DPFT_LONG=1 runs it")


@pytest.mark.filterwarnings("ignore")  # of torch's own, which inductor sets off inside
@pytest.mark.parametrize(
    ("block", "style"),
    [
        (Products, "bk"),
        *(pytest.param(Block, s, marks=long) for s in ("materialised", "per_layer")),
    ],
)
def test_inductor_gives_the_same_sums_and_compiles_nothing_later(block, style):
    if block is Block:
        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            pytest.skip("inductor needs a C++ compiler, and none is here: apt install g++")
    model, data = stack(block), ids()
    plain = make_clipper(model, style, threshold=C)
    plain.backward(losses(model, data))
    norms, total = plain.norms, grads_of(model)
    plain.close()
    clipper = compiled(model, style, "inductor")
    for step in range(5):
        clear(model)
        before = functions()
        clipper.backward(losses(model, data))
        torch.testing.assert_close(clipper.norms, norms, rtol=TOLERANCE, atol=TOLERANCE)
        same_grads(model, total, TOLERANCE)
        assert functions() == before or step == 0
    assert functions()  # at least by a test before: torch finds its own again
    assert not counters["graph_break"]


@pytest.mark.filterwarnings("ignore")  # of torch's own, which inductor sets off inside
@long
@pytest.mark.parametrize("name", ["gpt2", "roberta_classifier"])
def test_inductor_equals_the_autograd_loop(name):
    case = build(name)
    check(
        case.model,
        case.record_loss,
        case.batch,
        lambda rows: case.losses(case.model, case.rows(rows)),
        "inductor",
    )


def test_functions_are_of_the_layers_that_are_heard():
    """Torch finds a block again that differs in its hooks only: one that nobody heard here."""
    model, data = stack(), ids(3, 4)
    plain = compiled(model, "none")
    plain.backward(losses(model, data))
    plain.close()
    _, total = reference_clip(
        model, lambda i: losses(model, data[i : i + 1])[0], 3, lambda n: min(1, C / n)
    )
    clipper = compiled(model)
    clear(model)
    clipper.backward(losses(model, data))
    same_grads(model, total, TOLERANCE)


def test_batches_that_are_checked_leave_the_same_bits():
    """With dropout too: a run that is continued checks a batch that an unbroken one does not."""

    class Dropping(Block):
        def mixed(self, x):
            return F.dropout(x, 0.5)

    model = stack(Dropping).float()
    clipper = make_clipper(model, "bk", threshold=C)

    def step():
        clear(model)
        torch.manual_seed(3)
        clipper.backward(losses(model, ids()))
        return grads_of(model)

    eager = step()
    clipper.compile("aot_eager")
    for _ in range(3):
        assert all(torch.equal(g, eager[n]) for n, g in step().items())


def test_rules_are_checked_on_what_was_compiled():
    model = stack()
    clipper, up = compiled(model), model.blocks[1].up
    up.forward = lambda x: 3 * F.linear(x, up.weight, up.bias)  # not what its type says
    with pytest.raises(UnsupportedLayerError, match=r"blocks\.1\.up\.weight' gives another"):
        clipper.backward(losses(model, ids()))


class Reading(Block):
    """Reads a layer's weight."""

    def mixed(self, x):
        return x + 0.1 * x @ self.down.weight @ self.down.weight.T


class Owning(Block):
    """Has a parameter that no layer owns."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def mixed(self, x):
        return x * self.scale


class Deciding(Block):
    def mixed(self, x):
        return x if x.sum() > 0 else -x


class Swapping(Block):
    """Sorts the records by their content, and does not put them back."""

    def mixed(self, x):
        return x[x.sum((1, 2)).argsort()]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Reading, "no layer's call covers"),
        (Owning, "no layer's call covers"),
        (Deciding, "cannot be traced"),
        (Swapping, "order|change places"),
    ],
)
def test_what_cannot_be_compiled_exactly_is_refused_by_name(block, message):
    model = stack(block)
    clipper = compiled(model)
    with pytest.raises(UnsupportedLayerError, match=message):
        clipper.backward(losses(model, ids()))


def test_rows_picked_by_number_are_looked_at_in_every_batch(monkeypatch):
    """What the first batch shows of an index says nothing of the next one; else it is enough."""
    looked = []

    class Picking(Block):
        def mixed(self, x):
            return x[torch.arange(len(x))]

    from dpft.privacy.clipping.checks import checker as module

    real = module.check_order
    monkeypatch.setattr(module, "check_order", lambda *a: (looked.append(1), real(*a)))
    for block, expected in ((Block, 1), (Picking, 1 + 3)):
        model = stack(block)
        clipper = compiled(model)
        for _ in range(3):
            clipper.backward(losses(model, ids()))
        assert len(looked) == expected


def test_half_precision_is_refused():
    model = stack().float()
    compiled(model)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(UnsupportedLayerError, match="half precision"),
    ):
        losses(model, ids())


@pytest.mark.parametrize("style", ["ghost", "lee_kifer"])
def test_plans_of_two_backwards_are_refused(style):
    clipper = make_clipper(stack(), style, threshold=C)
    with pytest.raises(ValueError, match="plan='bk'"):
        clipper.compile("aot_eager")


def test_a_model_compiled_by_others_is_refused():
    whole, called, part = stack(), stack(), stack()
    called.compile(backend="eager")
    part.blocks[0].forward = torch.compile(part.blocks[0].forward, backend="eager")
    for model in (torch.compile(whole, backend="eager"), called, part):
        with pytest.raises(UnsupportedLayerError, match=r"clipper\.compile\(\)"):
            make_clipper(model, "bk", threshold=C)


# Dynamo warns that it calls what looks for packed tensors instead of tracing it.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_a_model_that_others_compile_later_is_exact():
    model, data = stack(), ids()
    _, total = reference_clip(
        model, lambda i: losses(model, data[i : i + 1])[0], 4, lambda n: min(1.0, C / n)
    )
    clipper = make_clipper(model, "bk", threshold=C)
    other = torch.compile(model, backend="eager")
    clipper.backward(losses(other, data))
    same_grads(model, total, TOLERANCE)


def test_without_privacy_blocks_are_compiled_too():
    torch._dynamo.reset()  # other tests have compiled such blocks
    model, data = stack(), ids()
    losses(model, data).sum().backward()
    expected = grads_of(model)
    clipper = make_clipper(model, "none")
    clipper.compile("aot_eager")
    clear(model)
    before = functions()
    clipper.backward(losses(model, data))
    assert functions() > before
    same_grads(model, expected, TOLERANCE)


def test_a_closed_clipper_leaves_the_model_as_it_was():
    model, data = stack(), ids()
    clipper = compiled(model)
    clipper.backward(losses(model, data))
    with torch.no_grad():
        expected = losses(model, data)
    clipper.close()
    assert not any("forward" in vars(module) for module in model.modules())
    assert all(p.requires_grad for p in model.parameters())
    torch.testing.assert_close(losses(model, data).detach(), expected)
