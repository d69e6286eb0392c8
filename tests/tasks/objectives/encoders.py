"""BERT's tokenizer, and stand-ins of models of texts and images with larger weights."""

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs

WORDS = (
    "a b c the film plot was is it not dull great terrible bad good yes no maybe who built bridge "
    "mill long very . ? , ! ##s un ##kind"
)


def wordpiece():
    """A lower-casing WordPiece tokenizer in BERT's form, which the stand-in of BERT has not."""
    vocabulary = f"[PAD] [UNK] [CLS] [SEP] [MASK] {WORDS}".split()
    numbers = {word: i for i, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )


def standin(family, kind, classes=()):
    """A model with larger weights than a new one's, in training, and its tokenizer."""
    loaded = load_model(Model("x", f"random:{family}"), Needs(kind, classes), seed=0)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return loaded.model.train(), loaded.tokenizer
