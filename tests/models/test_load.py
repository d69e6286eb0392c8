"""Models load from the bundle, from folders in the hub's format, or say why not."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import layer_norm
from transformers import AutoModelForSequenceClassification, GPT2LMHeadModel, pipeline

from dpft.config.errors import ModelError
from dpft.config.flags import Flag, flag, has
from dpft.config.schema import Adapt, Decode, Model
from dpft.models import hub as packaged
from dpft.models.adapt import adapt
from dpft.models.architecture import ImageInput, is_tied
from dpft.models.load import BUNDLED as FOLDER
from dpft.models.load import Files, check_dropout, load_model, stored_weights
from dpft.models.needs import Needs
from dpft.models.save import load_saved, save_model
from dpft.privacy import make_clipper
from dpft.tasks.objectives.decode import decode

CAUSAL = Needs("causal")
BUNDLED = Model("tiny", "bundled:tiny")


def test_untied_has_one_parameter_more_and_saves_both(tmp_path):
    tied = load_model(BUNDLED, CAUSAL, seed=0).model
    untied = load_model(Model("tiny", "bundled:tiny", tied=False), CAUSAL, seed=0).model
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 1
    assert not is_tied(untied)
    assert torch.equal(untied.lm_head.weight, untied.transformer.wte.weight)
    clipper = make_clipper(untied, "bk", threshold=1.0)
    assert "lm_head.weight" in clipper.parameters
    clipper.close()
    with torch.no_grad():
        untied.lm_head.weight.add_(1.0)
    untied.save_pretrained(tmp_path)
    again = GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float32)
    assert torch.equal(again.lm_head.weight, untied.lm_head.weight)
    assert torch.equal(again.transformer.wte.weight, untied.transformer.wte.weight)


def test_stored_weights_have_the_digest_of_their_file_and_drawn_ones_none():
    of_file = hashlib.sha256((FOLDER / "tiny" / "model.safetensors").read_bytes()).hexdigest()
    assert stored_weights(BUNDLED)["weights_sha256"] == of_file
    assert stored_weights(Model("tiny", "bundled:tiny", init="scratch")) == {}
    assert stored_weights(Model("gpt2", "random:gpt2")) == {}


@pytest.mark.parametrize("change", [{"eos_token": "<|im_end|>"}, {"chat_template": "{{ x }}"}])
def test_the_tokenizers_digest_tells_which_token_ends_a_text(change):
    """Rules and vocabulary may be equal, as of a base model and its chat sibling."""
    plain = load_model(BUNDLED, CAUSAL, 0)
    plain.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    digest = plain.tokenizer_digest()
    plain.tokenizer("a text that is cut", truncation=True, max_length=2)
    assert plain.tokenizer_digest() == digest  # calls leave no trace
    for name, value in change.items():
        setattr(plain.tokenizer, name, value)
    assert plain.tokenizer_digest() != digest


def test_the_digest_of_weights_in_several_files_is_of_all_of_them(tmp_path):
    model = load_model(BUNDLED, CAUSAL, seed=0).model
    model.save_pretrained(tmp_path, max_shard_size="1MB")
    files = sorted(tmp_path.glob("model-*.safetensors"))
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    lines = "".join(f"{digest}\n" for digest in digests)
    settings = Model("mine", str(tmp_path))
    found = stored_weights(settings)["weights_sha256"]
    assert len(files) > 1
    assert found == hashlib.sha256(lines.encode()).hexdigest()
    files[-1].write_bytes(files[-1].read_bytes() + b" ")
    assert stored_weights(settings)["weights_sha256"] != found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Model("gpt2", "openai-community/gpt2"), r"hub model openai-community/gpt2 .*go online"),
        (Model("x", "bundled:x"), "no bundled model 'bundled:x'"),
        (Model("x", "/nowhere/at/all"), "there is no such folder"),
        (Model("x", "bundled:.."), "no bundled model"),
        (Model("custom", "???"), r"model=custom has no model yet; type model\.path="),
    ],
)
def test_what_cannot_be_had_is_one_clear_sentence(settings, message):
    with pytest.raises(ModelError, match=message):
        load_model(settings, CAUSAL, seed=0)


DAMAGES = {
    "cut": ("model.safetensors", lambda data: data[:1000]),
    "pointer": ("model.safetensors", lambda data: b"version https://git-lfs.github.com/spec/v1"),
    "tokenizer": ("tokenizer.json", lambda data: b"{"),
    "config": ("config.json", lambda data: b"{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_clear_sentence(damage, tmp_path):
    save_model(load_model(BUNDLED, CAUSAL, seed=0), tmp_path)
    name, change = DAMAGES[damage]
    file = tmp_path / name
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ModelError, match=f"{tmp_path} (is damaged|could not be loaded)"):
        load_model(Model("x", str(tmp_path)), CAUSAL, seed=0)


def changed_config(folder, **settings):
    save_model(load_model(Model("tiny", "bundled:tiny"), CAUSAL, seed=0), folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return Model("x", str(folder))


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq"])
def test_weights_in_a_quantised_form_are_refused(tmp_path, method):
    stored = {"quant_method": method, "bits": 4, "load_in_4bit": True}
    settings = changed_config(tmp_path, quantization_config=stored)
    with pytest.raises(ModelError, match="quantised form"):
        load_model(settings, CAUSAL, seed=0)


def test_a_config_that_asks_for_the_package_of_flash_attention_gets_that_of_torch(tmp_path):
    settings = changed_config(tmp_path, _attn_implementation="flash_attention_2")
    assert load_model(settings, CAUSAL, seed=0).model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(("base", "ends"), [(0, [0, 5]), ([7, 5], [7, 5]), (None, 5)])
def test_a_saved_model_ends_texts_at_the_token_that_it_is_trained_to_end_them_at(
    base, ends, tmp_path
):
    """A model for chats may end turns by its tokenizer, and texts by its generation_config."""
    loaded = load_model(BUNDLED, CAUSAL, seed=0)
    loaded.model.generation_config.eos_token_id = base
    loaded.tokenizer.eos_token = loaded.tokenizer.convert_ids_to_tokens(5)
    save_model(loaded, tmp_path / "base")
    save_model(load_model(Model("x", str(tmp_path / "base")), CAUSAL, seed=0), tmp_path / "ours")
    stranger = GPT2LMHeadModel.from_pretrained(tmp_path / "ours")
    assert stranger.generation_config.eos_token_id == ends


# Encoders and models of images.

TWO = Needs("classifier", ("no", "yes"))
MASKED = Needs("masked")
IMAGES = Needs("image", ("cat", "dog"))


def saved(family, needs, folder, **settings):
    loaded = load_model(Model(family, f"random:{family}", **settings), needs, seed=0)
    save_model(loaded, folder)
    return loaded.model


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_new_head_follows_the_seed_and_the_encoder_does_not(family, tmp_path):
    masked = saved(family, MASKED, tmp_path)
    models = [load_model(Model("x", str(tmp_path)), TWO, seed).model for seed in (1, 1, 2)]
    body = {k: v for k, v in masked.state_dict().items() if k.startswith(f"{family}.")}
    for model in models:
        assert all(torch.equal(model.state_dict()[k], v) for k, v in body.items())
    new = [n for n, p in models[0].named_parameters() if n not in body and p.dim() > 1]
    assert len(new) == 2  # BERT's pooler and classifier, RoBERTa's classifier of two layers
    weights = [dict(model.named_parameters()) for model in models]
    for name in new:
        assert torch.equal(weights[0][name], weights[1][name])
        assert not torch.equal(weights[0][name], weights[2][name])


@pytest.mark.parametrize("needs", [TWO, MASKED], ids=["classifier", "masked"])
def test_an_encoder_without_some_of_its_weights_is_refused(needs, tmp_path):
    """Transformers would draw them and go on."""
    saved("roberta", MASKED, tmp_path)
    file = tmp_path / "model.safetensors"
    name = "roberta.encoder.layer.1.output.dense.weight"
    save_file({k: v for k, v in load_file(file).items() if k != name}, file, {"format": "pt"})
    with pytest.raises(
        ModelError, match=rf"no weights for 1 parameters of a Roberta\w+ \({name}\)"
    ):
        load_model(Model("x", str(tmp_path)), needs, seed=0)


def test_a_saved_classifier_answers_with_probabilities(tmp_path):
    """Whatever the base's problem was: by that, transformers answers with other numbers."""
    saved("roberta", TWO, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "problem_type": "regression"}))
    save_model(load_model(Model("x", str(tmp_path)), TWO, seed=0), tmp_path / "ours")
    ask = pipeline("text-classification", str(tmp_path / "ours"), top_k=None)
    (answers,) = ask(["a fine day"])
    assert {answer["label"] for answer in answers} == {"no", "yes"}
    assert sum(answer["score"] for answer in answers) == pytest.approx(1)


