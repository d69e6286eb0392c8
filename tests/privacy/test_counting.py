"""What an accelerator would be asked for: products by precision, and waits of the host."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.parallel.pretended import Answers, give_storages
from dpft.privacy import LostRecordError, make_clipper, precision
from dpft.privacy.clipping import clipper as clippers
from dpft.privacy.clipping.rules import SquaredNorm, uses
from dpft.privacy.clipping.rules.base import batched_gram
from dpft.privacy.clipping.rules.uses import uncancelled
from dpft.privacy.counting import Products, Waits
from tests.privacy.reference import clear, grads_of
from tests.privacy.small_models import build, causal_losses

STYLES = ("bk", "flat", "ghost", "lee_kifer", "per_layer", "per_layer_adaptive", "uniform")


def adapted(model):
    settings = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0)
    return get_peft_model(model, settings)


def test_products_count_by_the_type_of_their_factors():
    half, single = torch.ones(4, 5).bfloat16(), torch.ones(5, 3)
    stacked = torch.ones(2, 4, 5, dtype=torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True), Products() as count:
        torch.mm(half, half.t())
        torch.bmm(stacked, stacked.mT, out_dtype=torch.float32)
        torch.addmm(torch.ones(4, 3), torch.ones(4, 5), single)
        torch.mv(single, torch.ones(3))
        torch.relu(single)
    assert count.flops[torch.bfloat16] == 2 * 4 * 4 * 5 + 2 * 2 * 4 * 4 * 5
    assert count.flops[torch.float32] == 2 * 4 * 5 * 3 + 2 * 5 * 3
    assert count.outside(torch.bfloat16) == pytest.approx(150 / 630)
    assert Products().outside(torch.bfloat16) == 0.0


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
    with FakeTensorMode(), Answers():
        give_storages(model)
        clipper = make_clipper(model, style, threshold=0.1)
        ids = torch.zeros(4, 100, dtype=torch.int64)
        data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for _ in range(2):  # the first is checked against autograd
            clear(model)
            with Products() as count:
                with torch.autocast("cpu", torch.bfloat16):
                    losses = causal_losses(model, data)
                clipper.backward(losses.float())
        clipper.close()
    return count.outside(torch.bfloat16)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("style", ["bk", "per_layer"])
def test_products_of_norms_and_sums_are_in_bfloat16(style, lora, monkeypatch):
    monkeypatch.setattr(precision, "multiplies_halves", lambda device: True)
    monkeypatch.setattr(uses, "_untouched_zeros", lambda like, shape: like.new_zeros(shape))
    assert share_outside_bfloat16(style, lora) < 0.02
    if style == "bk" and not lora:
        monkeypatch.setattr(precision, "multiplies_halves", lambda device: False)
        monkeypatch.setattr(precision, "has_tiles", lambda: True)
        assert share_outside_bfloat16(style, lora) < 0.02
        monkeypatch.setattr(precision, "has_tiles", lambda: False)
        assert share_outside_bfloat16(style, lora) > 0.2


@pytest.fixture
def device(monkeypatch):
    """The CPU, as if the host had to wait for it."""
    monkeypatch.setattr(clippers, "waits", lambda device: True)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["gpt2", "roberta_classifier", "lora"])
def test_the_host_waits_once_a_microbatch(name, style, device):
    """However many layers and groups there are, with blanks and without, in both precisions."""
    case = build("gpt2" if name == "lora" else name)
    model = (adapted(case.model) if name == "lora" else case.model).float()
    clipper = make_clipper(model, style, threshold=0.1)
    real = torch.ones(case.batch, dtype=torch.bool)
    real[-1] = False
    for half in (False, True):
        for number in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                losses = case.losses(model, case.data).float()
            with Waits(host=[real]) as found:
                clipper.backward(losses, real=real if number else None)
        assert found.count == 1, found.found


def planted_in_hook(model, x):
    out = model(x)
    out.register_hook(lambda g: g * float(g.sum() > -1e9))
    return out


PLANTED = {
    "item": lambda model, x: model(x * x.sum().item()),
    "bool": lambda model, x: model(x) if bool((x == x).all()) else x,
    "mask": lambda model, x: model(x[x[:, 0] > -1e9]),
    "nonzero": lambda model, x: model(x[(x[:, 0] > -1e9).nonzero()[:, 0]]),
    "tolist": lambda model, x: model(x) * x[0].tolist()[0],
    "cpu": lambda model, x: model(x.cpu()),
    "numpy": lambda model, x: model(x) * float(x.numpy().max()),
    "equal": lambda model, x: model(x) if torch.equal(x, x) else x,
    "masked_select": lambda model, x: model(x).sum() + x.masked_select(x > 0).sum(),
    "in a backward": planted_in_hook,
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_wait_is_found(kind):
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with Waits() as found:
        model(x).square().sum().backward()
    assert not found.count
    with Waits() as found:
        PLANTED[kind](model, x).square().sum().backward()
    assert found.count >= 1


def test_what_the_host_knows_is_read_without_waiting():
    mask = torch.tensor([True, False])
    with Waits(host=[mask]) as found:
        assert bool((~mask).any())
        torch.tensor([1.0, 2.0]).tolist()
        assert found.count == 0
        torch.ones(2)[mask]
    assert found.count == 1


def clip_with(style, x, monkeypatch, careful):
    """The sums of a batch; with a device, as a loop has them that begins again where it must."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    monkeypatch.setattr(clippers, "waits", lambda device: not careful)
    clipper = make_clipper(model, style, threshold=0.1)
    clipper.backward(
        F.cross_entropy(model(torch.ones(2, 5)), torch.tensor([0, 1]), reduction="none")
    )
    lost = 0
    while True:
        clear(model)
        losses = F.cross_entropy(model(x), torch.arange(len(x)) % 3, reduction="none")
        try:
            clipper.backward(losses)
        except LostRecordError:
            lost += 1
            clipper.reset()
            continue
        return grads_of(model), clipper.factors, lost


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("style", ["bk", "flat", "ghost", "lee_kifer", "per_layer"])
def test_one_look_at_the_end_leaves_the_same_sums(style, bad, monkeypatch):
    """A record that is not finite is found before anything is released, and dropped then."""
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
    if bad:
        x[2, 3] = torch.inf
    expected, factors, _ = clip_with(style, x, monkeypatch, careful=True)
    found, others, lost = clip_with(style, x, monkeypatch, careful=False)
    assert lost == (bad and style not in ("bk", "flat"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(others, factors, rtol=1e-5, atol=0)
    assert all(g.isfinite().all() for g in found.values())


@pytest.mark.parametrize("noise", [0.0, 1e-7, 1e-5, 1e-3, 1.0])
@pytest.mark.parametrize("length", [60, 400])
def test_a_norm_that_cancels_is_never_understated_without_a_look(noise, length):
    """Positions that cancel to less than float32 can tell."""
    generator = torch.Generator().manual_seed(length)
    a = torch.randn(16, length // 2, 40, generator=generator).repeat_interleave(2, 1)
    a = a * (1 + noise * torch.randn(a.shape, generator=generator))
    g = torch.randn(16, length // 2, 30, generator=generator).repeat_interleave(2, 1)
    g[:, ::2] *= -1.0
    gram_a, gram_g = batched_gram(a), batched_gram(g)
    scale = uncancelled(gram_a, gram_g)
    norm = SquaredNorm((gram_a * gram_g).sum((1, 2)), scale).certain()
    true = torch.bmm(g.double().mT, a.double()).square().sum((1, 2))
    assert (norm.value >= true * (1 - 1e-5)).all()
    assert (norm.value <= 1.01 * true + 1e-5 * scale).all()
