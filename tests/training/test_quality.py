"""Figures of synthetic records: formulas, what covers each, and that private ones stay private."""

import json
import math
import stat

import numpy as np
import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.cli.quality import _decoded_otherwise, _scored_otherwise, _tell
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.report.pages.quality import cells, written_as
from dpft.tasks import load_task
from dpft.tasks.chat import Chat
from dpft.training.quality import Generated, downstream, nearness, overlaps, shapes
from dpft.training.quality.distance import encoder, mmd, unit_rows
from dpft.training.quality.new_run import words_on
from dpft.training.quality.words import distinct, found_in, runs, words
from dpft.training.run import run_experiment


def test_words_and_their_runs():
    assert words("Don't, STOP: ünder_way 24!") == ["don", "t", "stop", "ünder_way", "24"]
    assert list(runs(["a", "b", "c"], 2)) == [("a", "b"), ("b", "c")]
    assert list(runs(["a"], 2)) == []


def test_variety_is_different_runs_over_all():
    texts = [["a", "b", "a"], ["a", "b"]]
    assert distinct(texts, 1) == 2 / 5
    assert distinct(texts, 2) == 2 / 3  # ab, ba and ab again
    assert distinct(texts, 4) is None


def test_overlap_counts_runs_records_and_whole_records():
    training = [["a", "b", "c", "d"], ["x", "y"]]
    texts = [["a", "b", "z", "c", "d"], ["x", "y"], ["b", "c", "b"], ["q"]]
    # Pairs: ab yes, bz, zc no, cd yes; xy yes; bc yes, cb no. They never reach over two records.
    groups = [texts, [["d", "x"]], [["q"]]]
    assert found_in(groups, iter(training), 2) == [
        (4 / 7, 3 / 4, 1 / 4), (0, 0, 0), (None, 0, 0),
    ]  # fmt: skip


def test_the_distance_is_that_of_its_definition():
    """Against the double sums of Gretton et al. 2012, lemma 6, on vectors with known cosines."""
    x = np.array([[1.0, 0], [0, 1], [1, 0]])
    y = np.array([[1.0, 0], [-1, 0]])
    same, right, opposite = 1.0, math.exp(-1), math.exp(-2)
    within_x = (right + same + right) / 3  # the pairs 12, 13, 23
    across = (same + opposite + right + right + same + opposite) / 6
    assert mmd(x, y) == pytest.approx(within_x + opposite - 2 * across, abs=1e-12)
    rng = np.random.default_rng(0)
    near = [unit_rows(rng.normal(size=(400, 3))) for _ in range(2)]
    assert abs(mmd(*near)) < 0.01 < mmd(near[0], unit_rows(near[1] + [1, 0, 0]))
    with pytest.raises(ValueError, match="two of each"):
        mmd(x, y[:1])


def test_a_text_has_the_same_vector_in_any_company():
    encode = encoder("tiny")
    texts = ["The Punter is a pub.", "Near the river there is a cheap restaurant called Aromi.", ""]
    whole = encode(texts)
    for text, row in zip(texts, whole, strict=True):
        np.testing.assert_allclose(encode([text])[0], row, atol=1e-5)
    assert np.linalg.norm(whole[:2], axis=1) == pytest.approx(1)


def test_each_figure_names_what_covers_it():
    texts, real = ["a b c d", "a b"], ["a b c", "d e f", "a c", "b"]
    figures = [
        *shapes(texts, real, "held-out"),
        nearness(texts, real, lambda some: np.eye(len(some), 4), "held-out"),
        *downstream({"BLEU": 0.5}, {"BLEU": 0.6}, "run", "test", "held-out", "held-out"),
        *downstream({"BLEU": 0.5}, {"BLEU": 0.6}, "run", "test", "public", "training"),
        *overlaps(texts, real, ["a b c d"], n=2),
        *overlaps(texts, [], ["a b c d"], n=2),
    ]
    said = [one["covered"] for one in written_as(figures)]
    assert said == ["yes, real: no"] * 5 + ["no: held-out"] * 2 + ["no: training"] * 7
    anyones = [*shapes(texts, real, "public"), *shapes(texts, [], "held-out")]
    assert {one["covered"] for one in written_as(anyones)} == {"yes"}
    # As many real records as synthetic ones: variety falls with their number.
    assert figures[0].real_is == "2 held-out records"
    assert cells(written_as(figures)[0])[:2] == ("words in a record, mean", "3.0000")


