"""Overlap of synthetic records, which stays private, and a model that is trained on them."""

import json
import stat

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.flags import Flag, flag
from dpft.config.schema import parse
from dpft.synthesis.records import Overlap, overlaps
from dpft.tasks.own_texts import LanguageModeling
from dpft.training.run import run_experiment


def test_overlap_counts_runs_records_and_whole_records():
    training = ["A b, c d", "x y"]
    texts = ["a b z c d!", "X y", "b c b", "q"]
    # Pairs: ab yes, bz, zc no, cd yes; xy yes; bc yes, cb no. They never reach over two records.
    found = overlaps([texts, ["d x"], ["q"]], iter(training), 2)
    assert found == [Overlap(4 / 7, 3 / 4, 1 / 4), Overlap(0, 0, 0), Overlap(None, 0, 0)]


def talk(answer):
    return {"text": f"user: Is it open?\nassistant: {answer}"}


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A run on texts of users, which are all the same, and texts that it wrote."""
    folder = tmp_path_factory.mktemp("story")
    for name, count, answer in (("chats", 32, "Yes."), ("test", 8, "No.")):
        rows = [json.dumps({"user": f"{name}{n}", **talk(answer)}) + "\n" for n in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    settings = [
        "task=language_modeling", "task.unit=user", "task.user_column=user", "task.max_length=64",
        f"task.train_file={folder}/chats.jsonl", f"task.test_file={folder}/test.jsonl",
        "task.limit_eval=1", "model=tiny", "privacy.noise_multiplier=0.01", "privacy.noise_seed=1",
        "optim.batch_size=8", "optim.lr=5e-3", "optim.steps=50", "decode=greedy",
        "decode.max_new_tokens=4", "threads=1", "name=patients", f"runs_dir={folder}/runs",
    ]  # fmt: skip
    path = run_experiment(parse(compose(settings))).path
    made = invoke("generate", path, "n=6", "decode.top_p=0.3")
    assert made.exit_code == 0, made.output
    judged = invoke("generate", path, "--overlap")
    assert judged.exit_code == 0, judged.output
    return path, made.output, judged.output


def test_generated_texts_are_read_back(story):
    path, said, _ = story
    file = path / "synthetic/train.jsonl"
    texts = [one.target for one in LanguageModeling(train_file=str(file)).records("train")]
    assert talk("Yes.")["text"] in texts
    assert "one user" in said
    assert f"dpft generate {path} --overlap" in said
    checked = invoke("data", "check", "language_modeling", f"task.train_file={file}")
    assert f"language_modeling train: {len(texts)} records" in checked.output


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
    for file, message in (
        (tmp_path / "train.jsonl", "was changed since"),
        ("none", "does not exist"),
    ):
        result = invoke("generate", path, f"out={file}", "--overlap")
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())


def test_a_model_of_them_is_scored_on_real_records(story):
    path, said, _ = story
    task = json.loads((path / "record.json").read_text())["config"]["task"]
    made = run_experiment(parse(compose([
        "task=language_modeling", f"task.synthetic={path}/synthetic/train.jsonl",
        f"task.test_file={task['test_file']}", "task.user_column=user", "task.max_length=64",
        "task.limit_eval=1", "model=tiny", "clip=none", "optim.steps=1", "optim.batch_size=2",
        "threads=1", "name=on-synthetic", f"runs_dir={path.parent}",
    ]))).record  # fmt: skip
    assert made["scores"]["test"]["metrics"]["perplexity"] > 0
    assert made["mechanism"] is None
    assert flag(Flag.SYNTHETIC_DATA) in made["flags"]
    assert f"task.synthetic={path}/synthetic/train.jsonl clip=none" in " ".join(said.split())
