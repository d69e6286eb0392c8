"""Defaults by model, method and task: what is typed wins, and what is complete stays as it is."""

import pytest

from dpft.cli.inputs import RECIPES
from dpft.config import defaults
from dpft.config.compose import compose
from dpft.config.defaults import Row, origin_in_words
from dpft.config.schema import parse
from dpft.reproduce.papers import load, names
from dpft.reproduce.tables.planned import empty_plan, words_at
from dpft.runs.identity import config_hash
from dpft.training.run import run_experiment
from tests.cli.test_recipes import first_point
from tests.processes import invoke
from tests.small_runs import WORDS

OWN = ("task=classification", "task.classes=[a,b]", "task.train_file=x.csv", "model=minilm")
OWN += ("eps=3",)


def of_papers():
    """The words of every cell that a run fills, of every table, at both scales."""
    words = set()
    for name in names():
        table = load(*name.split("/"))
        for scale in ("paper", "laptop") if table.laptop else ("paper",):
            for _, _, row, column in empty_plan(table, scale).runnable:
                words.add(words_at(table, column, row, scale))
    return sorted(words)


def test_no_table_and_no_recipe_is_changed(monkeypatch):
    recipes = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    commands = [*of_papers(), *map(first_point, recipes)]
    assert len(commands) > 100
    with_rows = [compose(words) for words in commands]
    monkeypatch.setattr(defaults, "ROWS", ())
    assert with_rows == [compose(words) for words in commands]


def test_where_nothing_is_typed_the_row_decides():
    run = parse(compose(OWN))
    assert (run.adapt.name, run.model.pooling, run.clip.threshold) == ("lora", "mean", 1)
    assert (run.optim.lr, run.optim.schedule, run.optim.epochs) == (3e-3, "linear", 10)
    assert (run.optim.batch_size, run.optim.sampling_rate) == (None, 0.2)
    assert run.raw["origin"]["values"]["optim.lr"] == 3e-3
    assert origin_in_words(run.origin) == (
        "default here: adapt=lora model.pooling=mean optim.lr=0.003 optim.sampling_rate=0.2 "
        "optim.epochs=10 optim.schedule=linear clip.threshold=1; from a pilot on 5,000 sentences"
    )


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("optim.lr=2e-3", {"lr": 2e-3, "sampling_rate": 0.2}),
        ("++optim.lr=2e-3", {"lr": 2e-3}),
        ("optim.batch_size=1024", {"batch_size": 1024, "sampling_rate": None, "lr": 3e-3}),
        ("optim.sampling_rate=0.1", {"batch_size": None, "sampling_rate": 0.1, "lr": 3e-3}),
        ("optim.rate_like=sst2", {"batch_size": 1024, "sampling_rate": None}),
        ("optim.schedule=constant", {"schedule": "constant", "lr": 3e-3}),
        ("optim=sgd", {"lr": 0.5, "schedule": "constant", "batch_size": 1024}),
    ],
)
def test_what_is_typed_wins_even_if_it_is_what_is_shipped(word, kept):
    config = compose([*OWN, word])
    assert {key: config["optim"][key] for key in kept} == kept
    assert word.lstrip("+").split("=")[0] not in config["origin"]["values"]


def test_a_typed_method_has_its_own_row_or_none():
    full = compose([*OWN, "adapt=full"])
    assert (full["adapt"]["name"], full["optim"]["lr"]) == ("full", 1e-3)
    assert full["model"]["pooling"] is None
    assert compose([*OWN, "adapt=linear"])["optim"]["lr"] == 1e-2
    assert "origin" not in compose([*OWN, "adapt=bias"])
    assert "origin" not in compose(["task=e2e", "model=gpt2", "eps=3"])
    assert "origin" not in compose([*OWN, "model.path=mine"])


def test_the_bundled_model_on_own_text_has_batches_by_the_number_of_records():
    chat = compose(["task=chat", "task.train_file=x.jsonl", "eps=3"])
    assert (chat["optim"]["batch_size"], chat["optim"]["sampling_rate"]) == (None, 0.1)
    assert chat["task"]["max_length"] == 256  # the model's positions
    typed = compose(["task=text2text", "optim.batch_size=64", "eps=3"])
    assert (typed["optim"]["batch_size"], typed["optim"]["sampling_rate"]) == (64, None)


def test_thresholds_of_other_clipping_are_their_own():
    for clip, threshold in (("ghost", 1.0), ("per_layer", 0.1), ("flat_adaptive", 0.01)):
        assert compose([*OWN, f"clip={clip}"])["clip"]["threshold"] == threshold
    assert "threshold" not in compose([*OWN, "clip=none"])["clip"]


def test_where_a_value_came_from_is_no_part_of_a_run():
    typed = ("adapt=lora", "model.pooling=mean", "optim.lr=3e-3", "optim.epochs=10")
    typed += ("optim.batch_size=null", "optim.sampling_rate=0.2", "optim.schedule=linear")
    typed = compose([*OWN, *typed, "clip.threshold=1.0"])
    assert "origin" not in typed
    assert config_hash(parse(typed).identity()) == config_hash(parse(compose(OWN)).identity())


def test_a_run_says_and_keeps_what_it_took(monkeypatch, tmp_path, capsys):
    values = {"optim.lr": 3e-3, "model.pooling": "mean"}
    row = Row(("random:bert",), "linear", ("classification",), "a test", values, usual=True)
    monkeypatch.setattr(defaults, "ROWS", (row,))
    words = (*WORDS, "task=classification", "device=cpu", f"runs_dir={tmp_path}")
    assert invoke("validate", *words).output.count("default here: adapt=linear")
    record = run_experiment(parse(compose(words))).record
    taken = {"adapt": "linear", **values}
    assert record["origin"] == {"values": taken, "source": "a test"}
    said = " ".join(capsys.readouterr().err.split())
    assert "default here: adapt=linear optim.lr=0.003 model.pooling=mean; from a test" in said
