"""Operations are counted as paper and pencil count them."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.plan.simulate import Meter, Operation, Operations, PretendedAnswers, give_storages
from dpft.privacy import make_clipper, precision, token_losses
from tests.privacy.reference import clear
from tests.privacy.small_models import adapted, causal_losses


def flops(counted):
    """Floating-point operations of products, by precision."""
    found = Counter()
    for operation, times in counted.items():
        if operation.precision:
            found[operation.precision] += times * operation.flops
    return found


def counted(work):
    with Operations() as operations:
        work()
    return operations.counted


def test_a_product_is_two_operations_for_each_pair_of_factors():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert counted(lambda: a @ b) == {Operation("float32", 2 * 3 * 4 * 5, 4 * (12 + 20 + 15)): 1}
    half = counted(lambda: a.bfloat16() @ b.bfloat16())
    assert flops(half) == {"bfloat16": 120}
    both = half + counted(lambda: torch.bmm(a[None], b[None]))
    assert flops(both) == {"bfloat16": 120, "float32": 120}


def test_products_count_by_the_type_of_their_factors():
    """Whatever is added to, and whatever the result is in."""
    half, stacked = torch.ones(4, 5).bfloat16(), torch.ones(2, 4, 5).bfloat16()
    out = torch.ones(4, 4)
    with FakeTensorMode(allow_non_fake_inputs=True), Operations() as operations:
        torch.mm(half, half.t())
        torch.bmm(stacked, stacked.mT, out_dtype=torch.float32)
        torch.addmm(out, half, half.t(), out_dtype=torch.float32, out=out)
        torch.addmm(torch.ones(4, 3), torch.ones(4, 5), torch.ones(5, 3))
        torch.relu(half)
    once = 2 * 4 * 4 * 5
    assert flops(operations.counted) == {"bfloat16": once + 2 * once + once, "float32": 120}


def test_a_backward_multiplies_twice_as_often():
    layer = torch.nn.Linear(8, 6)
    x = torch.ones(5, 8, requires_grad=True)
    losses = counted(lambda: layer(x).sum().backward())
    assert flops(losses) == {"float32": 3 * 2 * 5 * 8 * 6}


def test_attention_leaves_out_what_is_masked():
    q = torch.ones(2, 3, 64, 16, requires_grad=True)
    whole = flops(counted(lambda: F.scaled_dot_product_attention(q, q, q)))
    assert whole == {"float32": 2 * 2 * 2 * 3 * 64 * 64 * 16}
    k = q[:, :1].detach()  # one head of keys for three of queries computes as much
    grouped = flops(counted(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True)))
    assert grouped == whole
    half = flops(counted(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)))
    assert 2 * half["float32"] == whole["float32"]

    def both():
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()

    # Five products in the backward, one of them the forward's again.
    assert flops(counted(both))["float32"] == half["float32"] * 7 / 2


MOVED = {
    "a view": (lambda x, ids: x.t()[1:], 0),
    "a question": (lambda x, ids: torch.ops.prim.device.default(x), 0),
    "room": (lambda x, ids: torch.empty_like(x), 0),
    "zeros": (lambda x, ids: torch.zeros(10), 40),
    "a sum of two": (lambda x, ids: x + x, 2 * 4000),
    "in place": (lambda x, ids: x.mul_(2), 2 * 4000),
    "an expanded one": (lambda x, ids: x[:1].expand(100, 10) * 2.0, 40 + 4000),
    "a few rows": (lambda x, ids: F.embedding(ids, x), 2 * 80),
    "a copy": (lambda x, ids: torch.zeros(10).copy_(x[0]), 40 + 80),
}


@pytest.mark.parametrize("name", MOVED)
def test_bytes_are_those_that_an_operation_reads_and_writes(name):
    work, expected = MOVED[name]
    x, ids = torch.ones(100, 10), torch.tensor([3, 4])
    found: Counter[Operation] = counted(lambda: work(x, ids))
    assert sum(operation.moved * times for operation, times in found.items()) == expected


def share_outside_bfloat16(style, lora):
    """Of the products of one step of a wide GPT-2 of one layer, on a device that has bfloat16."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=8192, n_positions=100, n_layer=1, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, attn_implementation="eager", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
        model = adapted(model) if lora else model
    with FakeTensorMode(), PretendedAnswers():
        give_storages(model)
        clipper = make_clipper(model, style, threshold=0.1)
        ids = torch.zeros(4, 100, dtype=torch.int64)
        data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for _ in range(2):  # the first is checked against autograd
            clear(model)
            with Operations() as operations:
                with torch.autocast("cpu", torch.bfloat16):
                    losses = causal_losses(model, data)
                clipper.backward(losses.float())
        clipper.close()
    products = flops(operations.counted)
    return 1 - products["bfloat16"] / products.total()


@pytest.mark.parametrize(("style", "lora"), [("bk", False), ("per_layer", True)])
def test_products_of_norms_and_sums_are_in_bfloat16(style, lora, monkeypatch):
    monkeypatch.setattr(precision, "multiplies_halves", lambda device: True)
    assert share_outside_bfloat16(style, lora) < 0.02
    monkeypatch.setattr(precision, "multiplies_halves", lambda device: False)
    assert lora or share_outside_bfloat16(style, lora) > 0.2


def test_logits_are_held_once_and_a_second_time_where_another_backward_is_to_come(monkeypatch):
    monkeypatch.setattr(token_losses, "_PIECE", 2**10)
    monkeypatch.setattr(token_losses, "_SHARE", 64)
    targets = torch.randint(4000, (4, 64))

    def held(function, **options):
        x = torch.zeros(4, 64, 4000, requires_grad=True)
        with Meter() as meter:
            losses = function(x.clone(), targets).sum()
            torch.autograd.grad(losses, x, **options)
        return meter.peak / x.nbytes

    assert held(token_losses.token_losses) < 1.1
    assert 2 < held(token_losses.token_losses, retain_graph=True) < 2.1
    assert held(torch_losses) > 2.9


def torch_losses(logits, targets):
    return torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none")
