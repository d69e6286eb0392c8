"""Tokens that can be read, stand-ins with larger weights, and losses that are a record's own."""

from types import SimpleNamespace

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from dpft.config.schema import Decode, Model
from dpft.models.load import load_model
from dpft.models.needs import Needs


class Letters:
    def __init__(self, end):
        self.eos_token, self.eos_token_id = end, ord(end)

    def __call__(self, text, **settings):
        several = isinstance(text, list)
        return {"input_ids": [*map(self.encode, text)] if several else self.encode(text)}

    def encode(self, text, **settings):
        return [ord(c) for c in text]


def loaded_letters(end, positions=None):
    """Return what a task makes an objective for; positions None: as many as there may be."""
    limits = {} if positions is None else {"max_position_embeddings": positions}
    model = SimpleNamespace(config=SimpleNamespace(**limits))
    return SimpleNamespace(text_tokenizer=Letters(end), model=model)


def spelled(ids):
    return "".join(map(chr, ids))


def prompt_of(objective, record, room=1):
    """Return the prompt of a text, with so much room left to write."""
    ((ids, _),) = objective.prompts([record], Decode(max_new_tokens=room))
    return ids


def check_losses_are_their_own(model, objective, records):
    """In a batch a loss is that of the record alone, and reaches no other row and no padding."""
    examples = [objective.encode(record) for record in records]
    assert len({example.length for example in examples}) > 1
    batch, captured = objective.collate(examples), []
    with torch.no_grad():
        alone = [objective.losses(model, objective.collate([example]))[0] for example in examples]
    embeddings = model.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda m, a, out: captured.append(out))
    losses = objective.losses(model, batch)
    handle.remove()
    assert losses.shape == (len(records),)
    close = {"rtol": 1e-8, "atol": 1e-10} if losses.dtype == torch.float64 else {
        "rtol": 1e-4, "atol": 1e-5
    }  # fmt: skip
    torch.testing.assert_close(losses, torch.stack(alone), **close)
    for i in range(len(records)):
        (g,) = torch.autograd.grad(losses[i], captured, retain_graph=True)
        others = torch.arange(len(records)) != i
        assert g[i].abs().sum() > 0
        assert g[others].abs().sum() == 0
        assert g[i][batch.tensors["attention_mask"][i] == 0].abs().sum() == 0


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
