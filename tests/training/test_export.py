"""What people take home: it loads without dpft, computes what the run's model does, and is all."""

import csv
import dataclasses
import json
import math
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id
from peft import AutoPeftModelForCausalLM
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import dpft.models
from dpft import runs
from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DataError
from dpft.config.schema import Adapt, parse
from dpft.models.hub import hub_name
from dpft.privacy import Guarantee
from dpft.report.hub import licence_of
from dpft.tasks import load_task
from dpft.tasks.objectives.image import ImageClassifier
from dpft.tasks.objectives.images import LabelledImage
from dpft.tasks.own_texts import LanguageModeling, TextClassification, TextToText
from dpft.tasks.table_files import read_table
from dpft.training import export as exporting
from dpft.training.export import asked, plan_export, preprocessor
from dpft.training.run import run_experiment
from dpft.training.trained import loaded_run
from tests.small_runs import settings

BASE = Path(dpft.models.__file__).parent / "tiny"
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])
LIKED = {"good": "yes", "bad": "no"}
OWN_ROWS = ("task.train_file=rows.csv", "task.test_share=0.25", "task.classes=[no,yes]")
TURNS = [{"role": "user", "content": "hello"}]


def invoke(*arguments, **options):
    return CliRunner().invoke(app, list(map(str, arguments)), **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A chat model with LoRA of visible size; and somebody's own file beside its weights."""
    words = [
        "task=chat", "task.source=sample", "task.limit_train=16", "task.limit_eval=2",
        "task.max_length=128",
        "adapt=lora", "optim.lr=0.05", "optim.batch_size=8", "optim.steps=2", "threads=1",
        "decode=greedy", "decode.max_new_tokens=4", "privacy.noise_multiplier=1", "name=run",
        f"runs_dir={tmp_path_factory.mktemp('export')}",
    ]  # fmt: skip
    path = run_experiment(parse(compose(words))).path
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
    done = invoke("export", made, "--to", tmp_path / "beside", "--base", BASE)
    assert f"an adapter of {BASE}" in done.output
    # Of peft, which puts it on the base: once.
    beside = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "beside")
    torch.testing.assert_close(logits(beside), own, rtol=1e-4, atol=1e-4)
    assert (logits(AutoModelForCausalLM.from_pretrained(BASE)) - own).abs().max() > 0.01
    assert str(BASE) not in (tmp_path / "beside/README.md").read_text()
    for folder in ("whole", "beside"):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / folder)
        asked = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
        assert asked == "user: hello\nassistant:"
    # Whoever loads a run's own folder finds no adapter that would count twice.
    assert not list((made / "model").rglob("adapter*"))


def test_export_prints_the_guarantee_with_its_caveats(made, tmp_path):
    given = Guarantee.of_record(runs.read_record(made))
    said = " ".join(invoke("export", made, "--merge", "--to", tmp_path / "x").output.split())
    assert given.notes
    for text in (given.statement, *given.notes):
        assert " ".join(text.split()) in said


def test_weights_have_the_mode_of_the_files_next_to_them(made):
    """safetensors makes its files for their owner alone, whatever the umask."""
    for folder in ("model", "adapter"):
        files = [file for file in (made / folder).iterdir() if file.is_file()]
        assert any(file.suffix == ".safetensors" for file in files)
        assert len({stat.S_IMODE(file.stat().st_mode) for file in files}) == 1


def test_the_cards_say_what_a_hub_reads(made, tmp_path):
    for name, words in {"whole": ["--merge"], "beside": ["--base", "ann/tiny"]}.items():
        given = "apache-2.0" if name == "whole" else "mit"
        invoke("export", made, "--to", tmp_path / name, "--license", given, *words)
        card = ModelCard.load(tmp_path / name / "README.md")
        head = card.data.to_dict()
        assert head["license"] == given
        assert head["pipeline_tag"] == "text-generation"
        assert {"dpft", "differential-privacy"} <= set(head["tags"])
        assert "differential privacy by" in card.text
        # Of a bundled model there is none on the hub.
        assert head.get("base_model") == (None if name == "whole" else "ann/tiny")
        assert head["library_name"] == ("transformers" if name == "whole" else "peft")
    assert "AutoPeftModelForCausalLM" in card.text


@pytest.mark.parametrize(
    ("path", "name", "licence"),
    [
        ("package:smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"),
        ("package:minilm", "sentence-transformers/all-MiniLM-L6-v2", "apache-2.0"),
        ("openai-community/gpt2", "openai-community/gpt2", "mit"),
        ("bundled:tiny", None, None),
        ("random:llama", None, None),
        ("/home/ann/gpt2", None, None),
        (str(BASE), None, None),
    ],
)
def test_a_base_is_named_as_the_hub_does_or_not_at_all(path, name, licence):
    assert hub_name(path) == name
    assert licence_of(name) == licence
    if name:
        validate_repo_id(name)


