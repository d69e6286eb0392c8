"""The recipe of the ladder, at a size that takes seconds."""

import hashlib
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertForMaskedLM, BertModel

from dpft.models import standins

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    # Found by the scripts that import it, and by dataclasses that look up their own module.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ladder():
    path = list(sys.path)
    script("pretraining")
    yield script("pretrain_ladder")
    sys.path[:] = path


@pytest.fixture(scope="module")
def texts():
    return script("public_text")


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    rng = np.random.default_rng(0)
    words = [
        "the",
        "small",
        "river",
        "town",
        "has",
        "a",
        "quiet",
        "station",
        "near",
        "two",
        "hills",
    ]
    for split, number in (("train", 120), ("heldout", 4)):
        rows = [
            {"source": "prose", "parts": [" ".join(rng.choice(words, 30)) + "."]}
            for _ in range(number)
        ]
        rows.append({"source": "e2e_sample", "parts": ["name : The Mill", " The Mill is a pub."]})
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
    digest = hashlib.sha256((folder / "train.jsonl").read_bytes()).hexdigest()
    (folder / "text.json").write_text(
        json.dumps({"grams_of_tasks": 9, "train": {"sha256": digest}})
    )
    return folder


@pytest.fixture
def recipe(ladder):
    return replace(
        ladder.RUNGS["0.8m"],
        width=16, layers=1, heads=2, vocabulary=300,
        length=32, tokens=32 * 4 * 10, batch=4, micro=2,
    )  # fmt: skip


class Killed(BaseException):
    """As abrupt as a kill gets within one process."""


def test_a_killed_run_goes_on_to_the_same_weights(ladder, recipe, text, tmp_path, monkeypatch):
    whole = ladder.pretrain("tiny", recipe, text, tmp_path / "whole", every=0)
    begun = 0
    of = ladder.blocks

    def killed(*args):
        nonlocal begun
        begun += 1
        if begun == 6:
            raise Killed
        return of(*args)

    monkeypatch.setattr(ladder, "blocks", killed)
    with pytest.raises(Killed):
        ladder.pretrain("tiny", recipe, text, tmp_path / "parts", every=0)
    # What a kill in the middle of a save leaves behind is not read.
    (tmp_path / "parts" / "tiny" / "checkpoint.tmp").write_bytes(b"half a checkpoint")
    torch.manual_seed(99)
    parts = ladder.pretrain("tiny", recipe, text, tmp_path / "parts", every=0)
    assert begun == 6 + 5  # five of ten steps were not repeated
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, parts))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    cards = [json.loads((f / "pretraining.json").read_text()) for f in (whole, parts)]
    assert cards[0]["held_out"] == cards[1]["held_out"]
    assert cards[0]["course"] == cards[1]["course"]
    assert cards[0]["tokens_seen"] == 32 * 4 * 10


def test_a_checkpoint_of_another_text_is_refused(ladder, recipe, text, tmp_path, monkeypatch):
    def stop(model, optimizer, losses, recipe, checkpoint, **kwargs):
        short = replace(recipe, tokens=recipe.length * recipe.batch)
        whole_train(model, optimizer, losses, short, checkpoint, **kwargs)
        raise Killed

    whole_train = ladder.train
    monkeypatch.setattr(ladder, "train", stop)
    with pytest.raises(Killed):
        ladder.pretrain("tiny", recipe, text, tmp_path, every=0)
    monkeypatch.setattr(ladder, "train", whole_train)
    short = replace(recipe, tokens=recipe.length * recipe.batch)
    (text / "text.json").write_text(
        json.dumps({"grams_of_tasks": 9, "train": {"sha256": "another"}})
    )
    with pytest.raises(SystemExit, match="another recipe or text"):
        ladder.pretrain("tiny", short, text, tmp_path, every=0)


def test_every_block_is_read_once_an_epoch(ladder, recipe):
    ids = np.arange(40, dtype=np.uint16)
    small = replace(recipe, batch=5)
    read = torch.cat([ladder.blocks(ids, 4, small, step) for step in range(4)])
    assert sorted(read[:10].flatten().tolist()) == list(range(40))
    assert sorted(read[10:].flatten().tolist()) == list(range(40))
    assert read[:10].tolist() != read[10:].tolist()


def test_the_rate_of_what_thaws_starts_at_the_thaw(recipe):
    frozen = replace(recipe, tokens=recipe.length * recipe.batch * 300, frozen=1 / 3)
    assert frozen.thaw == 100
    assert frozen.rate(99, frozen.thaw) == 0
    assert 0 < frozen.rate(100, frozen.thaw) < frozen.lr
    assert max(frozen.rate(s, frozen.thaw) for s in range(300)) == pytest.approx(
        frozen.lr, rel=1e-2
    )
    assert frozen.rate(299, frozen.thaw) == pytest.approx(0.1 * frozen.lr, rel=1e-2)


