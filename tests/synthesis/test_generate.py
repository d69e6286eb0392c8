"""Synthetic records: what is sampled, written, said and refused; and training on them."""

import hashlib
import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from dpft import runs
from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.flags import Flag, flag
from dpft.config.schema import Decode, Model, parse
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.synthesis.records import Apart, find_sources
from dpft.tasks.e2e import E2E, read_csv
from dpft.tasks.objectives.decode import decode
from dpft.tasks.own_texts import LanguageModeling, TextClassification, TextToText
from dpft.training.run import run_experiment

SMALL = [
    "task.source=sample",
    "task.limit_train=64",
    "task.limit_eval=2",
    "optim.batch_size=16",
    "optim.steps=2",
    "decode=greedy",
    "decode.max_new_tokens=5",
    "threads=1",
]
QUICK = ["decode.max_new_tokens=8"]


def train(folder, *overrides):
    return run_experiment(parse(compose([*SMALL, f"runs_dir={folder}", *overrides])))


def invoke(*arguments):
    return CliRunner().invoke(app, ["generate", *map(str, arguments)])


@pytest.fixture(scope="module")
def private(tmp_path_factory, quick_scores):
    return train(tmp_path_factory.mktemp("runs"), "name=first", "privacy.noise_seed=1").path


@pytest.fixture(scope="module")
def made(private, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "trainset.csv"
    result = invoke(private, "n=40", "sources=dev", f"out={out}", "seed=1", *QUICK)
    assert result.exit_code == 0, result.output
    return out, result.output


@pytest.fixture
def one_source(tmp_path):
    file = tmp_path / "sources.csv"
    file.write_text('mr,ref\n"name[Aromi], area[riverside]",unused\n')
    return file


def content(out):
    return json.loads(out.with_name(f"{out.name}.guarantee.json").read_text())


def test_records_are_in_the_tasks_own_form_with_sources_as_they_were(made):
    out, _ = made
    rows = read_csv(out)
    dev = {mr for mr, _ in E2E(source="sample").rows("dev")}
    assert len(rows) == content(out)["records"]["written"] <= 40
    assert {mr for mr, _ in rows} <= dev
    assert len({mr for mr, _ in rows}) > 30  # 40 of the sources, drawn without replacement
    assert len({target for _, target in rows}) > 10


def test_the_guarantee_is_the_runs(made, private):
    out, said = made
    side, record = content(out), runs.read_record(private)
    assert side["private"] is True
    assert side["privacy"] == record["privacy"]
    assert side["mechanism"] == record["mechanism"]
    assert side["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert side["run"]["name"] == "first"
    assert side["sampling"]["top_p"] == 0.9
    assert side["sampling"]["seed"] == 1
    assert "not covered by the guarantee" in side["sources"]["privacy"]
    assert flag(Flag.SAMPLE_DATA) in side["flags"]
    text = out.with_name(f"{out.name}.guarantee.md").read_text()
    for words in (
        record["privacy"]["statement"],
        "explicit seed 1",
        "sampling costs no further privacy",
        "the dev split of e2e",
    ):
        assert words in text
    assert record["privacy"]["statement"] in said
    stopped = side["records"]["stopped_before_their_end"]
    assert stopped > 30  # of 40 texts of at most eight tokens
    assert f"{stopped} of them were stopped before their end; decode.max_new_tokens=16" in said
    assert f"Of those written, {stopped} were stopped" in text
    assert "The noise came from the explicit seed" in text
    # 1/(2N) for 64 records is 0.0078125: never rounded down.
    assert ", 0.00782)-differential privacy" in record["privacy"]["statement"]
    assert "| Delta | 0.00782 |" in text
    # Side files travel: they name no folder of this machine.
    for path in out.parent.glob("*.guarantee.*"):
        assert str(out.parent) not in path.read_text()


def test_every_record_is_drawn_by_itself_and_follows_the_seed(private, one_source, tmp_path):
    def texts(seed, name):
        out = tmp_path / name
        overrides = ["n=8", f"sources={one_source}", f"seed={seed}", f"out={out}", *QUICK]
        assert invoke(private, *overrides).exit_code == 0
        return read_csv(out)

    first = texts(0, "a.csv")
    assert {mr for mr, _ in first} == {"name[Aromi], area[riverside]"}
    assert len({text for _, text in first}) > 1
    assert first == texts(0, "b.csv")
    assert first != texts(1, "c.csv")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "n is not set; type n=1000"),
        (["n=3"], "no sources given: .* are private themselves"),
        (["n=3", "sources=train"], "would copy the sources of the training records"),
        (["n=3", "sources=nowhere.csv"], "'nowhere.csv', and there is no such file"),
        (["n=9", "sources=dev", "decode.sample=false"], "only on decode.sample=true"),
    ],
)
def test_what_cannot_be_done_is_refused(private, overrides, message):
    result = invoke(private, *overrides)
    assert result.exit_code == 2
    assert result.output.startswith("dpft: ")
    assert re.search(message, result.output)
    assert not (private / "synthetic").exists()