def _asked(folder, **text):
    """What the Python of an exported card makes of a text: its inputs, and the model."""
    code = (folder / "README.md").read_text().split("```")[1].removeprefix("python\n")
    exec(code.replace("FOLDER", str(folder)), text)
    return text["inputs"], text["model"], text["tokenizer"]


def test_the_card_asks_a_model_as_the_training_did(tmp_path, monkeypatch):
    """Who has the folder alone does not know what stood behind a source."""
    monkeypatch.chdir(tmp_path)
    rows = [f"cafe {n},serves {'tea' if n % 2 else 'soup'} {n}" for n in range(24)]
    Path("rows.csv").write_text("\n".join(["source,target", *rows]) + "\n")
    words = [
        "task=text2text", "task.source=auto", "task.train_file=rows.csv", "task.test_share=0.25",
        "task.before=Say:", "task.after=' Answer:'", "model=tiny", "optim.lr=0.01",
        "decode=greedy", "decode.max_new_tokens=5",
    ]  # fmt: skip
    run = run_experiment(settings(tmp_path / "runs", *words)).path
    said = " ".join(invoke("export", run, "--to", "home").output.split())
    assert "tokenizer('Say:' + source + '<|endoftext|> Answer:', return_tensors='pt')" in said
    Path("new.csv").write_text("source\ncafe 7\n")
    invoke("predict", run, "new.csv", "--out", "out.jsonl")
    inputs, model, tokenizer = _asked(Path("home"), source="cafe 7")
    written = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    text = tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text.strip() == json.loads(Path("out.jsonl").read_text())["prediction"]
    assert text.strip()


def test_the_card_cuts_what_a_classifier_reads_where_the_training_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"the film is {word}{n},{LIKED[word]}" for n in range(12) for word in LIKED]
    Path("rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    words = ("task=classification", "task.source=auto", *OWN_ROWS, "task.max_length=8")
    run = run_experiment(settings(tmp_path / "runs", *words)).path
    invoke("export", run, "--to", "home")
    text = "a fine film " + "and nothing works in it " * 9
    Path("new.csv").write_text(f"text\n{text}\n")
    invoke("predict", run, "new.csv", "--probabilities", "--out", "out.jsonl")
    inputs, model, _ = _asked(Path("home"), text=text)
    assert inputs["input_ids"].shape == (1, 8)
    told = json.loads(Path("out.jsonl").read_text())
    (likely,) = model(**inputs).logits.softmax(1).tolist()
    for place, name in model.config.id2label.items():
        assert math.isclose(likely[place], told[f"probability_{name}"], rel_tol=1e-5)


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["task=sst2"], "text"),
        (["task=qnli"], "text, pair"),
        (["task=classification", "task.classes=[a,b]"], "text"),
        (["task=classification", "task.classes=[a,b]", "task.pair_column=b"], "text, pair"),
    ],
)
def test_the_card_asks_a_classifier_of_two_texts_of_both(words, texts):
    run = parse(compose([*words, "task.max_length=9"]))
    record = {"model": {"pipeline": "text-classification"}}
    told = asked(SimpleNamespace(task=load_task(run.task), record=record, run=run))
    assert told == f"tokenizer({texts}, truncation=True, max_length=9, return_tensors='pt')"


def test_only_what_the_run_wrote_leaves_and_no_link(made, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for part in made.iterdir():  # links to folders, so that nothing is copied
        (run / part.name).symlink_to(part)
    with pytest.raises(runs.RunError, match="is a link, or in a folder that is one"):
        plan_export(loaded_run(run), merge=True)
    (run / "DONE").unlink()
    with pytest.raises(runs.RunError, match=r"is not finished.*dpft train resume="):
        plan_export(loaded_run(run), merge=True)


def test_what_cannot_be_taken_home_is_refused_by_name(made, tmp_path):
    trained = loaded_run(made)
    with pytest.raises(ConfigError, match=r"bundled:tiny, is on no hub; type --merge"):
        plan_export(trained, merge=False)
    adapt = Adapt("prefix", length=2, hidden=4)
    behind = dataclasses.replace(trained, run=dataclasses.replace(trained.run, adapt=adapt))
    with pytest.raises(ConfigError, match="adapt=prefix with --merge"):
        plan_export(behind, merge=True)
    (tmp_path / "mine.txt").write_text("mine")
    done = invoke("export", made, "--merge", "--to", tmp_path)
    assert "give an empty or a new folder" in done.output
    assert done.exit_code == 2


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_export_that_was_broken_off_is_begun_anew(made, tmp_path, monkeypatch, stop):
    def full(source, target):
        Path(target).write_bytes(b"half")
        raise stop

    adapter = ("export", made, "--base", "ann/tiny", "--to", tmp_path / "x")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        done = invoke("export", made, "--merge", "--to", tmp_path / "x")
    assert done.exit_code in (2, 130)
    assert "the same command" in done.output
    assert any((tmp_path / "x").iterdir())
    for folder in (tmp_path / "x", tmp_path / "y"):  # another one than was begun leaves no rest
        done = invoke(*adapter[:-1], folder)
        assert done.exit_code == 0, done.output
    left, right = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in "xy")
    assert left == right
    assert "exists; give an empty" in invoke(*adapter).output