@pytest.mark.parametrize("frozen", [1.0, 0.5])
def test_a_frozen_encoder_keeps_its_weights(ladder, text, tmp_path, monkeypatch, frozen):
    tokenizer = standins.build_tokenizer(standins.FAMILIES["bert"].special)
    config = standins.FAMILIES["bert"].config(len(tokenizer))
    model = BertForMaskedLM(config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    monkeypatch.setattr(ladder, "masked", lambda *args: (model, tokenizer))
    recipe = replace(
        ladder.RUNGS["minilm"], length=16, tokens=16 * 4 * 6, batch=4, micro=2, frozen=frozen
    )
    folder = ladder.pretrain("minilm", recipe, text, tmp_path, every=0)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    new = {name for name in before if name.startswith("cls.")}
    assert new <= moved
    # The pooler is no part of the model; all else moves once it is thawed.
    assert moved == (new if frozen == 1.0 else set(before))
    scores = json.loads((folder / "pretraining.json").read_text())["held_out"]
    assert scores["words"] > 0
    assert 1 < scores["perplexity"] < 10 * len(tokenizer)


def test_the_first_blocks_of_an_encoder_are_kept_as_they_are(ladder, tmp_path, monkeypatch):
    tokenizer = standins.build_tokenizer(standins.FAMILIES["bert"].special)
    config = standins.FAMILIES["bert"].config(len(tokenizer))
    config.num_hidden_layers = 3
    whole = BertModel(config)
    whole.save_pretrained(tmp_path / "whole")
    tokenizer.save_pretrained(tmp_path / "whole")
    monkeypatch.setattr(ladder, "find", lambda _: SimpleNamespace(location=tmp_path / "whole"))
    folder = ladder.cut("minilm-2", tmp_path)
    left = load_file(folder / "model.safetensors")
    expected = {k: v for k, v in whole.state_dict().items() if "encoder.layer.2." not in k}
    assert left.keys() == expected.keys()
    assert all(torch.equal(left[name], expected[name]) for name in left)
    assert BertModel.from_pretrained(folder).config.num_hidden_layers == 2
    assert json.loads((folder / "dpft.json").read_text())["flags"] == [
        {"flag": "note", "text": "the first 2 of 3 blocks of package:minilm"}
    ]
    model, _ = ladder.masked("minilm-2-masked", None, None, None)
    begun = model.bert.state_dict()
    assert all(torch.equal(begun[name], left[name]) for name in begun)
    assert model.config.num_hidden_layers == 2


def test_a_document_that_shares_eight_words_with_a_task_is_known(texts, tmp_path):
    (tmp_path / "train.csv").write_text(
        "mr,ref\nx,The Eagle is a cheap coffee shop near Burger King\n"
    )
    tasks = texts.grams_of_tasks(tmp_path)
    assert not tasks.isdisjoint(texts.grams("so the eagle is a cheap, coffee shop near"))
    assert tasks.isdisjoint(texts.grams("so the eagle is a cheap coffee shop by the river"))


def test_texts_are_cut_between_sentences(texts):
    sentence = "This is a “long” sentence of some words, and it isn’t over yet. "
    pieces = list(texts.documents([sentence * 100]))
    assert len(pieces) > 1
    assert all(len(piece) <= texts.LONGEST for piece in pieces)
    assert " ".join(pieces) == texts.clean(sentence * 100)
    assert '"long"' in pieces[0]
    assert "isn't" in pieces[0]


def test_tasks_behind_a_link_count_and_none_at_all_are_refused(texts, tmp_path):
    """Nothing would be left out, and no number of the ladder would say so."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "e2e.csv").write_text(
        "The Eagle is a cheap coffee shop near the river"
    )
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(SystemExit, match="has no texts in it"):
        texts.grams_of_tasks(folder)
    (folder / "e2e").symlink_to(tmp_path / "elsewhere")
    tasks = texts.grams_of_tasks(folder)
    assert not tasks.isdisjoint(texts.grams("the eagle is a cheap coffee shop near"))


def test_rungs_are_made_of_one_text_that_was_compared_with_the_tasks(ladder, tmp_path):
    made_of = {"grams_of_tasks": 9, "train": {"sha256": "a" * 64}}
    ladder.check_text(made_of, tmp_path)
    with pytest.raises(SystemExit, match="compared with no task's files"):
        ladder.check_text(made_of | {"grams_of_tasks": 0}, tmp_path)
    (tmp_path / "0.8m").mkdir()
    file = tmp_path / "0.8m" / "pretraining.json"
    file.write_text(json.dumps({"text": made_of}))
    ladder.check_text(made_of, tmp_path)
    file.write_text(json.dumps({"text": made_of | {"train": {"sha256": "b" * 64}}}))
    with pytest.raises(SystemExit, match=r"0.8m was made of another text \(bbbbbbbb, this one"):
        ladder.check_text(made_of, tmp_path)
