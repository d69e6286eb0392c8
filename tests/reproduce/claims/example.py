"""Tables with cells written by hand, and evidence that hands them out."""

from dpft.reproduce.claims.claim import CellsCheck, Expected
from dpft.reproduce.papers import Column, Laptop, PaperTable, Row
from dpft.reproduce.tables.cells import Cell
from dpft.reproduce.tables.verdicts import CellVerdict


def row(labels, printed, *, std=None, ours=None, deviation=None, source=None, why=None, **cell):
    """A row of one column, and our number in it."""
    run = None if source or why else ()
    made = Row(labels=labels, run=run, printed={"acc": printed}, taken_from=source, why=why)
    verdict = CellVerdict.CANNOT_RUN if why else CellVerdict.NOT_RUN
    verdict = CellVerdict.COPIED if source else verdict
    if ours is not None:
        verdict = CellVerdict.TREND
    return made, Cell(printed, std, None, ours, deviation, 0, 1, verdict, **cell)


class Evidence:
    """A table in the place of all tables; ours are the same at both scales."""

    def __init__(self, *rows, higher=True, decimals=1):
        column = Column("acc", "accuracy", decimals, ("accuracy",), higher, "dev")
        self.rows = rows
        self.only = PaperTable(
            *("demo", "1", "Demo", "Nobody 2020, Table 1", None, (column,)),
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


def check(expected, first, second=None, *, ends=(None, None), where=None, free=(), columns=()):
    """A check of cells; ``expected`` is a kind or an `Expected`."""
    return CellsCheck(
        table="demo/1",
        expected=expected if isinstance(expected, Expected) else Expected(expected, *ends),
        first=pattern(first),
        second=pattern(second or {}),
        where=pattern(where or {}),
        free=tuple(free),
        columns=tuple(columns),
    )