def test_a_sorted_file_does_not_make_the_halves_look_far_apart():
    sort = ["a"] * 100 + ["b"] * 100

    def encode(some):
        return np.array([[text == "a", text == "b"] for text in some], dtype=float)

    figure = nearness(["a", "b"], sort, encode, "held-out")
    assert figure.real is not None
    assert figure.real < 0.05 < mmd(encode(sort[:100]), encode(sort[100:]))


def test_records_that_repeat_another_are_counted_among_all_of_them():
    """2,000 records of which 40 are different, beside 40 held-out ones, of which two are alike."""
    texts = [f"the kettle number {i % 40} leaks" for i in range(2000)]
    real = [f"a note {i // 2 if i < 2 else i} about clocks" for i in range(40)]
    whole, few = (f for f in shapes(texts, real, "held-out") if "repeat" in f.name)
    assert (whole.name, whole.synthetic) == ("records that repeat another", 0.98)
    assert whole.real is None
    assert few.name == "records that repeat another, of 40 each"
    assert few.real == pytest.approx(1 / 40)
    assert 0 < few.synthetic < 0.98
    for size in (0, 2000):  # as many, or none
        (only,) = (f for f in shapes(texts, (50 * real)[:size], "held-out") if "repeat" in f.name)
        assert (only.name, only.synthetic) == ("records that repeat another", 0.98)


