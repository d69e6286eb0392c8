"""Every figure's entry, the figures' own lists of runs, and selections of tables."""

from dpft.reproduce.figures.catalog import ROOT, FigureKind, figures
from dpft.reproduce.figures.draw import BUILDERS
from dpft.reproduce.figures.scores import POSITIONS


def test_every_list_belongs_to_a_figure():
    used = {one.name for figure in figures().values() for one in figure.tables if one.is_list}
    assert used == {f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml")}


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
