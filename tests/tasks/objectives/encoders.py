"""Small BERT and RoBERTa models with tokenizers, built without any file."""

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

TEXT = (
    "a b c the film plot was is it not dull great terrible bad good yes no maybe who built bridge "
    "mill long very . ? , !"
)
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def _special(tokenizer, names):
    return [(name, tokenizer.token_to_id(name)) for name in names]


def wordpiece():
    """A lower-casing WordPiece tokenizer in BERT's form."""
    vocabulary = f"[PAD] [UNK] [CLS] [SEP] [MASK] {TEXT} ##s un ##kind".split()
    tokenizer = Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=_special(tokenizer, ("[CLS]", "[SEP]")),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def byte_level():
    """A byte-level BPE tokenizer in RoBERTa's form: ``Ġgreat`` is the word with its space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=600,
        min_frequency=1,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{TEXT} It was Yes No Maybe great terrible"], trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=_special(tokenizer, ("<s>", "</s>")),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token=AddedToken("<mask>", lstrip=True),
        model_input_names=["input_ids", "attention_mask"],
    )


TOKENIZERS = {"bert": wordpiece, "roberta": byte_level}


def build(name, masked, classes=2, seed=0):
    """A model in float64 with larger weights than a new one's, and its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = TOKENIZERS[name]()
    common = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **SIZES}
    common["num_labels"] = classes
    if name == "bert":
        config = BertConfig(max_position_embeddings=40, type_vocab_size=2, **common)
        cls = BertForMaskedLM if masked else BertForSequenceClassification
    else:
        config = RobertaConfig(max_position_embeddings=42, type_vocab_size=1, **common)
        cls = RobertaForMaskedLM if masked else RobertaForSequenceClassification
    model = cls(config).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model, tokenizer
