"""A saved model computes what was trained: in dpft, and in plain transformers."""

import json

import pytest
import torch
from peft import PeftModel, PeftModelForSeq2SeqLM
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BartTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

from dpft.config.errors import ConfigError, ModelError, SettingError
from dpft.config.schema import Adapt, Model
from dpft.models.adapt import adapt
from dpft.models.load import LoadedModel, check_room, load_model
from dpft.models.needs import Needs
from dpft.models.save import load_saved, save_model
from dpft.tasks.objectives.generation import collate, token_nll
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.objectives.tokens import around
from dpft.tasks.own_texts import LanguageModeling, TextToText
from tests.models.adapted import EXAMPLES
from tests.privacy import pairs
from tests.privacy.architectures import shake

CAUSAL = Needs("causal")
SETTINGS = {
    "full": Adapt("full"),
    "top2": Adapt("top2", blocks=1),
    "lora": Adapt("lora", rank=4, alpha=8),
    "lora on the head": Adapt("lora", rank=2, alpha=4, targets=("lm_head",)),
    "prefix": Adapt("prefix", length=4, hidden=16),
    "rgp": Adapt("rgp", rank=2, follow="update"),
}


@torch.no_grad()
def losses(model):
    return token_nll(model.eval(), collate(EXAMPLES)).sum(1)


def moved(name, model):
    """The tiny model, its trained parameters moved from where they began."""
    loaded = adapt(load_model(model, CAUSAL, 0), SETTINGS[name], CAUSAL, 0)
    shake(loaded.model, 0.05)
    if loaded.reparametrisation is not None:
        with torch.no_grad():
            for p in loaded.reparametrisation.moved().values():
                p.add_(0.05 * torch.randn_like(p))
    return loaded


@pytest.mark.parametrize("name", SETTINGS)
def test_what_was_trained_is_loaded_by_dpft_transformers_and_peft(name, tmp_path):
    base = Model("tiny", "bundled:tiny", tied=None if name != "lora on the head" else False)
    loaded = moved(name, base)
    before = losses(loaded.model)
    began = load_model(base, CAUSAL, 0).model
    assert not torch.allclose(before, losses(began), rtol=1e-3)
    save_model(loaded, tmp_path, tmp_path / "adapter")
    assert torch.equal(losses(loaded.model), before)  # saving left it as it was
    again = load_saved(base, CAUSAL, 0, tmp_path)
    torch.testing.assert_close(losses(again.model), before, rtol=1e-4, atol=1e-4)
    assert len(again.tokenizer) == len(loaded.tokenizer)
    if name != "prefix":  # others load an ordinary model
        plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        assert set(plain.state_dict()) == set(began.state_dict())
        torch.testing.assert_close(losses(plain), before, rtol=1e-4, atol=1e-4)
    if name in ("prefix", "lora"):
        config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == "bundled:tiny"
        theirs = PeftModel.from_pretrained(began, tmp_path / "adapter")
        torch.testing.assert_close(losses(theirs), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["lora", "rgp"])
def test_a_new_classification_head_is_saved_with_the_rest(name, tmp_path):
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=23, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=20, max_position_embeddings=16, type_vocab_size=1, num_labels=2,
    )  # fmt: skip
    needs = Needs("classifier", ("no", "yes"))
    loaded = LoadedModel(RobertaForSequenceClassification(config), None, ())
    loaded = adapt(loaded, SETTINGS[name], needs, 0)
    shake(loaded.model, 0.3)
    save_model(loaded, tmp_path)
    stranger = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        ours = loaded.model.eval()(input_ids=ids).logits
        torch.testing.assert_close(stranger.eval()(input_ids=ids).logits, ours)


# Encoder-decoder models load from files in the form of the published ones, and save for others.


TEXT = Needs("causal", source=True)
RECORDS = [TextRecord(("a b",), "b a a"), TextRecord(("b b a a b",), "a")]
LETTERS = ("a", "b", "▁a", "▁b", "▁")


def t5(folder, **settings):
    """Write a T5 as published: unused settings, PyTorch's own format, a unigram tokenizer."""
    torch.manual_seed(0)
    sizes = {**pairs.T5, "vocab_size": 16, "decoder_start_token_id": 0, **settings}
    model = T5ForConditionalGeneration(T5Config(**sizes))
    if settings:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    weights = {**model.state_dict(), "decoder.block.0.layer.1.EncDecAttention."
               "relative_attention_bias.weight": torch.zeros(32, 2)}  # fmt: skip
    torch.save(weights, folder / "pytorch_model.bin")
    config = {
        **{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "n_positions": 512},
        **sizes,
        **{"eos_token_id": 1, "pad_token_id": 0, "is_encoder_decoder": True},
        **{"dropout_rate": 0.1, "output_past": True},
        "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
    }
    (folder / "config.json").write_text(json.dumps(config))
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    T5Tokenizer(vocab=[*special, *((x, -1.0) for x in LETTERS)], extra_ids=2).save_pretrained(
        folder
    )
    return model


