"""Tables with cells written by hand, and evidence that hands them out."""

from dpft.reproduce.claims.schema import CellsCheck, Expected
from dpft.reproduce.papers.schema import Column, Laptop, PaperTable, Row
from dpft.reproduce.tables.cells import Cell
from dpft.reproduce.tables.verdicts import CellVerdict


def row(labels, printed, *, std=None, ours=None, deviation=None, source=None, why=None, **cell):
    """A row of one column, and our number in it."""
    made = Row(
        labels=labels,
        run=None if source or why else (),
        printed={"acc": printed},
        taken_from=source,
        why=why,
    )
    verdict = (
        CellVerdict.COPIED if source else CellVerdict.CANNOT_RUN if why else CellVerdict.NOT_RUN
    )
    if ours is not None:
        verdict = CellVerdict.TREND
    return made, Cell(printed, std, None, ours, deviation, 0, 1, verdict, **cell)


class Evidence:
    """A table in the place of all tables; ours are the same at both scales."""

    def __init__(self, *rows, higher=True, decimals=1):
        column = Column(
            key="acc",
            label="accuracy",
            decimals=decimals,
            metrics=("accuracy",),
            higher_is_better=higher,
            split="dev",
        )
        self.rows = rows
        self.only = PaperTable(
            paper="demo",
            number="1",
            title="Demo",
            source="Nobody 2020, Table 1",
            seeds=None,
            columns=(column,),
            rows=tuple(made for made, _ in rows),
            laptop=Laptop((), "small"),
        )

    def table(self, name, figure=False):
        return self.only

    def cell(self, table, row, column, scale):
        return next(cell for made, cell in self.rows if made is row)


def pattern(labels):
    return {
        name: tuple(value) if isinstance(value, list) else (value,)
        for name, value in labels.items()
    }


def check(kind, first, second=None, *, ends=(None, None), where=None, free=(), columns=()):
    return CellsCheck(
        table="demo/1",
        expected=Expected(kind, *ends),
        first=pattern(first),
        second=pattern(second or {}),
        where=pattern(where or {}),
        free=tuple(free),
        columns=tuple(columns),
    )
