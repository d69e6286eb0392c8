"""Tables with cells written by hand, and evidence that hands them out."""

from dpft.reproduce.claims.claim import CellsCheck, Claim
from dpft.reproduce.claims.evaluate import Evidence, evaluate
from dpft.reproduce.papers import Column, Laptop, PaperTable, Row
from dpft.reproduce.tables.cells import Cell
from dpft.reproduce.tables.record_index import Index
from dpft.reproduce.tables.verdicts import CellVerdict


def row(labels, printed, *, std=None, ours=None, source=None, **cell):
    """A row of one column, and our number in it."""
    run = None if source else ()
    made = Row(labels=labels, run=run, printed={"acc": printed}, taken_from=source)
    return made, Cell(printed, std, None, ours, None, 0, 1, CellVerdict.TREND, **cell)


class ByHand(Evidence):
    """A table in the place of all tables; ours are the same at both scales."""

    def __init__(self, *rows, higher=True, seeds=None, factor=1.0):
        super().__init__(Index(), [])
        column = Column("acc", "accuracy", 1, ("accuracy",), higher, "dev", factor)
        self.rows = rows
        self.only = PaperTable(
            *("demo", "1", "Demo", "Nobody 2020, Table 1", seeds, (column,)),
            rows=tuple(made for made, _ in rows),
            laptop=Laptop((), "small"),
        )

    def table(self, name, *, figure=False):
        return self.only

    def cell(self, table, row, column, scale):
        return next(cell for made, cell in self.rows if made is row)


def pattern(labels):
    return {n: tuple(value) if isinstance(value, list) else (value,) for n, value in labels.items()}


def judged(expected, *rows, first, second=None, where=None, scale=None, **table):
    """The result of a claim with one check of such rows; ``expected`` is a range by its unit."""
    check = CellsCheck(
        table="demo/1",
        expected=expected,
        first=pattern(first),
        second=pattern(second or {}),
        where=pattern(where or {}),
        scale=scale,
    )
    claim = Claim("demo", "c01", "One is better.", "Table 1", (check,))
    return evaluate(claim, ByHand(*rows, **table))
