"""Stand-ins: small models of every family that load, clip and save as the real ones do."""

import pytest
import torch

from dpft.config.errors import ModelError
from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.models.save import save_model
from dpft.privacy import make_clipper

CLASSES = ("one", "two", "three")
NEEDS = {
    "causal": Needs("causal"),
    "classifier": Needs("classifier", CLASSES),
    "masked": Needs("masked"),
    "image": Needs("image", CLASSES),
    "paired": Needs("causal", source=True),
}
KINDS = {
    "gpt2": ("causal",),
    "openai-gpt": ("causal",),
    "llama": ("causal",),
    "bert": ("classifier", "masked"),
    "roberta": ("classifier", "masked"),
    "vit": ("image",),
    "wrn": ("image",),
    "t5": ("paired",),
    "bart": ("masked", "paired"),
}
PAIRS = [(family, kind) for family, kinds in KINDS.items() for kind in kinds]
WRONG = [("gpt2", "masked"), ("bert", "causal"), ("vit", "classifier"), ("t5", "image")]
TEXTS = ("name : Aromi | food : Thai", "Zoë's naïve 🙂\n\tplan: 100% “fine”", " great", "A")


def load(family, kind, seed=0, **settings):
    return load_model(Model(f"random-{family}", f"random:{family}", **settings), NEEDS[kind], seed)


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_a_backward_passes_the_clipper_s_check_and_reaches_every_parameter(family, kind):
    loaded = load(family, kind)
    clipper = make_clipper(loaded.model, "bk", threshold=1.0)
    assert {id(p) for p in clipper.parameters.values()} == {
        id(p) for p in loaded.model.parameters()
    }
    if kind == "image":
        given = {"pixel_values": torch.randn(3, 3, loaded.image.size, loaded.image.size)}
    else:
        ids = torch.randint(10, 2000, (3, 9))
        given = {"input_ids": ids} | (
            {"decoder_input_ids": ids.flip(1)} if kind == "paired" else {}
        )
    scores = loaded.model(**given).logits.log_softmax(-1)[..., 0]
    clipper.backward(-scores.view(3, -1).mean(1))
    norms = {name: float(p.grad.norm()) for name, p in clipper.parameters.items()}
    clipper.close()
    # Shifting all scores of attention by as much changes nothing: keys have no use for a bias.
    unused = [n for n, norm in norms.items() if norm == 0 and "key.bias" not in n]
    assert unused == []


@pytest.mark.parametrize(("family", "kind"), WRONG)
def test_another_kind_is_refused(family, kind):
    with pytest.raises(ModelError, match=rf"model random-{family} \(.*\) is no .*expected one"):
        load(family, kind)


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_a_saved_one_loads_as_it_was(family, kind, tmp_path):
    loaded = load(family, kind)
    save_model(loaded, tmp_path)
    again = load_model(Model("x", str(tmp_path)), NEEDS[kind], seed=5)
    old, new = loaded.model.state_dict(), again.model.state_dict()
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert again.image == loaded.image
    if kind != "image":
        for texts in (TEXTS[:1], TEXTS[:2]):
            assert dict(loaded.tokenizer(*texts)) == dict(again.tokenizer(*texts))
        for text in TEXTS:  # any can be spelled
            ids = loaded.text_tokenizer.encode(text, add_special_tokens=False)
            assert max(ids) < len(loaded.tokenizer)
            assert loaded.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        assert loaded.tokenizer.special_tokens_map == again.tokenizer.special_tokens_map


def test_the_first_gpt_is_given_an_end_token_with_the_mean_embedding():
    loaded = load("openai-gpt", "causal")
    weight = loaded.model.get_input_embeddings().weight
    assert loaded.tokenizer.eos_token == "<|endoftext|>"
    assert loaded.tokenizer.eos_token_id == len(weight) - 1 == loaded.model.config.eos_token_id
    torch.testing.assert_close(weight[-1], weight[:-1].mean(0))
    assert loaded.model.lm_head.weight is weight
    untied = load("openai-gpt", "causal", tied=False).model
    assert torch.equal(untied.lm_head.weight, untied.get_input_embeddings().weight)
    assert untied.lm_head.weight is not untied.get_input_embeddings().weight
