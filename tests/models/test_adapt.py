"""Each adaptation trains the parameters that it should, and no others."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from dpft.config.errors import ModelError
from dpft.config.schema import Adapt, Decode, Model
from dpft.models.adapt import adapt
from dpft.models.load import LoadedModel, load_model
from dpft.models.lora import targets_of
from dpft.models.needs import Needs
from dpft.models.rgp import CarriedLinear
from dpft.models.save import load_saved, save_model
from dpft.models.select import has_new_head, head_modules, select
from dpft.privacy import make_clipper
from dpft.privacy.clipping.groups import find_blocks
from dpft.tasks.objectives.causal import CausalExample, collate, token_nll
from dpft.tasks.objectives.decode import decode
from tests.models.adapted import NEEDS, SMALL, adapted, shipped, trained
from tests.privacy import architectures
from tests.privacy.small_models import build
from tests.privacy.small_models import build as build_case

BLOCK = {
    "gpt2": "transformer.h.1.",
    "llama": "model.layers.1.",
    "roberta_mlm": "roberta.encoder.layer.1.",
    "roberta_classifier": "roberta.encoder.layer.1.",
    "vit": "vit.layers.1.",
}
FINAL_NORM = {"gpt2": "transformer.ln_f.", "llama": "model.norm.", "vit": "vit.layernorm."}
ATTENTION = {
    "gpt2": ".attn.",
    "llama": ".self_attn.",
    "roberta_mlm": ".attention.",
    "roberta_classifier": ".attention.",
    "vit": ".attention.",
}
# The head where it is a separate parameter; where it is tied, what remains of it.
HEAD = {
    ("gpt2", True): (),
    ("gpt2", False): ("lm_head.",),
    ("llama", True): (),
    ("llama", False): ("lm_head.",),
    ("roberta_mlm", True): ("lm_head.",),
    ("roberta_mlm", False): ("lm_head.",),
    ("roberta_classifier", False): ("classifier.",),
    ("vit", False): ("classifier.",),
    ("wrn", False): ("head.",),
}
CASES = [
    (model, tied, name)
    for model, tied in HEAD
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
    head = HEAD[model, tied]
    new = head if has_new_head(NEEDS[model]) else ()
    chosen = {
        "full": lambda n: True,
        "linear": lambda n: n.startswith(head) if head else False,
        "bias": lambda n: n.endswith("bias"),
        "attention": lambda n: ATTENTION[model] in n,
        "top2": lambda n: n.startswith((BLOCK[model], FINAL_NORM.get(model, "none"), *head)),
    }[name]
    return {n for n in every if chosen(n) or (new and n.startswith(new))}


@pytest.mark.parametrize(("model", "tied", "name"), [c for c in CASES if c not in REFUSED])
def test_it_trains_what_it_should(model, tied, name):
    every = trained(build_case(model, tied).model)  # without what is dead in the model itself
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
    model = architectures.build(architecture).model
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


def parameters_of(model, name, kind):
    """Trained parameters of a full-sized architecture whose weights are never made."""
    loaded = adapt(LoadedModel(model, None, ()), shipped(name), Needs(kind), 0)
    return sum(p.numel() for p in loaded.model.parameters() if p.requires_grad)


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
    assert parameters_of(model, name, "causal") == count


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


CAUSAL = Needs("causal")


def test_a_head_that_is_the_input_embedding_is_no_target(tmp_path):
    """Merged, its update would change what the model reads as well."""
    settings = Adapt("lora", rank=2, alpha=4, targets=("lm_head",))
    tied = load_model(Model("tiny", "bundled:tiny"), CAUSAL, 0)
    with pytest.raises(ModelError, match=r"input embedding too.*model\.tied=false"):
        adapt(tied, settings, CAUSAL, 0)
    model = Model("tiny", "bundled:tiny", tied=False)
    loaded = adapt(load_model(model, CAUSAL, 0), settings, CAUSAL, 0)
    for name, p in loaded.model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(p)
    save_model(loaded, tmp_path)
    again = load_saved(model, CAUSAL, 0, tmp_path).model
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, loaded.model(ids).logits, rtol=0, atol=1e-3)


# Prefix: right positions whatever the padding, and decoding as in training.


EXAMPLES = [
    CausalExample((5, 6, 7), (8, 9, 10, 0)),
    CausalExample(tuple(range(11, 23)), (8, 0)),
    CausalExample((4, 3), (12, 13, 0)),
]


@pytest.fixture(scope="module")
def tiny():
    from dpft.config.schema import Model

    loaded = load_model(Model("tiny", "bundled:tiny"), CAUSAL, 0)
    behind = adapt(loaded, Adapt("prefix", length=4, hidden=16), CAUSAL, 0)
    behind.model.eval()
    return behind


def base(behind):
    return behind.model.get_base_model()


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
    plain = decode(base(tiny), tiny.tokenizer, prompts, settings, seed=0)
    assert texts != plain


def test_a_text_that_leaves_no_room_is_refused():
    case, _ = adapted("gpt2", "prefix")  # 16 positions, 3 of them trained
    ids = torch.ones(1, 14, dtype=torch.long)
    with pytest.raises(
        ModelError, match=r"17 positions; the model has 16: type task.max_length=13"
    ):
        case.model(input_ids=ids, attention_mask=ids, position_ids=ids.cumsum(1) - 1)
    with pytest.raises(ModelError, match=r"task\.max_length=13"):
        case.model.generate(input_ids=ids, attention_mask=ids, max_new_tokens=1)
    short = case.model.generate(
        input_ids=ids[:, :10], attention_mask=ids[:, :10], max_new_tokens=50, pad_token_id=0,
        eos_token_id=None, do_sample=False,
    )  # fmt: skip
    assert short.shape == (1, 13)


# RGP: the value unchanged, the gradient projected, the right weights moved and resumed.


MODELS = [("gpt2", True), ("gpt2", False), ("llama", True), ("roberta_classifier", False),
          ("roberta_mlm", True), ("vit", False)]  # fmt: skip


def layer(kind, p=5, d=7, rank=2, follow="update"):
    torch.manual_seed(0)
    base = Conv1D(p, d) if kind == "conv1d" else nn.Linear(d, p)
    carried = CarriedLinear(base.double(), rank, follow)
    with torch.no_grad():  # an update to follow
        base.weight.add_(0.1 * torch.randn_like(base.weight))
    carried.begin("name", 0, 3)
    return carried


@pytest.mark.parametrize(("model", "tied"), MODELS)
def test_the_value_is_that_of_the_model(model, tied):
    plain = build(model, tied).all_losses()
    case, loaded = adapted(model, "rgp", tied)
    loaded.reparametrisation.begin(5)
    assert torch.equal(case.all_losses(), plain)
    with torch.no_grad():
        assert torch.equal(case.all_losses(), plain)


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_gradients_of_carriers_and_inputs_are_those_of_the_written_out_product(kind):
    """Against autograd on ``x (W_res + L R)^T`` itself, ``W_res`` a constant."""
    carried = layer(kind)
    x = torch.randn(4, 3, 7, dtype=torch.float64, requires_grad=True)
    out = carried(x)
    g = torch.randn_like(out)
    mine = torch.autograd.grad(out, [x, carried.left.weight, carried.right.weight], g)
    L, R = (
        p.detach().clone().requires_grad_() for p in (carried.left.weight, carried.right.weight)
    )
    W_res = (carried.weight - L @ R).detach()
    product = x @ (W_res + L @ R).T + carried.base_layer.bias
    torch.testing.assert_close(out, product)
    for ours, theirs in zip(mine, torch.autograd.grad(product, [x, L, R], g), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_transfer_projects_the_gradient_onto_the_carriers_spaces(kind):
    """Brute force: from the full gradient ``G``, ``G - (I - L L^T) G (I - R^T R)``."""
    carried = layer(kind)
    x = torch.randn(4, 7, dtype=torch.float64)
    g = torch.randn(4, 5, dtype=torch.float64)
    carried(x).backward(g)
    carried.transfer()
    L, R = carried.left.weight, carried.right.weight
    G = g.T @ x
    left_over = (torch.eye(5).double() - L @ L.T) @ G @ (torch.eye(7).double() - R.T @ R)
    found = carried.base_layer.weight.grad
    found = found.T if kind == "conv1d" else found
    torch.testing.assert_close(found, G - left_over, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("model", "tied"), MODELS)
def test_the_matrices_of_the_blocks_and_a_new_head_move(model, tied):
    plain = build(model, tied).model
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
    assert not any("bias" in name for name in matrices)


def test_a_step_of_sgd_moves_along_the_projection_of_the_clipped_sum():
    """One step without noise, against per-record autograd of the written-out product."""
    from tests.privacy.reference import reference_clip

    case, loaded = adapted("gpt2", "rgp", settings=Adapt("rgp", rank=3, follow="weight"))
    loaded.reparametrisation.begin(0)
    clipper = make_clipper(case.model, "bk", threshold=0.05)
    _, sums = reference_clip(
        case.model, case.record_loss, case.batch, lambda n: (0.05 / n).clamp(max=1)
    )
    clipper.reset()
    clipper.backward(case.all_losses())
    loaded.reparametrisation.transfer()
    clipper.close()
    for name, m in case.model.named_modules():
        if isinstance(m, CarriedLinear):
            L, R = m.left.weight, m.right.weight
            dL, dR = sums[f"{name}.left.weight"], sums[f"{name}.right.weight"]
            dW = dL @ R + L @ dR - L @ L.T @ dL @ R
            torch.testing.assert_close(m.base_layer.weight.grad, dW.T, rtol=1e-9, atol=1e-12)