def test_further_chat_templates_are_exported_and_not_left_of_another_run(
    made, tmp_path, monkeypatch
):
    template = "additional_chat_templates/tool_use.jinja"
    run = tmp_path / "run"
    shutil.copytree(made, run)
    (run / "model" / template).parent.mkdir()
    (run / "model" / template).write_text("{{ messages }}")
    plain = exporting.plan_export(loaded_run(run), merge=True)
    listed = [*exporting._listed(run), f"model/{template}"]
    monkeypatch.setattr(exporting, "_listed", lambda path: listed)
    plan = exporting.plan_export(loaded_run(run), merge=True)
    assert plan.sizes().keys() == {*plain.sizes(), template}
    folder = tmp_path / "out"
    exporting.export(plan, folder)
    assert (folder / template).read_text() == "{{ messages }}"
    (folder / exporting._UNFINISHED).touch()  # it was broken off
    exporting.export(plain, folder)
    assert not (folder / template).exists()


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
    assert "exists; give another" in invoke("predict", made, file).output
    nowhere = invoke("predict", made, file, "--out", tmp_path / "no" / "x.csv").output
    assert "is no folder; expected" in " ".join(nowhere.split())
    scored = " ".join(
        invoke("score", file.with_name(f"{file.stem}.predictions.jsonl")).output.split()
    )
    assert "type task=NAME predictions=" in scored
    for column in ("id", "late"):  # of the first row, and of another one
        done = invoke("predict", made, file, "--out", tmp_path / "x.csv", "--column", column)
        assert f"has a column '{column}'" in done.output


def test_rows_in_csv_are_read_back_as_they_were(made, tmp_path):
    """A line end of any kind, which a text of another system may hold, breaks no row."""
    texts = ["a\rb", "c\n", "d\r\ne", 'f,"g"', "\r", ""]
    messages = loaded_run(made).task.rows("test")[0].values["messages"]
    rows = [{"note": text, "messages": messages} for text in texts]
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.csv"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = invoke("predict", made, file, "--out", out)
    assert done.exit_code == 0, done.output
    assert [row.values["note"] for row in read_table(out)] == texts


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_what_could_not_be_written_back_is_said_before_it_is_answered(made, tmp_path, suffix):
    """Half of an emoji in a column that the task does not read."""
    messages = loaded_run(made).task.rows("test")[0].values["messages"]
    rows = [{"messages": messages, "note": note} for note in ("fine", "cut \ud83d")]
    file, out = tmp_path / "rows.jsonl", tmp_path / f"out.{suffix}"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = invoke("predict", made, file, "--out", out)
    assert done.exit_code == 2
    assert "record 2: got '\\ud83d" in " ".join(done.output.split())
    assert not out.exists()


def test_a_text_is_measured_whatever_its_length(tmp_path):
    """The model has 256 positions; what does not fit is reported."""
    words = ["task=language_modeling", "task.max_length=32", "model=tiny"]
    folder = run_experiment(settings(tmp_path, *words)).path
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("word " * 99, "word")))
    done = invoke("predict", folder, file)
    assert done.exit_code == 0, done.output
    assert "1 of 2 texts were longer than" in " ".join(done.output.split())
    written = (tmp_path / "texts.predictions.jsonl").read_text()
    found = [json.loads(one) for one in written.splitlines()]
    assert [row["tokens"] > 30 for row in found] == [True, False]
    file.write_text(json.dumps({"text": "word", "tokens": "mine", "prediction": "mine"}) + "\n")
    done = invoke("predict", folder, file, "--out", tmp_path / "out.jsonl")
    assert "has a column 'tokens', where answers are written; rename it" in done.output
    file.write_text(json.dumps({"text": "word", "prediction": "mine"}) + "\n")
    done = invoke("predict", folder, file, "--out", tmp_path / "out.jsonl")
    assert done.exit_code == 0, done.output


