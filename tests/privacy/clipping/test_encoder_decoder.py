"""Models with encoder and decoder: every style equals an autograd loop, in float64 to 1e-10.

One table serves encoder, decoder and head, scaled differently in each; tables of positions are
read once for a batch; the decoder sees encoder outputs behind a padding mask.
"""

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from dpft.privacy import make_clipper
from dpft.privacy.token_losses import token_losses
from dpft.tasks.objectives.causal import CausalExample
from dpft.tasks.objectives.encoder_decoder import EncoderDecoder
from tests.privacy.architectures import in_double, shake, undropped
from tests.privacy.reference import clear, clip_records, record_gradients, same_grads
from tests.privacy.small_models import Case

VOCAB = 24
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}
BART = {
    **{"d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 16},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
    **{"encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "scale_embedding": True},
}
MODELS = {
    "t5": ("t5", T5),
    # As version 1.1 and Flan: gated layers, a head of its own.
    "t5 untied": ("t5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("bart", BART),
    "pegasus": ("pegasus", BART),
}
EXAMPLES = [
    CausalExample((5, 6, 7, 5, 6, 2), (9, 9, 8, 2)),
    CausalExample((8, 2), (5, 6, 7, 10, 7, 2)),
    CausalExample((11, 12, 13, 2), (2,)),
]


class Padding:
    pad_token_id = 0


OBJECTIVE = EncoderDecoder(Padding(), 16, "mean", start=3)


def losses(model, data):
    """Of records by number, each padded to the longest of the batch: alone, they have others."""
    batch = OBJECTIVE.collate([EXAMPLES[i] for i in data["input_ids"][:, 0].tolist()])
    return OBJECTIVE.losses(model, batch)


def build(name, dropout=0.0):
    """A model, and its records by number."""
    torch.manual_seed(0)
    kind, sizes = MODELS[name]
    tokens = {"vocab_size": VOCAB, "pad_token_id": 0, "eos_token_id": 2}
    config = undropped(AutoConfig.for_model(kind, **tokens, decoder_start_token_id=3, **sizes))
    config.dropout_rate = config.dropout = dropout
    with in_double():
        model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float64).train()
    if name == "t5 untied":
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    shake(model)
    return Case(model, {"input_ids": torch.arange(len(EXAMPLES))[:, None]}, losses)


@pytest.mark.parametrize("name", MODELS)
def test_every_style_is_exact(name):
    case = build(name)
    tables = [n for n, p in case.model.named_parameters() if len(p) == VOCAB]
    assert len(tables) == (2 if name == "t5 untied" else 1)  # the shared one counts once
    with in_double():
        records = record_gradients(case.model, case.record_loss, case.batch)
        for style in ("ghost", "lee_kifer", "per_layer_adaptive", "block_wise", "bk"):
            clipper = make_clipper(case.model, style, threshold=0.5)
            parts = [group.parameters for group in clipper.groups]
            norms, total = clip_records(
                records, parts, lambda k, n, C=clipper.thresholds: min(1.0, C[k] / n)
            )
            for _ in range(2):  # the first batch is checked
                clear(case.model)
                clipper.backward(case.all_losses())
                torch.testing.assert_close(clipper.norms, norms, rtol=1e-10, atol=1e-10)
                same_grads(case.model, total, 1e-10)
            clipper.close()
    forms = [entry["form"] for entry in clipper.explain()]
    assert not any("again" in form for form in forms)  # a rule for every layer


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_decoder_that_keeps_a_cache_is_clipped_too(name):
    """Also with dropout, whose masks only the clipper's own check can compare."""
    model, data = build(name, dropout=0.1).model, dict(OBJECTIVE.collate(EXAMPLES).tensors)
    targets = data.pop("targets")
    clipper = make_clipper(model, "bk", threshold=0.5)
    clipper.backward(token_losses(model(**data).logits, targets).sum(1))
    assert not any("again" in entry["form"] for entry in clipper.explain())
    clipper.close()