@pytest.mark.parametrize("family", ["roberta", "wrn"])
def test_a_head_is_kept_only_if_its_classes_are_the_same_in_the_same_order(family, tmp_path):
    """Equally many classes are not the same ones: "yes" would be read off the row of "no"."""
    kind = "image" if family == "wrn" else "classifier"
    old = saved(family, Needs(kind, ("no", "yes")), tmp_path).state_dict()
    for classes, kept in ((("no", "yes"), True), (("yes", "no"), False)):
        loaded = load_model(Model("x", str(tmp_path)), Needs(kind, classes), seed=3)
        again = load_model(Model("x", str(tmp_path)), Needs(kind, classes), seed=3)
        new = loaded.model.state_dict()
        assert all(torch.equal(new[k], v) for k, v in again.model.state_dict().items())
        changed = {k.split(".")[0] for k, v in old.items() if not torch.equal(new[k], v)}
        assert changed == (set() if kept else {"head" if family == "wrn" else "classifier"})
        assert has(loaded.flags, Flag.PRETRAINED_HEAD) is kept
        assert loaded.model.config.id2label == dict(enumerate(classes))
        assert all(p.requires_grad for p in loaded.model.parameters())


@pytest.mark.parametrize(
    ("preprocessor", "mean", "std"),
    [
        (None, (0.5,) * 3, (0.5,) * 3),
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]}, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)),
        ({"do_normalize": False, "image_mean": [0.1, 0.2, 0.3]}, (0.0,) * 3, (1.0,) * 3),
    ],
)
def test_images_are_normalised_as_the_model_says_and_so_are_those_of_the_saved(
    preprocessor, mean, std, tmp_path
):
    model = saved("vit", IMAGES, tmp_path)
    del model.config.image_mean, model.config.image_std  # as published: dpft adds these
    model.save_pretrained(tmp_path)
    if preprocessor is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    loaded = load_model(Model("x", str(tmp_path)), IMAGES, seed=0)
    assert loaded.image == ImageInput(32, mean, std, 8)
    save_model(loaded, tmp_path / "again")
    again = load_model(Model("x", str(tmp_path / "again")), IMAGES, seed=0)
    assert again.image == loaded.image
    assert load_model(BUNDLED, CAUSAL, seed=0).image is None