TALK = [{"role": "user", "content": "Is it open?"}, {"role": "assistant", "content": "Yes."}]


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A run on conversations of users, which are all the same, and conversations that it wrote."""
    folder = tmp_path_factory.mktemp("story")
    rows = [json.dumps({"user": f"u{n}", "messages": TALK}) + "\n" for n in range(40)]
    (folder / "chats.jsonl").write_text("".join(rows[:32]))
    (folder / "test.jsonl").write_text("".join(rows[32:]))
    settings = [
        "task=chat", f"task.train_file={folder}/chats.jsonl", f"task.test_file={folder}/test.jsonl",
        "task.unit=user", "task.user_column=user", "task.train_on=all", "task.max_length=64",
        "task.limit_eval=1", "model=tiny", "privacy.noise_multiplier=0.01", "privacy.noise_seed=1",
        "optim.batch_size=8", "optim.lr=5e-3", "optim.steps=50", "decode=greedy",
        "decode.max_new_tokens=4", "threads=1", "name=patients", f"runs_dir={folder}/runs",
    ]  # fmt: skip
    path = run_experiment(parse(compose(settings))).path
    made = invoke("generate", path, "n=6", "decode.top_p=0.3")
    assert made.exit_code == 0, made.output
    judged = invoke("quality", path, "--encoder", "tiny")
    assert judged.exit_code == 0, judged.output
    return path, made.output, judged.output


def test_generated_conversations_are_read_back(story):
    path, said, _ = story
    file = path / "synthetic/train.jsonl"
    turns = [one.turns for one in Chat(train_file=str(file)).records("train")]
    assert [("user", "Is it open?"), ("assistant", "Yes.")] in map(list, turns)
    assert "one user" in said
    checked = invoke("data", "check", "chat", f"task.train_file={file}")
    assert f"chat train: {len(turns)} records" in checked.output
    assert f"task.synthetic={file} clip=none" in said


def test_private_figures_lie_in_private_and_are_shown_on_request(story):
    path, _, said = story
    shown = json.loads((path / "quality/train.json").read_text())
    hidden = path / "private/quality"
    assert {one["covered"] for one in shown["figures"]} == {"yes, real: no", "no: held-out"}
    assert shown["privacy"]["noun"] == "user"
    whole = json.loads((hidden / "train.json").read_text())["figures"]
    copies = [one for one in whole if one["covered"] == "no: training"]
    assert [one["synthetic"] for one in copies][-1] > 0.5  # the one conversation that there is
    page = (path / "quality/train.html").read_text()
    assert "Is it open?" in page
    assert shown["privacy"]["meaning"][:40] in page
    for one in copies:
        assert one["name"] not in page + said + json.dumps(shown)
    for file in hidden.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "Do not publish this page" in (hidden / "train.html").read_text()
    asked = invoke("quality", path, "--encoder", "none", "--private").output
    assert "no: training" in asked


def test_without_privacy_every_figure_is_private(story, tmp_path):
    path, *_ = story
    content = json.loads((path / "quality/train.json").read_text())
    content["privacy"]["kind"] = "none"
    made = Generated(tmp_path / "made.jsonl", {}, ["a", "b"])
    _tell(tmp_path, content, shapes(made.texts, [], "public"), made, False)
    assert {one.name for one in tmp_path.rglob("*.*")} == {"made.json", "made.html"}
    assert not (tmp_path / "quality").exists()


def test_what_was_changed_has_no_guarantee(story, tmp_path):
    path, *_ = story
    for name in ("train.jsonl", "train.jsonl.guarantee.json"):
        (tmp_path / name).write_bytes((path / "synthetic" / name).read_bytes())
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps({"messages": TALK}) + "\n")
    result = invoke("quality", path, "--file", tmp_path / "train.jsonl")
    assert result.exit_code == 2
    assert "was changed since" in result.output
    for arguments, message in (
        (["--reference", "train"], "which the model has seen"),
        (["--reference", path.parents[1] / "chats.jsonl"], "chats.jsonl is trained on"),
        (["optim.epochs=1"], "type --train too"),
        (["--public"], "type --reference FILE too"),
        (["--file", "none"], "there is no such file"),
    ):
        result = invoke("quality", path, *arguments)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())


def test_a_model_is_trained_on_them_and_scored_on_real_records(story, tmp_path):
    """Which are the run's own, whatever is said of the reference."""
    path, *_ = story
    other = [{"role": "user", "content": "Are you there?"}, TALK[1]]
    (tmp_path / "other.jsonl").write_text((json.dumps({"messages": other}) + "\n") * 4)
    result = invoke(
        *("quality", path, "--encoder", "none", "--train", "optim.steps=1", "optim.batch_size=2"),
        *("decode=greedy", "decode.max_new_tokens=4", "threads=1"),
        *("--reference", tmp_path / "other.jsonl", "--public"),
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((path / "quality/train.json").read_text())["figures"]
    found = {one["name"]: one for one in figures}["perplexity on test, trained on them"]
    record = json.loads((path / "record.json").read_text())
    assert found["real"] == record["scores"]["test"]["metrics"]["perplexity"]
    assert found["covered"] == "no: held-out"
    (file,) = path.parent.glob("patients-on-train-*/record.json")
    made = json.loads(file.read_text())
    assert found["synthetic"] == made["scores"]["test"]["metrics"]["perplexity"]
    assert made["mechanism"] is None
    assert "synthetic training records" in made["labels"]


def test_other_records_of_the_same_name_are_trained_on_and_not_taken_for_known(story, tmp_path):
    path, *_ = story
    for n in (4, 6):
        for file in tmp_path.iterdir():
            file.unlink()
        made = invoke("generate", path, f"n={n}", f"seed={n}", f"out={tmp_path}/some.jsonl")
        assert made.exit_code == 0, made.output
        result = invoke(
            *("quality", path, "--file", tmp_path / "some.jsonl", "--encoder", "none", "--train"),
            *("optim.steps=1", "optim.batch_size=2", "decode=greedy", "decode.max_new_tokens=4"),
            "threads=1",
        )
        assert result.exit_code == 0, result.output
    records = [json.loads(f.read_text()) for f in path.parent.glob("*-on-some*/record.json")]
    assert sorted(one["dataset"]["counts"]["train"] for one in records) == [4, 6]


def test_scores_of_another_decoding_are_left_out(story):
    path, *_ = story
    record = json.loads((path / "record.json").read_text())
    config = {**record["config"]["decode"], "beams": 3, "split": "dev"}
    run = parse(compose(["decode=greedy", "decode.max_new_tokens=4"]))
    assert _decoded_otherwise(run.decode, record["config"]["decode"]) == ""
    assert _decoded_otherwise(run.decode, config) == "decode.beams=3"
    result = invoke(
        *("quality", path, "--encoder", "none", "--train", "optim.steps=1", "optim.batch_size=2"),
        *("decode=beam", "decode.max_new_tokens=4", "threads=1", "force=true"),
    )
    assert result.exit_code == 0, result.output
    said = "patients are of texts decoded with decode.beams=1, and these of others: they are left"
    assert said in " ".join(result.output.split())
    figures = json.loads((path / "quality/train.json").read_text())["figures"]
    found = {one["name"]: one for one in figures}["perplexity on test, trained on them"]
    assert found["real"] is None


@pytest.mark.parametrize(
    ("task", "scores", "told"),
    [
        ({}, {}, ""),
        ({}, {"examples": 9}, "of 9 examples, and these of 8"),
        ({"test_file": "b.csv"}, {}, "of records read by other settings (test_file)"),
        ({"test_file": None, "test_share": 0.2}, {}, "by other settings (test_file, test_share)"),
        ({"max_length": 64}, {}, "of records read by other settings (max_length)"),
        ({"limit_eval": 20, "train_on": "all"}, {}, ""),
        ({"train_file": "c.csv", "dev_share": 0.1}, {}, ""),  # the file that is scored is the same
        ({"max_length": 64, "name": "classification"}, {}, ""),  # of other metrics
    ],
)
def test_scores_of_other_records_are_told_from_ours(task, scores, told):
    def record(task, scores):
        mine = {"name": "text2text", "test_file": "a.csv", "max_length": 100, **task}
        return {"config": {"task": mine}, "scores": {"test": {"examples": 8, **scores}}}

    ours = record({}, {})
    assert _scored_otherwise("test", ours, record(task, scores)).endswith(told)
    assert bool(_scored_otherwise("test", ours, record(task, scores))) == bool(told)
    shared = {"test_file": None, "test_share": 0.2}
    of_shares = record(shared, {}), record({**shared, "split_seed": 1}, {})
    assert _scored_otherwise("test", *of_shares).endswith("by other settings (split_seed)")
    published = record({}, {"references": "aa"})
    elsewhere = record({"data_dir": "there", "source": "real"}, {"references": "aa"})
    assert _scored_otherwise("test", published, elsewhere) == ""
    cut = record({}, {"references": "bb"})
    assert _scored_otherwise("test", published, cut) == "of other records than these"


@pytest.mark.parametrize(
    ("typed", "others", "same"),
    [
        (["decode=nucleus", "decode.top_p=0.5", "decode.split=dev"], [], True),
        (["decode.beams=2", "decode.length_penalty=0.5", "decode.batch_size=7"], [], True),
        ([], ["task=classification", "task.classes=[a,b]", "model=random-bert"], True),
        (["decode=greedy", "decode.split=dev"], ["decode=greedy"], True),
        (["decode.beams=2"], ["decode=greedy"], False),
        (["decode.beams=2"], ["decode.beams=3"], False),
    ],
)
def test_the_new_run_decodes_as_the_first_did(tmp_path, typed, others, same):
    columns = ["task.source_column=label", "task.target_column=text", "task.train_file=a.csv"]
    run = parse(compose(["task=text2text", *columns, "task.test_file=b.csv", *typed]))
    again = parse(compose(words_on(run, tmp_path / "made.jsonl", 20, others)))
    assert (again.decode == run.decode) == same
    assert again.decode.split == run.decode.split


def test_the_new_run_is_tested_on_the_same_data(tmp_path):
    typed = [
        "task=text2text",
        f'task.train_file="{tmp_path}/my rows.jsonl"',
        "task.test_share=0.2",
        'task.source_column="1"',
        'task.before="say \\"x, y\\": "',
        "task.limit_train=5",
        "model=gpt2",
        "model.path=here/gpt2",
        "optim.batch_size=12",
    ]
    run = parse(compose(typed))
    again = parse(compose(words_on(run, tmp_path / "a b.jsonl", 270, [])))
    changed = {"synthetic": str(tmp_path / "a b.jsonl"), "limit_train": None}
    assert again.task == {**run.task, **changed}
    assert again.task["before"] == 'say "x, y": '
    assert again.model == run.model
    assert (again.optim.batch_size, again.clip.private) == (64, False)


def test_the_new_run_leaves_the_unit_out_and_holds_out_the_same_users(tmp_path):
    users = ["task.unit=user", "task.user_column=author", "task.records_per_user=3"]
    run = parse(compose([*OWN, "task.test_share=0.2", *users]))
    again = parse(compose(words_on(run, tmp_path / "b.jsonl", 5000, []))).task
    assert (again["unit"], again["user_column"], again["test_share"]) == ("record", "author", 0.2)
    assert again["records_per_user"] == 8
    load_task(again)


def test_texts_for_labels_train_a_classifier_of_the_same_data(tmp_path):
    chosen = ["task=classification", "task.classes=[a,b]", "model=random-bert"]
    columns = ["task=text2text", "task.source_column=label", "task.target_column=text"]
    files = ["task.train_file=a.csv", "task.test_file=b.csv", "task.limit_eval=5"]
    run = parse(compose([*columns, *files]))
    again = parse(compose(words_on(run, tmp_path / "made.jsonl", 20, chosen)))
    assert (again.task["name"], again.task["classes"]) == ("classification", ["a", "b"])
    assert (again.task["train_file"], again.task["test_file"]) == ("a.csv", "b.csv")
    assert (again.task["limit_eval"], again.clip.private) == (5, False)
    assert again.task["synthetic"] == str(tmp_path / "made.jsonl")
    # A share of single records: the classifier's test would be of records that the run has seen.
    run = parse(compose([*columns, "task.train_file=a.csv", "task.test_share=0.2"]))
    with pytest.raises(ConfigError, match="trained on some of them"):
        words_on(run, tmp_path / "made.jsonl", 20, chosen)
    users = ["task.train_file=a.csv", "task.test_share=0.2", "task.unit=user"]
    run = parse(compose([*columns, *users, "task.user_column=who", "task.split_seed=3"]))
    again = parse(compose(words_on(run, tmp_path / "made.jsonl", 20, chosen)))
    assert (again.task["user_column"], again.task["split_seed"]) == ("who", 3)
    assert again.task["unit"] == "record"


OWN = ["task=text2text", "task.source_column=label", "task.train_file=a.csv"]


@pytest.mark.parametrize(
    ("held_out", "typed"),
    [
        ("task.test_share=0.2", "task.split_seed=1"),
        ("task.test_share=0.2", "task.test_share=0.5"),
        ("task.test_share=0.2", "task.source_column=other"),
        ("task.test_share=0.2", "task.target_column=text"),
        ("task.test_file=b.csv", "task.test_file=a.csv"),
        ("task.test_file=b.csv", "++task.test_file=a.csv"),
        ("task.test_file=b.csv", "task.synthetic=null"),
        ("task.test_file=b.csv", "task.user_column=who"),
        ("task.test_file=b.csv", "decode.split=dev"),
        ("task.test_share=0.2", "+decode.split=train"),
    ],
)
def test_what_is_held_out_cannot_be_typed_behind_the_new_runs_settings(tmp_path, held_out, typed):
    """Noiseless scores of records that the run was trained on would be published."""
    run = parse(compose([*OWN, held_out]))
    with pytest.raises(ConfigError, match="tested on records that the run was trained on"):
        words_on(run, tmp_path / "made.jsonl", 20, [typed])


@pytest.mark.parametrize("typed", ["task.max_length=9", "task.limit_eval=3", "optim.epochs=2"])
def test_what_decides_nothing_of_that_can_be_typed(tmp_path, typed):
    run = parse(compose([*OWN, "task.test_share=0.2"]))
    assert typed in words_on(run, tmp_path / "made.jsonl", 20, [typed])


def test_the_same_task_typed_again_keeps_its_columns(tmp_path):
    """Which records a share holds out follows from what the columns say."""
    run = parse(compose([*OWN, "task.test_share=0.2"]))
    again = parse(compose(words_on(run, tmp_path / "made.jsonl", 20, ["task=text2text"])))
    assert (again.task["source_column"], again.task["test_share"]) == ("label", 0.2)
