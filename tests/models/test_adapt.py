"""Each adaptation trains the parameters that it should, and no others."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from dpft.config.errors import ModelError
from dpft.config.schema import Adapt, Decode, Model
from dpft.models.adapt import adapt
from dpft.models.adapters import targets_of
from dpft.models.load import LoadedModel, load_model
from dpft.models.needs import Needs
from dpft.models.rgp import CarriedLinear
from dpft.models.trained_part import has_new_head, head_modules, select
from dpft.privacy import make_clipper
from dpft.privacy.clipping.groups import find_blocks
from dpft.tasks.objectives.decode import decode
from dpft.tasks.objectives.generation import collate, token_nll
from tests.models.adapted import EXAMPLES, NEEDS, SMALL, adapted, shipped, trained
from tests.privacy import architectures, pairs
from tests.privacy.reference import loop_of
from tests.privacy.small_models import build

CAUSAL = Needs("causal")
# Of each model the last block, final norm and attention, and the head where it has parameters.
PARTS = {
    "gpt2": ("transformer.h.1.", "transformer.ln_f.", ".attn.", "lm_head."),
    "llama": ("model.layers.1.", "model.norm.", ".self_attn.", "lm_head."),
    "roberta_mlm": ("roberta.encoder.layer.1.", "none", ".attention.", "lm_head."),
    "roberta_classifier": ("roberta.encoder.layer.1.", "none", ".attention.", "classifier."),
    "vit": ("vit.layers.1.", "vit.layernorm.", ".attention.", "classifier."),
    "wrn": ("none", "none", "none", "head."),
}
CASES = [
    (model, tied, name)
    for model in PARTS
    for tied in {"gpt2": (True, False), "llama": (True, False), "roberta_mlm": (True,)}.get(
        model, (False,)
    )
    for name in ("full", "linear", "bias", "attention", "top2")
]
REFUSED = {
    ("gpt2", True, "linear"): "has none; type model.tied=false",
    ("llama", True, "linear"): "has none; type model.tied=false",
    ("llama", True, "bias"): "LlamaForCausalLM has none; type adapt=full",
    ("llama", False, "bias"): "LlamaForCausalLM has none; type adapt=full",
    ("wrn", False, "attention"): "WideResNetForImageClassification has none; type adapt=full",
    ("wrn", False, "top2"): "WideResNetForImageClassification has none; type adapt=full",
}


def expected(model, tied, name, every):
    block, norm, attention, head = PARTS[model]
    new = head if has_new_head(NEEDS[model]) else "none"
    if tied and model != "roberta_mlm":  # of which something remains
        head = "none"
    chosen = {
        "full": lambda n: True,
        "linear": lambda n: n.startswith(head),
        "bias": lambda n: n.endswith("bias"),
        "attention": lambda n: attention in n,
        "top2": lambda n: n.startswith((block, norm, head)),
    }[name]
    return {n for n in every if chosen(n) or n.startswith(new)}


@pytest.mark.parametrize(("model", "tied", "name"), [c for c in CASES if c not in REFUSED])
def test_it_trains_what_it_should(model, tied, name):
    every = trained(build(model, tied).model)  # without what is dead in the model itself
    case, _ = adapted(model, name, tied)
    assert trained(case.model) == expected(model, tied, name, every)
    assert trained(case.model)


@pytest.mark.parametrize(("model", "tied", "name"), REFUSED)
def test_it_is_refused_with_a_reason(model, tied, name):
    with pytest.raises(ModelError, match=REFUSED[model, tied, name]):
        adapted(model, name, tied)


@pytest.mark.parametrize(
    ("architecture", "needs", "final"),
    [
        # registered before the blocks
        ("opt", Needs("causal"), {"model.decoder.final_layer_norm"}),
        # one norm of embeddings before the blocks, one of the output behind them
        ("bloom", Needs("causal"), {"transformer.ln_f"}),
        # behind the blocks of the decoder, but of its embeddings
        ("bart", Needs("causal", source=True), set()),
        ("t5", Needs("causal", source=True), {"decoder.final_layer_norm"}),
        ("modernbert", Needs("masked"), {"model.final_norm"}),
    ],
)
def test_the_last_blocks_are_trained_with_the_norm_that_is_computed_after_them(
    architecture, needs, final
):
    made = pairs if needs.source else architectures
    model = made.build(architecture).model
    select(model, Adapt("top2", blocks=1), needs)
    apart = [*find_blocks(model), *head_modules(model, needs)]
    norms = {
        name
        for name, module in model.named_modules()
        if "Norm" in type(module).__name__
        and not name.startswith(tuple(f"{other}." for other in apart))
        and all(p.requires_grad for p in module.parameters())
    }
    assert norms == final


def test_the_pooler_of_a_new_head_is_trained_with_it():
    config = BertConfig(
        vocab_size=23, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=20, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    for name in ("linear", "attention", "lora", "rgp"):
        model = BertForSequenceClassification(config)
        loaded = adapt(LoadedModel(model, None, ()), SMALL[name], NEEDS["roberta_classifier"], 0)
        head = {n for n in trained(loaded.model) if "pooler." in n or "classifier." in n}
        assert len(head) == 4, name
        assert (trained(loaded.model) == head) == (name == "linear")
        clipper = make_clipper(loaded.model, "bk", threshold=0.1)
        logits = loaded.model(input_ids=torch.tensor([[3, 4], [5, 6]])).logits
        called = {n for call in clipper.capture.calls for n in call.site.names.values()}
        assert called == clipper.parameters.keys()
        clipper.backward(logits[:, 0].square())
        clipper.close()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # rank 4, once in each of 12 blocks, for a matrix of 768 by 3 * 768
        ("lora", 12 * 4 * (768 + 3 * 768)),  # 147,456: "about 0.15 million" (Li et al. 2022)
        # 10 embeddings, then a network of 768, 512, and keys and values of 12 blocks
        ("prefix", 10 * 768 + (768 + 1) * 512 + (512 + 1) * 2 * 12 * 768),  # "about 10 million"
        ("top2", 2 * 7_087_872 + 2 * 768),
        ("attention", 12 * (768 * 4 * 768 + 4 * 768)),
        ("bias", 12 * (3 + 1 + 4 + 1 + 2) * 768 + 768),
    ],
)
def test_counts_of_gpt2_small(name, count):
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    loaded = adapt(LoadedModel(model, None, ()), shipped(name), CAUSAL, 0)
    assert sum(p.numel() for p in loaded.model.parameters() if p.requires_grad) == count


# LoRA: begins as the model it adapts, trains its own layers, and follows the seed.


TARGETS = {
    "gpt2": ("c_attn",),
    "llama": ("q_proj", "v_proj"),
    "roberta_mlm": ("query", "value"),
    "roberta_classifier": ("query", "value"),
    "vit": ("q_proj", "v_proj"),
}


@pytest.mark.parametrize("model", TARGETS)
def test_it_adapts_queries_and_values_and_begins_as_the_model(model):
    assert targets_of(build(model, False).model) == TARGETS[model]
    plain = build(model, False).all_losses()
    case, _ = adapted(model, "lora", tied=False)
    assert torch.equal(case.all_losses(), plain)
    adapters = {name for name in trained(case.model) if ".lora_" in name}
    assert len(adapters) == 2 * 2 * len(TARGETS[model])  # A and B, in two blocks
    for name in adapters:
        assert any(f".{target}." in name for target in TARGETS[model])
    rest = trained(case.model) - adapters
    assert all("classifier.modules_to_save." in name for name in rest)
    assert bool(rest) == (model in ("roberta_classifier", "vit"))


def test_a_head_that_is_the_input_embedding_is_no_target():
    """Merged, its update would change what the model reads as well."""
    settings = Adapt("lora", rank=2, alpha=4, targets=("lm_head",))
    tied = load_model(Model("tiny", "bundled:tiny"), CAUSAL, 0)
    with pytest.raises(ModelError, match=r"input embedding too.*model\.tied=false"):
        adapt(tied, settings, CAUSAL, 0)


# Prefix: right positions whatever the padding, and decoding as in training.


@pytest.fixture(scope="module")
def tiny():
    loaded = load_model(Model("tiny", "bundled:tiny"), CAUSAL, 0)
    behind = adapt(loaded, Adapt("prefix", length=4, hidden=16), CAUSAL, 0)
    behind.model.eval()
    return behind


@torch.no_grad()
def test_a_loss_in_a_padded_batch_is_the_loss_alone(tiny):
    together = token_nll(tiny.model, collate(EXAMPLES)).sum(1)
    alone = [token_nll(tiny.model, collate([example])).sum() for example in EXAMPLES]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def by_hand(model, prompt, steps, end):
    """Greedy: the whole text anew for each token, without a cache and without padding."""
    ids = list(prompt)
    for _ in range(steps):
        tensor = torch.tensor([ids])
        mask = torch.ones_like(tensor)
        logits = model(input_ids=tensor, attention_mask=mask, position_ids=mask.cumsum(1) - 1)
        ids.append(int(logits.logits[0, -1].argmax()))
        if ids[-1] == end:
            break
    return ids[len(prompt) :]


def test_decoding_with_padding_is_greedy_decoding_by_hand(tiny):
    end = tiny.tokenizer.eos_token_id
    prompts = [(*tiny.tokenizer.encode(text), end) for text in ("a b", "name : Loch Fyne", "x")]
    assert len({len(prompt) for prompt in prompts}) > 1
    with torch.no_grad():  # so large that texts differ from those of the plain model
        torch.manual_seed(1)
        for p in tiny.model.prompt_encoder.parameters():
            p.mul_(3.0)
    settings = Decode(beams=1, max_new_tokens=6)
    texts = decode(tiny.model, tiny.tokenizer, prompts, settings, seed=0)
    hand = [by_hand(tiny.model, prompt, 6, end) for prompt in prompts]
    expected = tiny.tokenizer.batch_decode(hand, skip_special_tokens=True)
    assert [one.text for one in texts] == [text.strip() for text in expected]
    plain = decode(tiny.model.get_base_model(), tiny.tokenizer, prompts, settings, seed=0)
    assert texts != plain


def test_a_text_that_leaves_no_room_is_refused():
    case, _ = adapted("gpt2", "prefix")  # 16 positions, 3 of them trained
    ids = torch.ones(1, 14, dtype=torch.long)
    with pytest.raises(ModelError, match=r"17 positions; the model has 16: .*max_length=13"):
        case.model(input_ids=ids, attention_mask=ids, position_ids=ids.cumsum(1) - 1)
    with pytest.raises(ModelError, match=r"task\.max_length=13"):
        case.model.generate(input_ids=ids, attention_mask=ids, max_new_tokens=1)
    short = case.model.generate(
        input_ids=ids[:, :10], attention_mask=ids[:, :10], max_new_tokens=50, pad_token_id=0,
        eos_token_id=None, do_sample=False,
    )  # fmt: skip
    assert short.shape == (1, 13)


# RGP: the value unchanged, the gradient projected, the right weights moved and resumed.


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_gradients_are_those_of_the_written_out_product_and_transferred_by_projection(kind):
    """Against autograd on ``x (W_res + L R)^T`` itself, ``W_res`` a constant; and brute force: from
    the full gradient ``G``, ``G - (I - L L^T) G (I - R^T R)``."""
    torch.manual_seed(0)
    base = (Conv1D(5, 7) if kind == "conv1d" else nn.Linear(7, 5)).double()
    carried = CarriedLinear(base, 2, "update")
    with torch.no_grad():  # an update to follow
        base.weight.add_(0.1 * torch.randn_like(base.weight))
    carried.begin("name", 0, 3)
    L, R = carried.left.weight, carried.right.weight
    x = torch.randn(4, 3, 7, dtype=torch.float64, requires_grad=True)
    out = carried(x)
    g = torch.randn_like(out)
    mine = torch.autograd.grad(out, [x, L, R], g)
    left, right = (p.detach().clone().requires_grad_() for p in (L, R))
    W_res = (carried.weight - L @ R).detach()
    product = x @ (W_res + left @ right).T + base.bias
    torch.testing.assert_close(out, product)
    theirs = torch.autograd.grad(product, [x, left, right], g)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    carried(x).backward(g)
    carried.transfer()
    G = torch.einsum("btp,btd->pd", g, x.detach())
    left_over = (torch.eye(5).double() - L @ L.T) @ G @ (torch.eye(7).double() - R.T @ R)
    found = base.weight.grad.T if kind == "conv1d" else base.weight.grad
    torch.testing.assert_close(found, G - left_over, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("model", "tied"), [case[:2] for case in CASES if case[2] == "full" and case[0] != "wrn"]
)
def test_the_value_is_the_models_and_the_matrices_of_the_blocks_and_a_new_head_move(model, tied):
    original = build(model, tied)
    plain, losses = original.model, original.all_losses()
    blocks = (".h.", ".layer.", ".layers.")
    matrices = {
        name
        for name, p in plain.named_parameters()
        if p.dim() == 2 and any(part in name for part in blocks)
    }
    head = {n for n, p in plain.named_parameters() if n.startswith("classifier.")}
    case, loaded = adapted(model, "rgp", tied)
    assert set(loaded.reparametrisation.moved()) == matrices | head
    carriers = {n for n in trained(case.model) if n.endswith((".left.weight", ".right.weight"))}
    assert trained(case.model) == carriers | head
    assert len(carriers) == 2 * len(matrices)
    loaded.reparametrisation.begin(5)
    assert torch.equal(case.all_losses(), losses)
    with torch.no_grad():
        assert torch.equal(case.all_losses(), losses)


def test_a_step_of_sgd_moves_along_the_projection_of_the_clipped_sum():
    """One step without noise, against per-record autograd of the written-out product."""
    case, loaded = adapted("gpt2", "rgp", settings=Adapt("rgp", rank=3, follow="weight"))
    loaded.reparametrisation.begin(0)
    clipper = make_clipper(case.model, "bk", threshold=0.05)
    _, sums = loop_of(case.model, clipper, case.record_loss, case.batch)
    clipper.backward(case.all_losses())
    loaded.reparametrisation.transfer()
    clipper.close()
    for name, m in case.model.named_modules():
        if isinstance(m, CarriedLinear):
            L, R = m.left.weight, m.right.weight
            dL, dR = sums[f"{name}.left.weight"], sums[f"{name}.right.weight"]
            dW = dL @ R + L @ dR - L @ L.T @ dL @ R
            torch.testing.assert_close(m.base_layer.weight.grad, dW.T, rtol=1e-9, atol=1e-12)