def test_a_saved_model_of_other_classes_is_refused(tmp_path):
    settings = Model("r", "random:bert")
    save_model(load_model(settings, TWO, 0), tmp_path)
    assert load_saved(settings, TWO, 0, tmp_path).model.config.num_labels == 2
    for classes in (("yes", "no"), ("no", "yes", "other")):
        with pytest.raises(ModelError, match="expected the same classes in the same order"):
            load_saved(settings, Needs("classifier", classes), 0, tmp_path)


# Mean pooling: an ordinary BERT whose classifier reads the mean over a text's tokens.


PLAIN = Model("random-bert", "random:bert")
POOLED = Model("random-bert", "random:bert", pooling="mean")
IDS = torch.tensor([[5, 9, 11, 7], [8, 6, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


@torch.no_grad()
def test_the_head_reads_the_mean_over_what_is_no_padding():
    plain, pooled = (load_model(s, TWO, 0).model.eval() for s in (PLAIN, POOLED))
    states = plain.bert(IDS, MASK).last_hidden_state
    kept = MASK[..., None]
    mean = (states * kept).sum(1) / kept.sum(1)
    expected = layer_norm(mean, mean.shape[1:]).tanh()
    read = pooled.bert(IDS, MASK).pooler_output
    # The token's own vector counts for a thousandth.
    torch.testing.assert_close(read, expected, atol=1e-2, rtol=0)
    assert (plain.bert(IDS, MASK).pooler_output - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "trained"), [("linear", {"classifier.weight", "classifier.bias"}), ("full", None)]
)
def test_what_pools_is_not_trained(name, trained):
    loaded = load_model(POOLED, TWO, 0)
    last = loaded.model.config.num_hidden_layers - 1
    model = adapt(loaded, Adapt(name), TWO, 0).model
    moving = {n for n, p in model.named_parameters() if p.requires_grad}
    assert not [n for n in moving if "pooler" in n or f"layer.{last}." in n]
    assert moving == trained if trained else "bert.encoder.layer.0.output.dense.weight" in moving


@torch.no_grad()
def test_what_is_saved_is_an_ordinary_model(tmp_path):
    loaded = load_model(POOLED, TWO, 0)
    save_model(loaded, tmp_path)
    ours = loaded.model.eval()(IDS, MASK).logits
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()(IDS, MASK).logits
    again = load_saved(POOLED, TWO, 0, tmp_path).model.eval()(IDS, MASK).logits
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, again)


# Weights that come with Python packages.


@pytest.mark.slow
def test_smollm2_writes_trains_and_saves(tmp_path):
    try:
        packaged.find("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    loaded = load_model(Model("smollm2-135m", "package:smollm2"), CAUSAL, 0)
    model, tokenizer = loaded.model, loaded.tokenizer
    assert loaded.flags == (flag(Flag.QUANTISED_WEIGHTS, bits=4),)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert is_tied(model)
    assert tokenizer.eos_token == "<|im_end|>"
    prompt = tuple(tokenizer.encode("The capital of France is", add_special_tokens=False))
    (answer,) = decode(model, tokenizer, [prompt], Decode(1, max_new_tokens=2), 0)
    assert answer.text == "Paris."

    assert not hasattr(model.config, "quantization_config")
    save_model(loaded, tmp_path)
    again = load_model(Model("x", str(tmp_path)), CAUSAL, 0)
    assert all(map(torch.equal, model.parameters(), again.model.parameters()))
    text = " Hello <|im_end|> wörld"
    assert again.tokenizer.encode(text) == tokenizer.encode(text)


def test_a_dropout_by_another_name_is_refused():
    model = load_model(Model("tiny", "bundled:tiny", dropout=0.25), CAUSAL, seed=0).model
    check_dropout(model, 0.25)
    model.transformer.h[0].some_dropout = 0.1
    with pytest.raises(ModelError, match=r"some_dropout=0\.1"):
        check_dropout(model, 0.25)
    check_dropout(model, None)


@pytest.mark.parametrize("name", ["random-roberta", "tiny", "random-openai-gpt"])
def test_a_model_without_weights_is_the_model_but_for_its_numbers(name, monkeypatch):
    path = name.replace("random-", "random:") if "-" in name else "bundled:tiny"
    settings = Model(name, path, tied=None if "roberta" in name else False)
    needs = TWO if "roberta" in name else CAUSAL
    whole = load_model(settings, needs, 0).model
    monkeypatch.setattr(Files, "pretrained", None)  # which reads the weights
    empty = load_model(settings, needs, 0, weights=False).model
    assert type(empty) is type(whole)
    for kind in ("named_parameters", "named_buffers"):
        expected, got = (dict(getattr(m, kind)(remove_duplicate=False)) for m in (whole, empty))
        assert expected.keys() == got.keys()
        for key, tensor in expected.items():
            assert (got[key].shape, got[key].dtype) == (tensor.shape, tensor.dtype)
            assert got[key].requires_grad == tensor.requires_grad
            assert got[key].device == tensor.device
        ties = [[id(t) for t in found.values()] for found in (expected, got)]
        equal = [[ids.index(one) for one in ids] for ids in ties]
        assert equal[0] == equal[1]
