"""What people take home: it loads without dpft, computes what the run's model does, and is all."""

import json
import math
import shutil
import stat
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

import dpft.models
from dpft.training.run import run_experiment
from dpft.training.trained import loaded_run
from tests.processes import invoke
from tests.small_runs import settings

BASE = Path(dpft.models.__file__).parent / "tiny"
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A chat model with LoRA of visible size; and another file next to its weights."""
    words = ("task=chat", "model=tiny", "task.max_length=128", "task.limit_eval=2", "adapt=lora")
    words += ("optim.lr=0.05", "decode=greedy", "decode.max_new_tokens=4")
    path = run_experiment(settings(tmp_path_factory.mktemp("export"), *words)).path
    (path / "model" / "visits.csv").write_text("name\nAnn\n")
    return path


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=IDS).logits


def test_strangers_load_the_same_model_whole_or_as_an_adapter(made, tmp_path):
    own = logits(loaded_run(made).loaded.model)
    assert invoke("export", made, "--merge", "--to", tmp_path / "whole").exit_code == 0
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert torch.equal(logits(whole), own)
    # The whole folder is uploaded: nothing of the run's own folder may be in it.
    assert {p.name for p in (tmp_path / "whole").iterdir()} == {
        "README.md", "chat_template.jinja", "config.json", "dpft.json", "generation_config.json",
        "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    done = invoke("export", made, "--to", tmp_path / "adapter", "--base", BASE)
    assert f"an adapter of {BASE}" in done.output
    # Of peft, which puts it on the base: once.
    adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(logits(adapted), own, rtol=1e-4, atol=1e-4)
    assert (logits(AutoModelForCausalLM.from_pretrained(BASE)) - own).abs().max() > 0.01
    assert str(BASE) not in (tmp_path / "adapter/README.md").read_text()
    for folder in ("whole", "adapter"):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / folder)
        turns = [{"role": "user", "content": "hello"}]
        asked = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert asked == "user: hello\nassistant:"
    # Whoever loads a run's own folder finds no adapter that would count twice.
    assert not list((made / "model").rglob("adapter*"))


def test_an_export_that_was_interrupted_starts_anew(made, tmp_path, monkeypatch):
    def full(source, target):
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    adapter = ("export", made, "--base", "ann/tiny", "--to")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        done = invoke("export", made, "--merge", "--to", tmp_path / "x")
    assert (done.exit_code, "the same command" in done.output) == (2, True)
    assert not (tmp_path / "x").exists()
    found = []
    for folder in (tmp_path / "x", tmp_path / "y"):  # also in another folder
        done = invoke(*adapter, folder)
        assert done.exit_code == 0, done.output
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found[0] == found[1]
    assert "exists; give an empty" in invoke(*adapter, tmp_path / "x").output


def test_an_answer_is_written_for_its_owner_alone(made, tmp_path):
    """Rows without answers, and with one that is not shown to the model, in their own order."""
    trained = loaded_run(made)
    rows = [trained.task.rows("test")[i].values for i in (1, 0)]
    cut = {"messages": rows[0]["messages"][:-1], "id": 7}
    file = tmp_path / "rows.jsonl"
    late = {**rows[0], "late": "not to be written over"}
    file.write_text("".join(json.dumps(row) + "\n" for row in (cut, rows[1], late)))
    done = invoke("predict", made, file)
    assert done.exit_code == 0, done.output
    out = tmp_path / "rows.predictions.jsonl"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    found = [json.loads(line) for line in out.read_text().splitlines()]
    decoded = (made / "generations" / "test.jsonl").read_text().splitlines()
    first, second = (json.loads(line)["prediction"] for line in decoded)
    assert [row["prediction"] for row in found] == [second, first, second]
    assert found[0]["id"] == 7
    for place in ([], ["--out", tmp_path / "no" / "x.jsonl"]):
        assert "expected a new .jsonl file" in invoke("predict", made, file, *place).output
    file.write_text(file.read_text().replace('"late"', '"prediction"'))  # of the last row alone
    done = invoke("predict", made, file, "--out", tmp_path / "x.jsonl")
    assert "has a column 'prediction'" in done.output


def test_each_class_has_a_probability_next_to_the_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"the film is good{n},yes\nthe film is bad{n},no\n" for n in range(12))
    Path("rows.csv").write_text("text,label\n" + rows)
    words = ("task.train_file=rows.csv", "task.test_share=0.25", "task.classes=[no,yes]")
    words += ("task=classification", "task.source=auto")
    folder = run_experiment(settings(tmp_path / "runs", *words)).path
    Path("new.csv").write_text("film,label\na fine film,yes\nnothing works in it,no\n")
    typed = ["predict", folder, "new.csv", "--out", "out.jsonl"]
    assert "Type task.text_column=NAME" in invoke(*typed).output
    done = invoke(*typed, "task.text_column=film")
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(found) == 2
    for row in found:
        assert math.isclose(row["probability_no"] + row["probability_yes"], 1)
        assert row["probability_" + row["prediction"]] >= 0.5
