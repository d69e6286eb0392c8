"""Synthetic records: what is sampled, written and refused, their overlap, and training on them."""

import hashlib
import json
import re
import shutil
import stat

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
from dpft.synthesis.synthetic import Apart, Overlap, find_sources, overlaps
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


def invoke(*words, verb=("generate",), exit_code=0):
    """What a command prints."""
    result = CliRunner().invoke(app, [*verb, *map(str, words)])
    assert result.exit_code == exit_code, result.output
    return result.output


@pytest.fixture(scope="module")
def private(tmp_path_factory, quick_scores):
    return train(tmp_path_factory.mktemp("runs"), "name=first", "privacy.noise_seed=1").path


@pytest.fixture(scope="module")
def made(private, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "trainset.csv"
    return out, invoke(private, "n=40", "sources=dev", f"out={out}", "seed=1", *QUICK)


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
    assert {"top_p": 0.9, "seed": 1}.items() <= side["sampling"].items()
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
        invoke(private, "n=8", f"sources={one_source}", f"seed={seed}", f"out={out}", *QUICK)
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
    said = invoke(private, *overrides, exit_code=2)
    assert re.match(f"dpft: .*{message}", said, re.DOTALL)
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
    words = (private, "n=2", "sources=dev", f"out={tmp_path / 'a.csv'}", *QUICK)
    assert "a.csv exists" in invoke(*words, exit_code=2).replace("\n", "")
    assert (tmp_path / "a.csv").read_text() == "precious"


def test_records_are_never_there_without_their_guarantee(private, tmp_path, monkeypatch):
    def full(path, data, mode=0o644):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpft.runs.atomic.write_atomic", full)
    words = (private, "n=2", "sources=dev", f"out={tmp_path / 'a.csv'}", *QUICK)
    assert "cannot write" in invoke(*words, exit_code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_privacy_is_refused_or_said_to_have_none(quick_scores, one_source, tmp_path):
    plain = train(tmp_path, "clip=none", "name=plain").path
    wanted = [plain, "n=2", f"sources={one_source}", *QUICK]
    assert "was trained without privacy" in invoke(*wanted, exit_code=2)
    assert "No privacy guarantee" in invoke(*wanted, "--not-private")
    out = plain / "synthetic/trainset.csv"
    side = content(out)
    assert (side["private"], side["privacy"]["kind"], side["mechanism"]) == (False, "none", None)
    text = out.with_name(f"{out.name}.guarantee.md").read_text()
    assert "No privacy guarantee: trained without noise" in text
    assert "Epsilon" not in text


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


def test_overlap_counts_runs_records_and_whole_records():
    training = ["A b, c d", "x y"]
    texts = ["a b z c d!", "X y", "b c b", "q"]
    # Pairs: ab yes, bz, zc no, cd yes; xy yes; bc yes, cb no. They never reach over two records.
    found = overlaps([texts, ["d x"], ["q"]], iter(training), 2)
    assert found == [Overlap(4 / 7, 3 / 4, 1 / 4), Overlap(0, 0, 0), Overlap(None, 0, 0)]


def talk(answer):
    return {"text": f"user: Is it open?\nassistant: {answer}"}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A run on texts of users, which are all the same, and texts that it wrote."""
    folder = tmp_path_factory.mktemp("story")
    for name, count, answer in (("chats", 32, "Yes."), ("test", 8, "No.")):
        rows = [json.dumps({"user": f"{name}{n}", **talk(answer)}) + "\n" for n in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    settings = [
        "task=language_modeling", "task.source=auto", "task.limit_train=null", "task.limit_eval=1",
        "task.unit=user", "task.user_column=user", "task.max_length=64",
        f"task.train_file={folder}/chats.jsonl", f"task.test_file={folder}/test.jsonl",
        "privacy.noise_multiplier=0.01", "privacy.noise_seed=1", "optim.batch_size=8",
        "optim.lr=5e-3", "optim.steps=50", "decode.max_new_tokens=4", "name=patients",
    ]  # fmt: skip
    path = train(folder, *settings).path
    return path, invoke(path, "n=6", "decode.top_p=0.3"), invoke(path, "--overlap")


def test_a_language_model_writes_whole_texts_that_are_read_back(story, tmp_path):
    path, said, _ = story
    file = path / "synthetic/train.jsonl"
    side = content(file)
    assert side["sources"]["distinct"] == 0
    assert "no sources to protect" in side["sources"]["privacy"]
    texts = [one.target for one in LanguageModeling(train_file=str(file)).records("train")]
    assert talk("Yes.")["text"] in texts
    assert len(texts) == side["records"]["written"]
    assert [json.loads(line)["text"] for line in file.read_text().splitlines()] == texts
    assert "one user" in said
    assert f"dpft generate {path} --overlap" in said
    checked = invoke("language_modeling", f"task.train_file={file}", verb=["data", "check"])
    assert f"language_modeling train: {len(texts)} records" in checked
    words = (path, "n=5", "sources=dev", f"out={tmp_path / 'b.jsonl'}")
    assert "writes texts without a source" in invoke(*words, exit_code=2)


def test_the_overlap_is_in_private_alone(story):
    path, _, said = story
    (file,) = (path / "private/quality").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    overlap = json.loads(file.read_text())["overlap"]
    assert overlap["synthetic"]["copies"] > 0.5  # the one text that there is
    assert overlap["held_out"]["copies"] == 0
    assert f"{overlap['synthetic']['copies']:.4f}" not in said
    assert not (path / "quality").exists()


def test_what_was_changed_has_no_guarantee(story, tmp_path):
    path, *_ = story
    for name in ("train.jsonl", "train.jsonl.guarantee.json"):
        (tmp_path / name).write_bytes((path / "synthetic" / name).read_bytes())
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps(talk("Yes.")) + "\n")
    changed = tmp_path / "train.jsonl"
    for file, message in ((changed, "was changed since"), ("none", "does not exist")):
        said = invoke(path, f"out={file}", "--overlap", exit_code=2)
        assert message in " ".join(said.split())


def test_a_model_of_them_is_scored_on_real_records(story):
    path, said, _ = story
    task = json.loads((path / "record.json").read_text())["config"]["task"]
    made = train(
        path.parent, "task=language_modeling", f"task.synthetic={path}/synthetic/train.jsonl",
        f"task.test_file={task['test_file']}", "task.user_column=user", "task.max_length=64",
        "task.source=auto", "task.limit_eval=1", "clip=none", "optim.steps=1",
        "optim.batch_size=2", "name=on-synthetic",
    ).record  # fmt: skip
    assert made["scores"]["test"]["metrics"]["perplexity"] > 0
    assert made["mechanism"] is None
    assert flag(Flag.SYNTHETIC_DATA) in made["flags"]
    assert f"task.synthetic={path}/synthetic/train.jsonl clip=none" in " ".join(said.split())