def bart(folder):
    torch.manual_seed(0)
    config = BartConfig(**pairs.BART, vocab_size=16, forced_bos_token_id=0)
    model = BartForConditionalGeneration(config)
    model.final_logits_bias.copy_(torch.randn(1, 16))
    model.save_pretrained(folder)
    pieces = ("<s>", "<pad>", "</s>", "<unk>", "a", "b", "Ġa", "Ġb", "Ġ", "<mask>")
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    BartTokenizer(vocab=vocabulary, merges=[("Ġ", "a"), ("Ġ", "b")]).save_pretrained(folder)
    return model


def losses_of(loaded, **settings):
    objective = TextToText(max_length=16, **settings).objective(loaded)
    loaded.model.eval()
    return objective.losses(loaded.model, objective.collate(objective.encode_all(RECORDS)))


def plainly(model, tokenizer, record):
    """The loss as transformers computes it of one record without padding."""
    given = tokenizer(record.source, text_target=record.target, return_tensors="pt")
    return model.eval()(**given).loss


@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": False}], ids=["t5", "flan"])
def test_a_published_t5(tmp_path, settings):
    model = t5(tmp_path, **settings)
    loaded = load_model(Model("t5-small", str(tmp_path)), TEXT, seed=0)
    assert loaded.flags == ()
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert (loaded.model.lm_head.weight is loaded.model.shared.weight) == (not settings)
    assert around(loaded.tokenizer, target=False) == around(loaded.tokenizer, True) == ([], [1])
    expected = [plainly(model, loaded.tokenizer, record) for record in RECORDS]
    torch.testing.assert_close(losses_of(loaded), torch.stack(expected))
    assert loaded.model.decoder.dropout.p == 0.1
    save_model(loaded, tmp_path / "again")
    # Earlier versions of transformers scale what the head is given by this.
    stored = json.loads((tmp_path / "again" / "config.json").read_text())
    assert stored["tie_word_embeddings"] == (not settings)
    again = load_model(Model("x", str(tmp_path / "again")), TEXT, seed=0)
    torch.testing.assert_close(losses_of(again), torch.stack(expected))
    without = load_model(Model("t5-small", str(tmp_path), dropout=0.0), TEXT, seed=0).model
    assert without.decoder.dropout.p == 0


def test_a_published_bart_writes_what_it_is_trained_on(tmp_path):
    model = bart(tmp_path)
    loaded = load_model(Model("bart-base", str(tmp_path)), TEXT, seed=0)
    assert around(loaded.tokenizer, target=True) == ([0], [2])
    expected = [plainly(model, loaded.tokenizer, record) for record in RECORDS]
    torch.testing.assert_close(losses_of(loaded), torch.stack(expected))
    mean, total = (losses_of(loaded, loss=loss) for loss in ("mean", "sum"))
    torch.testing.assert_close(total, mean * torch.tensor([5.0, 3.0]))  # <s> and </s> are written


@pytest.mark.parametrize("make", [t5, bart])
def test_what_is_saved_loads_in_plain_transformers(tmp_path, make):
    given, saved, lora = (tmp_path / name for name in ("given", "saved", "lora"))
    for folder in (given, saved, lora):
        folder.mkdir()
    make(given)
    loaded = load_model(Model("x", str(given)), TEXT, seed=0)
    expected = losses_of(loaded)
    save_model(loaded, saved)
    plain, tokenizer = (
        cls.from_pretrained(saved) for cls in (AutoModelForSeq2SeqLM, AutoTokenizer)
    )
    found = torch.stack([plainly(plain, tokenizer, record) for record in RECORDS])
    torch.testing.assert_close(found, expected)
    adapted = adapt(loaded, Adapt("lora", rank=2, alpha=4), TEXT, 0)
    shake(adapted.model, 0.5)
    expected = losses_of(adapted)
    save_model(adapted, lora, lora / "adapter")
    merged = AutoModelForSeq2SeqLM.from_pretrained(lora)
    base = AutoModelForSeq2SeqLM.from_pretrained(given)
    adapter = PeftModel.from_pretrained(base, str(lora / "adapter"))
    assert isinstance(adapter, PeftModelForSeq2SeqLM)
    for one in (merged, adapter):
        found = torch.stack([plainly(one, tokenizer, record) for record in RECORDS])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    bart(tmp_path)
    loaded = load_model(Model("x", str(tmp_path)), TEXT, seed=0)
    with pytest.raises(ModelError, match="share one table"):
        load_model(Model("x", str(tmp_path), tied=False), TEXT, seed=0)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"positions for 16 tokens; type task.max_length=16"):
        check_room(Model("x", str(tmp_path)), TEXT, 17)
    with pytest.raises(SettingError, match=r"adapt.length is 15; expected at most 14"):
        check_room(Model("x", str(tmp_path)), TEXT, None, prefix=15)
    with pytest.raises(ModelError, match=r"has no encoder; .*type adapt=lora"):
        adapt(loaded, Adapt("prefix", length=2), TEXT, 0)
    with pytest.raises(ModelError, match=r"is no causal language model, .* such as model=gpt2"):
        load_model(Model("x", str(tmp_path)), LanguageModeling(source="sample").needs, 0)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": None}))
    with pytest.raises(ModelError, match="no decoder_start_token_id"):
        load_model(Model("x", str(tmp_path)), TEXT, seed=0)
