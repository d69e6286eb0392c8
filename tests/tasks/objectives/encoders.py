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
    "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def _finished(tokenizer, single, pair, names, **special):
    """A tokenizer of transformers, with special tokens called as its model names them."""
    called = [special[f"{name}_token"] for name in ("cls", "sep")]
    ids = [(token, tokenizer.token_to_id(token)) for token in called]
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special)


def wordpiece():
    """A lower-casing WordPiece tokenizer in BERT's form."""
    vocabulary = f"[PAD] [UNK] [CLS] [SEP] [MASK] {TEXT} ##s un ##kind".split()
    numbered = {word: i for i, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(numbered, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = {
        f"{name.lower()}_token": f"[{name}]" for name in ["PAD", "UNK", "CLS", "SEP", "MASK"]
    }
    return _finished(
        *(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        ["input_ids", "token_type_ids", "attention_mask"],
        **special,
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
    special = {"cls_token": "<s>", "sep_token": "</s>", "bos_token": "<s>", "eos_token": "</s>"}
    special |= {"pad_token": "<pad>", "unk_token": "<unk>"}
    special["mask_token"] = AddedToken("<mask>", lstrip=True)
    return _finished(
        *(tokenizer, "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
        ["input_ids", "attention_mask"],
        **special,
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
