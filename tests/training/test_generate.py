"""Synthetic records: what is sampled, written, said and refused; and training on them."""

import csv
import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from dpft import runs
from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.decode import Decode
from dpft.config.errors import ConfigError, DataError
from dpft.config.flags import Flag, flag
from dpft.config.schema import parse
from dpft.privacy.accounting.selection import Trials
from dpft.sweep.release import release
from dpft.sweep.selection import Selection
from dpft.tasks.chat import Chat
from dpft.tasks.e2e import E2E, read_csv
from dpft.tasks.objectives.decode import Written
from dpft.tasks.objectives.records import LabelledText
from dpft.tasks.own_texts import LanguageModeling, TextClassification, TextToText
from dpft.training.run import run_experiment
from dpft.training.synthesis import as_markdown, find_sources, keep, sample
from dpft.training.trained import loaded_run

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
def quick_scores():
    """Scores without Java: the metric has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpft.tasks.metrics.e2e.score", lambda predictions, references: {"BLEU": 0.5})
        patch.setattr("dpft.tasks.metrics.e2e.signature", lambda: "quick")
        yield


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


def test_of_a_selection_the_chosen_run_is_sampled_at_the_price_of_the_choice(private, tmp_path):
    selection = Selection(tmp_path / "one")
    record = runs.read_record(private)
    spent = record["mechanism"]
    mechanism = SimpleNamespace(
        spent={key: spent[key] for key in ("sampling_rate", "noise_multiplier")},
        **{key: spent[key] for key in ("steps", "delta")},
    )
    selection.describe([], Trials(10.0), "BLEU", lowest=False)
    shutil.copytree(private, selection.trials / "best")
    chosen = release(
        *(selection, selection.trials / "best", record),
        **{"metric": "BLEU", "lowest": False, "trials": Trials(10.0), "mechanisms": [mechanism]},
    )
    out = tmp_path / "synthetic.csv"
    result = invoke(selection.chosen, "n=4", "sources=sample", f"out={out}", *QUICK)
    assert result.exit_code == 0, result.output
    side = content(out)
    assert side["privacy"] == chosen["privacy"]
    assert side["privacy"]["epsilon"]["rdp"] > record["privacy"]["epsilon"]["rdp"]
    assert "the choice of the best of a random number of runs included" in result.output
    assert "further search for settings" in out.with_name(f"{out.name}.guarantee.md").read_text()
    result = invoke(selection.trials / "best", "n=4", "sources=sample", *QUICK)
    assert result.exit_code == 2
    assert "secret trials of a selection" in result.output


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


def test_a_model_trains_on_synthetic_records_and_says_so(made, tmp_path, quick_scores):
    out, _ = made
    overrides = [f"task.synthetic={out}", "task.limit_train=null", "clip=none", "name=again"]
    outcome = train(tmp_path, *overrides)
    assert outcome.record["training"]["steps"] == 2
    assert outcome.record["dataset"]["counts"] == {"train": len(read_csv(out))}
    assert flag(Flag.SYNTHETIC_DATA) in outcome.record["flags"]
    # Evaluation is on the data itself.
    task = E2E(source="sample", synthetic=str(out))
    assert task.instances("test") == E2E(source="sample").instances("test")
    assert task.rows("train") == read_csv(out)


def test_a_folder_with_real_evaluation_files_beside_is_read_too(made, tmp_path):
    out, _ = made
    E2E.dataset.write_sample(tmp_path, 0)
    shutil.copy(out, tmp_path / "trainset.csv")
    task = E2E(data_dir=str(tmp_path))
    assert task.rows("train") == read_csv(out)
    assert task.rows("test") == E2E(source="sample").rows("test")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "no n given"),
        (["n=0", "sources=dev"], "n is 0"),
        (["n=1", "sources=dev", "seed=99999999999999999999"], "seed is 9999.*<"),
        (["n=many", "sources=dev"], "generate.n is 'many'"),
        (["m=3"], "got 'm=3'"),
        (["n=3", "source=dev"], "did you mean 'sources'"),
        (["n=3"], "no sources given: .* are private themselves"),
        (["n=3", "sources=train"], "would copy the sources of the training records"),
        (["n=3", "sources=nowhere.csv"], "'nowhere.csv', and there is no such file"),
        (["n=3", "sources=dev", "decode.top_q=1"], "unknown setting decode.top_q"),
        (["n=999", "sources=dev", "decode.sample=false"], "writes the same text"),
    ],
)
def test_what_cannot_be_done_is_refused(private, overrides, message):
    result = invoke(private, *overrides)
    assert result.exit_code == 2
    assert result.output.startswith("dpft: ")
    assert re.search(message, result.output)
    assert not (private / "synthetic").exists()


def test_sources_of_training_records_are_refused_whatever_file_they_lie_in(tmp_path, monkeypatch):
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
        assert find_sources(task, str(file), 1, seed=0, check=False).in_training is None
    found = find_sources(task, str(folder / "devset.csv"), 1, seed=0)
    assert found.distinct > 1
    assert found.in_training == 0
    shutil.copy(folder / "trainset.csv", folder / "devset.csv")
    with pytest.raises(ConfigError, match="mostly those of the training records"):
        find_sources(task, "dev", 1, seed=0)


def test_sources_that_cannot_be_compared_are_refused(tmp_path, monkeypatch):
    """The settings name a file as it was typed, in another folder."""
    (tmp_path / "own.jsonl").write_text('{"source": "a", "target": "b"}\n')
    (tmp_path / "others.jsonl").write_text('{"source": "c", "target": "d"}\n')
    (tmp_path / "elsewhere").mkdir()
    task = TextToText(train_file="own.jsonl")
    monkeypatch.chdir(tmp_path)
    assert find_sources(task, "others.jsonl", 1, seed=0).in_training == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    task = TextToText(train_file="own.jsonl")
    for file in ("../own.jsonl", "../others.jsonl"):
        with pytest.raises(ConfigError, match=r"own\.jsonl.*check_sources=false"):
            find_sources(task, file, 1, seed=0)
        assert find_sources(task, file, 1, seed=0, check=False).distinct == 1


def test_some_sources_may_be_those_of_training_records_and_are_counted(tmp_path):
    for name, letters in (("own", "ab"), ("asked", "bcd")):
        lines = [json.dumps({"source": letter, "target": "x"}) + "\n" for letter in letters]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    task = TextToText(train_file=str(tmp_path / "own.jsonl"))
    assert find_sources(task, str(tmp_path / "asked.jsonl"), 3, seed=0).in_training == 1


def test_made_up_sources_have_the_columns_of_ones_own_data(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"question": "a", "answer": "b"}\n')
    task = TextToText(train_file=str(file), source_column="question", target_column="answer")
    sources = find_sources(task, "sample", 3, seed=0)
    task.write_records(sources.rows, ["x", "y", "z"], tmp_path / "made.jsonl")
    read = TextToText(
        train_file=str(tmp_path / "made.jsonl"), source_column="question", target_column="answer"
    )
    assert [record.target for record in read.records("train")] == ["x", "y", "z"]


@pytest.mark.parametrize("there", ["a.csv", "a.csv.guarantee.json", "a.csv.guarantee.md"])
def test_neither_records_nor_their_guarantee_are_overwritten(private, tmp_path, there):
    (tmp_path / there).write_text("precious")
    result = invoke(private, "n=2", "sources=sample", f"out={tmp_path / 'a.csv'}", *QUICK)
    assert result.exit_code == 2
    assert f"{there} exists" in result.output.replace("\n", "")
    assert (tmp_path / there).read_text() == "precious"


def test_what_another_command_wrote_meanwhile_is_not_overwritten(private, tmp_path, monkeypatch):
    """Two seeds at once, and neither with a file of its own."""
    out = tmp_path / "a.csv"

    def meanwhile(*arguments, **named):
        out.write_text("precious")
        return sample(*arguments, **named)

    monkeypatch.setattr("dpft.training.synthesis.sample", meanwhile)
    result = invoke(private, "n=2", "sources=sample", f"out={out}", *QUICK)
    assert result.exit_code == 2
    assert "a.csv exists" in result.output.replace("\n", "")
    assert out.read_text() == "precious"


def test_a_command_that_was_killed_before_the_records_had_their_name_is_typed_again(
    private, tmp_path, monkeypatch
):
    out, replace = tmp_path / "a.csv", Path.replace

    def killed(path, target):
        if target == out:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        invoke(private, "n=2", "sources=sample", f"out={out}", *QUICK)
    assert not out.exists()
    assert content(out)["file"] == "a.csv"
    result = invoke(private, "n=2", "sources=sample", f"out={out}", *QUICK)
    assert result.exit_code == 0, result.output
    assert content(out)["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_form_that_could_not_be_read_again_is_refused(private, tmp_path):
    result = invoke(private, "n=2", "sources=sample", f"out={tmp_path / 'a.jsonl'}", *QUICK)
    assert result.exit_code == 2
    assert "expected .csv" in result.output


def test_records_are_never_there_without_their_guarantee(private, tmp_path, monkeypatch):
    def full(path, data, mode=0o644):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpft.runs.atomic.write_atomic", full)
    result = invoke(private, "n=2", "sources=sample", f"out={tmp_path / 'a.csv'}", *QUICK)
    assert result.exit_code == 2
    assert "cannot write" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_the_model_cannot_take_whole_is_told(private, tmp_path):
    slots = ", ".join(f"slot{i}[some value that is long]" for i in range(80))
    file = tmp_path / "long.csv"
    file.write_text(f'mr,ref\n"name[A], {slots}",x\nname[B],y\n')
    out = tmp_path / "out.csv"
    result = invoke(private, "n=2", f"sources={file}", f"out={out}", *QUICK)
    assert result.exit_code == 0, result.output
    assert "1 of their sources were too long for the model" in result.output.replace("\n", " ")
    assert content(out)["records"]["sources_cut_for_the_model"] == 1


def test_shuffled_batches_have_no_bounds_in_the_guarantee(made):
    side = content(made[0])
    assert "(upper bound)" in as_markdown(side)
    side["privacy"] |= {"voided_by": ["shuffled"], "warnings": ["Not proven."]}
    text = as_markdown(side)
    assert "upper bound" not in text
    assert "for Poisson sampling, not a bound here" in text
    assert "> **Warning:** Not proven." in text


def test_nothing_is_overwritten(made, private):
    out, _ = made
    result = invoke(private, "n=3", "sources=dev", f"out={out}")
    assert result.exit_code == 2
    assert "exists" in result.output


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


def test_empty_texts_and_repeated_records_are_left_out_and_counted():
    task = E2E(source="sample")
    rows = [("name[A]", ""), ("name[A]", ""), ("name[B]", ""), ("name[A]", "")]
    written = [Written("x", True), Written("x", False), Written("x", False), Written(" \n", False)]
    cut = [False, True, True, False]
    made = keep(task, rows, written, cut, unique=True)
    assert list(made.counts.values()) == [4, 2, 1, 1, 1, 1]
    assert [(mr, text) for (mr, _), text in zip(made.rows, made.targets, strict=True)] == [
        ("name[A]", "x"),
        ("name[B]", "x"),
    ]
    every = keep(task, rows, written, cut, unique=False)
    assert list(every.counts.values()) == [4, 3, 1, 0, 2, 2]


def test_writing_is_the_inverse_of_reading(tmp_path):
    """The meaning representation is the one read, not one rebuilt from the prompt."""
    rows = [('name[A "B"], near[C, D]', ""), ("name[E | F],food[x : y]", "")]
    targets = ['One, "two"\nthree', "Ünïcode\rfour"]
    E2E(source="sample").write_records(rows, targets, tmp_path / "a.csv")
    assert read_csv(tmp_path / "a.csv") == [
        (mr, target) for (mr, _), target in zip(rows, targets, strict=True)
    ]


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


class Plain(E2E):
    """A task without a form of its own to write."""

    write_records = E2E.__mro__[2].write_records


class Texts(Plain):
    """A task whose records are texts alone."""

    unconditional = True


class Labels(Plain):
    def record(self, row):
        return LabelledText(("a",), 0)


def test_tasks_without_a_writer_get_json_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    Plain(source="sample").write_records([("name[A]", "")], ["x\u2028y"], file)
    lines = file.read_text("utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [
        {"source": "name : A", "target": "x\u2028y"}
    ]
    Plain(source="sample").write_records(None, ["x"], file)
    assert json.loads(file.read_text()) == {"text": "x"}
    with pytest.raises(ConfigError, match="are no texts"):
        Labels(source="sample").write_records([("name[A]", "")], ["x"], file)


def test_texts_without_a_source_are_sampled_from_the_end_token(private):
    task, loaded = Texts(source="sample"), loaded_run(private).loaded
    sources = find_sources(task, None, 6, seed=0)
    assert (sources.rows, sources.distinct) == (None, 0)
    settings = Decode(beams=1, sample=True, top_p=0.9, max_new_tokens=8)
    written, cut = sample(task, loaded, sources.rows, 6, settings, seed=0)
    assert len({one.text for one in written}) > 1
    assert not any(cut)
    with pytest.raises(ConfigError, match="leave sources out"):
        find_sources(task, "dev", 6, seed=0)


def test_models_that_write_no_records_are_refused_with_what_to_type():
    with pytest.raises(ConfigError, match=r"assistant's turns alone.*task\.train_on=all"):
        find_sources(Chat(source="sample"), None, 1, seed=0)
    with pytest.raises(ConfigError, match=r"task=text2text task\.source_column=label .*\[repair,"):
        find_sources(TextClassification(source="sample"), None, 1, seed=0)
    assert find_sources(Chat(source="sample", train_on="all"), None, 1, seed=0).rows is None


def test_texts_are_written_for_labels_that_are_typed(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"label": "yes", "text": "private"}\n')
    task = TextToText(train_file=str(file), source_column="label", target_column="text")
    sources = find_sources(task, "[yes, no]", 4, seed=0)
    assert (sources.distinct, sources.in_training) == (2, None)
    task.write_records(sources.rows, ["a", "b", "c", "d"], tmp_path / "new.jsonl")
    made = TextClassification(train_file=str(tmp_path / "new.jsonl"), classes=("yes", "no"))
    assert sorted(record.label for record in made.records("train")) == [0, 0, 1, 1]
    for wrong in ("[", "[]", "[[a]]"):
        with pytest.raises(ConfigError, match="expected texts"):
            find_sources(task, wrong, 1, seed=0)
    with pytest.raises(ConfigError, match="no plain texts"):
        find_sources(E2E(source="sample"), "[yes]", 1, seed=0)


def test_made_up_sources_are_not_those_of_the_training_records():
    sources = find_sources(E2E(source="sample"), "sample", 50, seed=0)
    assert "no private information" in sources.privacy
    trained_on = {mr for mr, _ in E2E(source="sample").rows("train")}
    assert len({mr for mr, _ in sources.rows} - trained_on) > 25


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(runs.RecordError, match=r"record\.json does not exist"):
        loaded_run(tmp_path)


def test_a_synthetic_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none\.csv"):
        E2E(source="sample", synthetic=str(tmp_path / "none.csv")).rows("train")


def test_a_sheet_editor_reads_what_is_written(made):
    """Plain CSV: the header, then two fields a row."""
    out, _ = made
    with out.open(newline="", encoding="utf-8") as file:
        assert {len(row) for row in csv.reader(file)} == {2}
