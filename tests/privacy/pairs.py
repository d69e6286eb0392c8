"""Very small models with encoder and decoder, in float64, and records of two texts each."""

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from dpft.tasks.objectives.generation import CausalExample, EncoderDecoder
from dpft.tasks.objectives.objective import Batch
from tests.privacy.architectures import in_double, shake, undropped
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
    CausalExample((5, 6, 7, 5, 6, 2), (9, 9, 8, 2)),
]


class Padding:
    pad_token_id = 0


OBJECTIVE = EncoderDecoder(Padding(), 16, "mean", start=3)


def losses(model, data):
    """Of records by number, each padded to the longest of the batch: alone, they have others."""
    batch = OBJECTIVE.collate([EXAMPLES[i] for i in data["input_ids"][:, 0].tolist()])
    return OBJECTIVE.losses(model, batch)


def build(name, dropout=0.0):
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


def padded(name):
    """The same with the records' own tokens, padded to the longest."""
    data = dict(OBJECTIVE.collate(EXAMPLES).tensors)
    return Case(build(name).model, data, lambda model, rows: OBJECTIVE.losses(model, Batch(rows)))