def test_what_is_advised_for_rows_with_other_columns_works(made, tmp_path):
    row, file = loaded_run(made).task.rows("test")[0].values, tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"talk": row["messages"]}) + "\n")
    said = " ".join(invoke("predict", made, file).output.split())
    assert "found 'talk'. Rename the one that is meant to 'messages', its name in the" in said
    file.write_text(json.dumps({"messages": row["messages"]}) + "\n")
    done = invoke("predict", made, file, "--out", tmp_path / "x.csv")
    assert done.exit_code == 0, done.output
    # What a CSV file cannot hold as it is stands there as JSON.
    (written,) = csv.DictReader((tmp_path / "x.csv").read_text().splitlines())
    assert json.loads(written["messages"]) == row["messages"]


@pytest.mark.parametrize(
    ("words", "header"),
    [
        (("task=classification", "task.source=auto", *OWN_ROWS), "text,label"),
        (("task=sst2", "model=random-roberta", "task.mode=infill"), "sentence\tlabel"),
    ],
)
def test_probabilities_of_all_classes_stand_beside_the_answer(tmp_path, monkeypatch, words, header):
    monkeypatch.chdir(tmp_path)
    rows = [f"the film is {word}{n},{LIKED[word]}" for n in range(12) for word in LIKED]
    Path("rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    folder = run_experiment(settings(tmp_path / "runs", *words)).path
    comma, good, bad = ("\t", 1, 0) if "\t" in header else (",", "yes", "no")
    file = tmp_path / ("new.csv" if comma == "," else "new.tsv")
    file.write_text(f"{header}\na fine film{comma}{good}\nnothing works in it{comma}{bad}\n")
    done = invoke("predict", folder, file, "--probabilities", "--out", "out.csv")
    assert done.exit_code == 0, done.output
    first, *others = found = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    names = [name for name in first if name.startswith("probability_")]
    assert len(names) == 2
    assert len(others) == 1
    for row in found:
        likely = {name: float(row[name]) for name in names}
        assert math.isclose(sum(likely.values()), 1)
        assert f"probability_{row['prediction']}" == max(likely, key=likely.get)
    if comma == ",":  # the rows come back with all their columns
        again = ("--probabilities", "--column", "x", "--out", "two.csv")
        done = invoke("predict", folder, "out.csv", *again)
        assert "out.csv has a column 'probability_" in done.output


def test_texts_have_no_probabilities_of_classes(made, tmp_path):
    done = invoke("predict", made, tmp_path / "any.jsonl", "--probabilities")
    assert done.exit_code == 2
    assert "run is a run of task=chat, whose answers are texts" in " ".join(done.output.split())


def test_rows_are_questions_without_their_answers(tmp_path):
    csv = tmp_path / "rows.csv"
    csv.write_text("text,id\ngood,1\nbad,2\n")
    found = TextClassification(classes=("no", "yes")).questions(csv)
    assert [q.instance.record.texts for q in found] == [("good",), ("bad",)]
    assert [dict(q.cells) for q in found] == [
        {"text": t, "id": i} for t, i in (("good", "1"), ("bad", "2"))
    ]
    assert [q.instance.references for q in found] == [(), ()]
    (found, *_) = TextToText(source_column="text").questions(csv)
    assert (found.instance.record.segments, found.instance.record.target) == (("good",), "")
    (found, *_) = LanguageModeling().questions(csv)
    assert found.instance.references == ("good",)
    for name in ("b.png", "a.png"):
        Image.new("RGB", (2, 2), "red").save(tmp_path / name)
    found = load_task(compose(["task=cifar10"])["task"]).questions(tmp_path)
    assert [q.cells["file"] for q in found] == ["a.png", "b.png"]
    assert found[0].instance.record.pixels(4).shape == (4, 4, 3)
    with pytest.raises(DataError, match="no folder with any"):
        load_task(compose(["task=cifar10"])["task"]).questions(csv)


def test_strangers_give_a_model_of_images_the_pixels_it_was_trained_on(tmp_path):
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    config = {"model_type": "vit", "image_size": 8, "image_mean": mean, "image_std": std}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(preprocessor(config, None))
    pixels = torch.randint(0, 256, (11, 9, 3), dtype=torch.uint8).numpy()
    theirs = AutoImageProcessor.from_pretrained(tmp_path)
    found = theirs(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    ours = ImageClassifier(8, mean, std, 4, ("a", "b"))
    expected = ours.collate([ours.encode(LabelledImage(pixels, 0, ""))]).tensors["pixels"]
    torch.testing.assert_close(found, expected)
