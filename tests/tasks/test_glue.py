"""Reading, settings and scores of the GLUE tasks."""

import pytest

from dpft.config.errors import ConfigError, DataError
from dpft.tasks import load_task, sources
from dpft.tasks.glue import MNLI, QQP, Columns, read_tsv
from dpft.tasks.objectives.base import Prediction
from dpft.tasks.objectives.records import LabelledText
from tests.tasks.files import write, write_parquet

SENTENCE = Columns(("sentence",), "label", ("0", "1"))
WORDS = {"label_words": {"negative": "bad", "positive": "good"}}
QQP_HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
QQP_ROW = '1\t2\t3\tWhat is "love?\tWho am I?\t0\n'


def test_quotes_mean_nothing_and_texts_are_stripped(tmp_path):
    text = 'sentence\tlabel\n"good" , and "fine \t1\r\n bad\t0\n'
    rows = read_tsv(write(tmp_path / "train.tsv", text), SENTENCE)
    assert rows == [(('"good" , and "fine',), 1, ""), (("bad",), 0, "")]


def test_columns_are_found_by_name(tmp_path):
    header = "index\tpromptID\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
    row = "0\t7\t(ROOT)\tHe ran.\tHe moved.\tneutral\tentailment\n"
    for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"):
        write(tmp_path / name, header + row)
    task = MNLI(data_dir=str(tmp_path))
    assert task.records("train") == [LabelledText(("He ran.", "He moved."), 0)]
    assert [i.subset for i in task.instances("dev")] == ["matched", "mismatched"]


def test_qqps_broken_lines_are_left_out_and_empty_questions_kept(tmp_path):
    # One record over two lines, as a line break inside a question makes it.
    broken = '4\t5\t6\t"What is\nlove?\tWho?\t1\n'
    empty = "7\t8\t9\tWhat?\t\t0\n"
    write(tmp_path / "train.tsv", QQP_HEADER + QQP_ROW * 3000 + broken + empty)
    rows = QQP(data_dir=str(tmp_path)).rows("train")
    assert len(rows) == 3001
    assert rows[0] == (('What is "love?', "Who am I?"), 0, "")
    assert rows[-1] == (("What?", ""), 0, "")


def test_a_qqp_file_with_many_broken_lines_is_refused(tmp_path):
    write(tmp_path / "train.tsv", QQP_HEADER + QQP_ROW * 100 + "x\ny\n" + QQP_ROW)
    with pytest.raises(DataError, match=r"line 102: this and 1 other lines .* not 6 tab-separated"):
        QQP(data_dir=str(tmp_path)).rows("train")


def mnli_rows(count):
    return [{"premise": "p", "hypothesis": "h", "label": 2, "idx": i} for i in range(count)]


def test_mnlis_two_validation_sets_are_told_apart(tmp_path, monkeypatch):
    def load(hub, name, split, revision):
        return mnli_rows({"validation_matched": 3, "validation_mismatched": 2}[split]), "c0ffee"

    monkeypatch.setattr(sources, "load_hub", load)
    write_parquet(tmp_path / "validation_matched-00000-of-00001.parquet", mnli_rows(3))
    write_parquet(tmp_path / "validation_mismatched-00000-of-00001.parquet", mnli_rows(2))
    for task in (MNLI(source="hub"), MNLI(data_dir=str(tmp_path))):
        subsets = [one.subset for one in task.instances("dev")]
        assert subsets == ["matched"] * 3 + ["mismatched"] * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "span"}, "task.mode is 'span'; expected one of head, infill"),
        ({"mode": "infill", "label_words": {"negative": "bad"}}, "no word for positive"),
        (
            {"mode": "infill", "label_words": {"negative": False, "positive": True}},
            "task.label_words is .*expected a valid string$",
        ),
        ({"mode": "infill", "template": "<S1> <S2> [MASK]", **WORDS}, "records have one text"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_task({"name": "sst2", **settings})


def answers(task, pairs, subset=""):
    return [Prediction("", task.classes[p], (task.classes[r],), subset) for p, r in pairs]


def test_mnli_is_scored_in_its_parts():
    task = MNLI()
    predictions = answers(task, [(0, 0), (1, 2)], "matched") + answers(task, [(2, 2)], "mismatched")
    assert task.score(predictions) == {"accuracy_matched": 0.5, "accuracy_mismatched": 1.0}
    assert task.score(answers(task, [(0, 1)])) == {"accuracy": 0.0}


def test_qqp_has_accuracy_and_f1_of_duplicates():
    # One hit, one false alarm, two right rejections.
    scores = QQP().score(answers(QQP, [(1, 1), (1, 0), (0, 0), (0, 0)]))
    assert scores == {"accuracy": 0.75, "f1": pytest.approx(2 / 3)}
