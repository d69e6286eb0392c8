"""Every figure's entry, the figures' own lists of runs, and selections of tables."""

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.figures import lists
from dpft.reproduce.figures.build import BUILDERS
from dpft.reproduce.figures.catalog import FigureKind, PickedCells, figures
from dpft.reproduce.figures.scores import POSITIONS
from dpft.reproduce.papers import PaperError, load, read
from dpft.reproduce.tables.plan import SCALES, make_plan
from tests.reproduce.figures.example import planned

LIST = """
title: A list
source: Some et al., Figure 1
seeds: null
columns:
  bleu: {label: BLEU, decimals: 1, metric: BLEU, better: higher}
rows:
  - is: {epsilon: 3}
    run: [eps=3]
  - is: {epsilon: 8}
    run: [eps=8]
    printed: {bleu: null}
setting: [task=e2e]
laptop: null
"""


def test_a_number_that_was_not_handed_down_still_has_a_run(tmp_path):
    path = tmp_path / "demo" / "1.yaml"
    path.parent.mkdir()
    path.write_text(LIST)
    table = read(path, is_list=True)
    assert table.name == "demo/1"
    plan = make_plan(table)
    assert set(plan.runs) == {(0, 0)}  # a dash has none


def test_what_is_malformed_is_named(tmp_path):
    path = tmp_path / "demo" / "1.yaml"
    path.parent.mkdir()
    path.write_text(LIST.replace("run: [eps=8]", "runs: [eps=8]"))
    with pytest.raises(PaperError, match=r"1\.yaml: rows\.1\.runs"):
        read(path, is_list=True)
    path.write_text("- 1")
    with pytest.raises(PaperError, match=r"1\.yaml"):
        read(path, is_list=True)


def test_a_selection_has_only_what_it_names():
    rows = {"epsilon": (2,), "model": ("ViT-large",)}
    table = PickedCells(name="bu2023/4", columns=("cifar100_acc",), rows=rows).load()
    assert [column.key for column in table.columns] == ["cifar100_acc"]
    assert {row.labels["epsilon"] for row in table.rows} == {2}
    assert len(table.rows) == 8
    with pytest.raises(ConfigError, match="has nothing of"):
        PickedCells(name="bu2023/4", rows={"epsilon": (5,)}).load()


def test_every_list_belongs_to_a_figure_and_composes_with_batches_that_fit():
    from dpft.training.mechanisms import expected_batch_size, published_size

    used = {one.name for figure in figures().values() for one in figure.tables if one.is_list}
    assert used == set(lists.names())
    wrong = []
    for name in lists.names():
        table = PickedCells(name=name, is_list=True).load()
        for scale in SCALES:
            if scale == "laptop" and table.laptop is None:
                continue
            for one in make_plan(table, scale).distinct:
                size = published_size(one.run)
                if not 1 <= expected_batch_size(one.run.optim, size) <= size:
                    wrong.append((name, scale, one.words))
    assert not wrong


def test_noise_of_runs_that_stop_early_is_that_of_the_whole_run():
    from dpft.training.mechanisms import make_mechanism, published_size

    for name, labels in (
        ("he2022/3", {"clipping": "flat", "noise": "with noise", "epochs": 300}),
        ("he2022/8", {"clipping": "ghost", "epochs": 10}),
    ):
        for scale in SCALES:
            run = planned(name, scale=scale, **labels).run
            spent = make_mechanism(run, published_size(run)).epsilons()["rdp"]
            assert 2.99 < spent <= 3.0


def test_a_point_of_a_table_is_the_table_s_run():
    table = make_plan(load("he2022", "4"))
    (i,) = [
        i
        for i, row in enumerate(table.rows)
        if row.labels
        == {
            **{"model": "RoBERTa-base", "clipping": "adaptive per-layer"},
            **{"epochs": 20, "epsilon": 3},
        }
    ]
    for name, labels in (
        ("he2022/6", {"share": 10, "epsilon": 3}),
        ("he2022/5", {"quantile": 0.85}),
    ):
        assert planned(name, scale="paper", **labels).key == table.runs[i, 0].key


@pytest.mark.parametrize("name", ["li2022/1", "li2022/5"])
def test_that_bert_fills_in_words_is_said_to_be_inferred(name):
    table = PickedCells(name=name, is_list=True).load()
    rows = [row for row in table.rows if str(row.labels["model"]).startswith("BERT")]
    assert rows
    for row in rows:
        for word in ("task.mode=infill", "model.tied=false"):  # as RoBERTa's rows of Table 1
            assert word in (row.run or ())
            assert any(word in choice for choice in table.choices)
            assert word.partition("=")[0] in table.unknown


def test_every_figure_with_data_is_there():
    numbers = {
        "li2022": "1 2 3a 3b 4 5 6 7 8 9",
        "he2022": "1 2 3 4 5 6 7 8 9",
        "bu2023": "1 2 3 4 5 6",
    }
    names = [f"{paper}/{number}" for paper, listed in numbers.items() for number in listed.split()]
    assert list(figures()) == names
    builders = {figure.build for figure in figures().values()}
    assert builders == {*BUILDERS, None}
    for figure in figures().values():
        assert (figure.build is None) == (figure.kind is FigureKind.NONE) == bool(figure.why)


def test_series_ask_for_columns_and_labels_that_their_tables_have():
    for figure in figures().values():
        tables = [one.load() for one in figure.tables]
        columns = {column.key for table in tables for column in table.columns}
        labels = {label for table in tables for label in table.label_names}
        for series in figure.series:
            assert series.column in columns, figure.name
            assert {*series.where} <= labels, figure.name
            assert series.x in {*POSITIONS, *labels}, figure.name


def test_an_unknown_key_of_an_entry_is_refused(tmp_path):
    path = tmp_path / "figures.yaml"
    path.write_text("li2022/1: {title: A, source: B, kind: none, y: because}")
    with pytest.raises(ValueError, match=r"li2022/1\.y"):
        figures(path)
