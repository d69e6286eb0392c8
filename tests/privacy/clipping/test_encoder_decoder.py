"""Models with encoder and decoder: every style equals an autograd loop, in float64 to 1e-10.

One table serves encoder, decoder and head, scaled differently in each; tables of positions are
read once for a batch; the decoder sees encoder outputs behind a padding mask.
"""

import warnings

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.token_losses import token_losses
from tests.privacy.architectures import in_double, shake
from tests.privacy.pairs import TARGETS, VOCAB, build, losses, padded
from tests.privacy.reference import clear, clip_records, record_gradients, same_grads


def lora(case, targets):
    config = LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=2, target_modules=targets)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated")
        case.model = get_peft_model(case.model, config).double()
    shake(case.model)
    return case


def compare(case, *styles):
    """Two batches of each style, of which the first is looked at, against the loop."""
    with in_double():
        records = record_gradients(case.model, case.record_loss, case.batch)
        for style in styles:
            clipper = make_clipper(case.model, style, threshold=0.5)
            parts = [group.parameters for group in clipper.groups]
            norms, total = clip_records(
                records, parts, lambda k, n, C=clipper.thresholds: min(1.0, C[k] / n)
            )
            for _ in range(2):
                clear(case.model)
                clipper.backward(case.all_losses())
                torch.testing.assert_close(clipper.norms, norms, rtol=1e-10, atol=1e-10)
                same_grads(case.model, total, 1e-10)
            clipper.close()
    return [entry["form"] for entry in clipper.explain()]


@pytest.mark.parametrize("name", ["t5", "t5 untied", "bart"])
def test_every_style_is_exact(name):
    case = build(name)
    tables = [n for n, p in case.model.named_parameters() if len(p) == VOCAB]
    assert len(tables) == (2 if name == "t5 untied" else 1)  # the shared one counts once
    forms = compare(
        case, "ghost", "lee_kifer", "per_layer", "per_layer_adaptive", "block_wise", "bk"
    )
    assert not any("again" in form for form in forms)  # a rule for every layer


@pytest.mark.parametrize("name", ["mt5", "mbart", "pegasus"])
def test_relatives_are_exact(name):
    compare(build(name), "bk")


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_lora_is_exact(name):
    compare(lora(build(name), TARGETS[name]), "ghost", "per_layer", "per_layer_adaptive", "bk")


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_sums_of_losses_and_users_are_exact(name):
    """A record of two rows, and a loss that is a sum over tokens."""
    case = build(name)
    with in_double():

        def unit(i):
            rows = {"input_ids": torch.tensor([[2 * i], [2 * i + 1]])}
            return losses(case.model, rows, "sum").sum()

        records = record_gradients(case.model, unit, 2)
        clipper = make_clipper(case.model, "bk", threshold=0.5)
        _, total = clip_records(records, [list(clipper.parameters)], lambda k, n: min(1.0, 0.5 / n))
        clear(case.model)
        clipper.backward(losses(case.model, case.data, "sum").view(2, 2).sum(1), rows=2)
        same_grads(case.model, total, 1e-10)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_dropout_is_clipped_too(name):
    """Its masks are others in a loop, so it is the clipper's own check that compares."""
    case = build(name, dropout=0.1)
    clipper = make_clipper(case.model, "bk", threshold=0.5)
    clipper.backward(case.all_losses())
    clipper.close()


def test_a_lookup_for_the_batch_beside_dropout_says_what_to_type():
    """UMT5 makes one in each attention, which has dropout: it can only be computed again."""
    compare(build("umt5"), "bk")
    case = build("umt5", dropout=0.1)
    clipper = make_clipper(case.model, "bk", threshold=0.5)
    said = r"relative_attention_bias.*without dropout.*type model\.dropout=0"
    with pytest.raises(UnsupportedLayerError, match=said):
        clipper.backward(case.all_losses())


@pytest.mark.parametrize("name", ["t5", "mt5", "bart"])
def test_a_decoder_that_keeps_a_cache_is_clipped_too(name):
    """It does unless it is told not to; the cache is empty where its table is looked up."""
    model, data = build(name, dropout=0.1).model, dict(padded(name).data)
    targets = data.pop("targets")
    clipper = make_clipper(model, "bk", threshold=0.5)
    clipper.backward(token_losses(model(**data).logits, targets).sum(1))
    assert not any("again" in entry["form"] for entry in clipper.explain())
    clipper.close()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_clipper_changes_no_loss(name):
    """It gives lookups a row for each record; without it they are the model's own again."""
    case = build(name)
    plain = case.all_losses()
    clipper = make_clipper(case.model, "bk", threshold=0.5)
    assert torch.equal(plain, case.all_losses())
    clipper.reset()
    clipper.close()
    assert torch.equal(plain, case.all_losses())


def test_activation_checkpointing_is_exact():
    for name in ("t5", "bart"):
        case = build(name)
        case.model.activation_checkpointing_enable({"use_reentrant": False})
        compare(case, "bk")