def test_sources_of_training_records_are_an_error_from_any_file(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    E2E.dataset.write_sample(folder, 0)
    task = E2E(source="files", data_dir=str(folder))
    copy, part = tmp_path / "copy.csv", tmp_path / "part.csv"
    shutil.copy(folder / "trainset.csv", copy)
    part.write_text("".join((folder / "trainset.csv").read_text().splitlines(keepends=True)[:40]))
    for file in (folder / "trainset.csv", copy, part):
        with pytest.raises(ConfigError, match="mostly those of the training records"):
            find_sources(task, str(file), 1, seed=0)
    found = find_sources(task, str(folder / "devset.csv"), 1, seed=0)
    assert found.distinct > 1
    assert found.in_training == 0
    shutil.copy(folder / "trainset.csv", folder / "devset.csv")
    with pytest.raises(ConfigError, match="mostly those of the training records"):
        find_sources(task, "dev", 1, seed=0)


def test_records_are_not_overwritten(private, tmp_path):
    (tmp_path / "a.csv").write_text("precious")
    result = invoke(private, "n=2", "sources=dev", f"out={tmp_path / 'a.csv'}", *QUICK)
    assert result.exit_code == 2
    assert "a.csv exists" in result.output.replace("\n", "")
    assert (tmp_path / "a.csv").read_text() == "precious"


def test_records_are_never_there_without_their_guarantee(private, tmp_path, monkeypatch):
    def full(path, data, mode=0o644):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpft.runs.atomic.write_atomic", full)
    result = invoke(private, "n=2", "sources=dev", f"out={tmp_path / 'a.csv'}", *QUICK)
    assert result.exit_code == 2
    assert "cannot write" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_privacy_is_refused_or_said_to_have_none(quick_scores, one_source, tmp_path):
    plain = train(tmp_path, "clip=none", "name=plain").path
    wanted = [plain, "n=2", f"sources={one_source}", *QUICK]
    result = invoke(*wanted)
    assert result.exit_code == 2
    assert "was trained without privacy" in result.output
    result = invoke(*wanted, "--not-private")
    assert result.exit_code == 0, result.output
    assert "No privacy guarantee" in result.output
    out = plain / "synthetic/trainset.csv"
    side = content(out)
    assert (side["private"], side["privacy"]["kind"], side["mechanism"]) == (False, "none", None)
    text = out.with_name(f"{out.name}.guarantee.md").read_text()
    assert "No privacy guarantee: trained without noise" in text
    assert "Epsilon" not in text


def test_a_language_model_writes_whole_texts(tmp_path):
    overrides = ["task=language_modeling", "decode.split=dev", "name=lm", "privacy.noise_seed=1"]
    run = train(tmp_path, *overrides).path
    result = invoke(run, "n=5", "decode.max_new_tokens=8")
    assert result.exit_code == 0, result.output
    out = run / "synthetic/train.jsonl"
    side = content(out)
    assert side["sources"]["distinct"] == 0
    assert "no sources to protect" in side["sources"]["privacy"]
    task = LanguageModeling(source="sample", synthetic=str(out))
    texts = [record.target for record in task.records("train")]
    assert len(texts) == side["records"]["written"] > 0
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == texts
    result = invoke(run, "n=5", "sources=dev", f"out={tmp_path / 'b.jsonl'}")
    assert "writes texts without a source" in result.output


def test_texts_are_written_for_labels_that_are_typed(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"label": "yes", "text": "private"}\n')
    task = TextToText(train_file=str(file), source_column="label", target_column="text")
    sources = find_sources(task, "[yes, no]", 4, seed=0)
    assert (sources.distinct, sources.in_training) == (2, 0)
    task.write_records(sources.rows, ["a", "b", "c", "d"], tmp_path / "new.jsonl")
    made = TextClassification(train_file=str(tmp_path / "new.jsonl"), classes=("yes", "no"))
    assert sorted(record.label for record in made.records("train")) == [0, 0, 1, 1]
    for wrong in ("[", "[]", "[[a]]"):
        with pytest.raises(ConfigError, match="expected texts"):
            find_sources(task, wrong, 1, seed=0)
    with pytest.raises(ConfigError, match="expected texts"):
        find_sources(E2E(source="sample"), "[yes]", 1, seed=0)


def test_batches_of_equal_prompts_are_drawn_apart():
    """Synthetic texts would else repeat from batch to batch."""
    tiny = load_model(Model("tiny", "bundled:tiny"), Needs("causal"), seed=0)
    same = [Apart((1, 2, 3)) for _ in range(4)]
    settings = Decode(beams=1, sample=True, max_new_tokens=12, batch_size=2)
    texts = decode(tiny.model, tiny.tokenizer, same, settings, 0)
    assert texts[:2] != texts[2:]
