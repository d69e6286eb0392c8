"""Mean pooling, for encoders that were trained with it, in a form that transformers loads.

`BertForSequenceClassification` reads the first token. What a sentence encoder knows of a text is in
the mean over its tokens, and the first one has little of it. Another block behind the last is such
that the first token becomes that mean: its queries and keys are zero, so that it attends to all
tokens evenly, and what it reads are the tokens themselves. Behind it the pooler is the identity.
What a run saves is then an ordinary model with one more block.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from dpft.config.errors import ModelError

# How much the mean outweighs the token's own vector, which the block adds to it.
_WEIGHT = 1000.0


@torch.no_grad()
def pool_mean(model: PreTrainedModel, name: str) -> None:
    """Have a classifier read ``tanh`` of the normalised mean over all tokens, in place.

    The mean is that of sentence-transformers (special tokens count, padding does not), with mean 0
    and variance 1 over its coordinates. Nothing of what is added is trained.

    Raises:
        ModelError: if it is no BERT with its pooler.
    """
    body: Any = getattr(model, "bert", None)
    if getattr(body, "pooler", None) is None:
        raise ModelError(
            f"model.pooling=mean, but model {name} is a {type(model).__name__}; expected a BERT "
            "with a new head: type model.pooling=null"
        )
    block = copy.deepcopy(body.encoder.layer[-1])
    attention, outer = block.attention, block.output
    for parameter in block.parameters():
        parameter.zero_()
    torch.nn.init.eye_(attention.self.value.weight)
    torch.nn.init.eye_(attention.output.dense.weight).mul_(_WEIGHT)
    for norm in (attention.output.LayerNorm, outer.LayerNorm):
        norm.weight.fill_(1)
    torch.nn.init.eye_(body.pooler.dense.weight)
    body.pooler.dense.bias.zero_()
    block.requires_grad_(False)
    body.pooler.requires_grad_(False)
    body.encoder.layer.append(block)
    model.config.num_hidden_layers += 1
