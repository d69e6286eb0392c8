"""Weights that are not read: the others are those of the whole model, and these take no memory."""

import pytest
import safetensors
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dpft.config.schema import Model
from dpft.models import load, partial
from dpft.models.families import STANDINS, build_tokenizer
from dpft.models.load import load_model
from dpft.models.needs import Needs

SIZES = {"vocab_size": 6000, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2,
}  # fmt: skip


def gpt2():
    return GPT2LMHeadModel(GPT2Config(**SIZES, n_embd=8, n_layer=3, n_head=2))


def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES, **LLAMA, tie_word_embeddings=False))


# How the model is saved, and what `model.tied` says of it.
SAVED = {
    "gpt2": (gpt2, {}, False),
    "gpt2, tied": (gpt2, {}, None),
    "gpt2, without its head": (lambda: gpt2().transformer, {}, False),
    "llama in half": (lambda: llama().half(), {}, None),
    "llama in files": (llama, {"max_shard_size": "100KB"}, None),
}


class Counted:
    """A file that counts the numbers which are read of it."""

    read = 0

    def __init__(self, *arguments, **named):
        self._file = safetensors.safe_open(*arguments, **named)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        self._file.__exit__(*error)

    def keys(self):
        return self._file.keys()

    def get_slice(self, name):
        return Sliced(self._file.get_slice(name))


class Sliced:
    def __init__(self, stored):
        self._stored = stored
        self.get_shape = stored.get_shape

    def __getitem__(self, place):
        found = self._stored[place]
        Counted.read += found.numel()
        return found


@pytest.mark.parametrize("case", SAVED)
@pytest.mark.parametrize("stage", ["first", "last"])
def test_a_part_of_the_files_is_read(case, stage, tmp_path, monkeypatch):
    make, how, tied = SAVED[case]
    torch.manual_seed(0)
    made = make()
    made.save_pretrained(tmp_path, **how)
    if "without" in case:  # as the published files of GPT-2: no word says that a head is missing
        gpt2().config.save_pretrained(tmp_path)
    build_tokenizer(**STANDINS["gpt2"]["special"]).save_pretrained(tmp_path)
    settings = Model("saved", str(tmp_path), tied=tied)
    whole = load_model(settings, Needs("causal"), 0).model
    named = dict(whole.named_parameters(remove_duplicate=False))
    firsts = [name for name in named if any(word in name for word in ("wte", "embed", ".0."))]
    held = set(firsts) if stage == "first" else named.keys() - set(firsts)
    if tied is None and "gpt2" in case:  # a table of two names
        held |= {"transformer.wte.weight", "lm_head.weight"}
    monkeypatch.setattr(partial, "safe_open", Counted)
    Counted.read = 0
    absent = frozenset(named.keys() - held)
    part = load_model(settings, Needs("causal"), 0, absent=absent).model
    expected = {id(named[name]): named[name].numel() for name in held}
    assert Counted.read == sum(expected.values())
    for name, parameter in part.named_parameters(remove_duplicate=False):
        assert parameter.shape == named[name].shape
        assert parameter.dtype == torch.float32
        if name in held:
            assert torch.equal(parameter, named[name])
        else:
            assert parameter.untyped_storage().nbytes() == 4 or name in lent(case, stage)
    for name, buffer in part.named_buffers():
        assert torch.equal(buffer, dict(whole.named_buffers())[name])


def lent(case, stage):
    """Names that share the memory of another one, as head and embedding of one stored table."""
    if not case.startswith("gpt2"):
        return ()
    return ("lm_head.weight",) if stage == "first" else ("transformer.wte.weight",)


@pytest.mark.parametrize("name", ["random-roberta", "tiny", "random-openai-gpt"])
def test_a_model_without_weights_is_the_model_but_for_its_numbers(name, monkeypatch):
    path = name.replace("random-", "random:") if "-" in name else "bundled:tiny"
    settings = Model(name, path, tied=None if "roberta" in name else False)
    needs = Needs("classifier", ("no", "yes")) if "roberta" in name else Needs("causal")
    whole = load_model(settings, needs, 0).model
    monkeypatch.setattr(load.Files, "pretrained", None)  # which reads the weights
    empty = load_model(settings, needs, 0, weights=False).model
    assert type(empty) is type(whole)
    for kind in ("named_parameters", "named_buffers"):
        expected, got = (dict(getattr(m, kind)(remove_duplicate=False)) for m in (whole, empty))
        assert expected.keys() == got.keys()
        for key, tensor in expected.items():
            assert (got[key].shape, got[key].dtype) == (tensor.shape, tensor.dtype)
            assert (got[key].requires_grad, got[key].device) == (
                tensor.requires_grad,
                tensor.device,
            )
        ties = [[id(t) for t in found.values()] for found in (expected, got)]
        equal = [[ids.index(one) for one in ids] for ids in ties]
        assert equal[0] == equal[1]
