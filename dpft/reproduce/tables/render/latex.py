"""A filled table as LaTeX, for a document that uses booktabs."""

from __future__ import annotations

from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.shown import (
    accountants,
    epsilon_lines,
    footnotes,
    headings,
    labels,
    lines,
    title,
)

_ESCAPES = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"$\sim$", "^": r"\textasciicircum{}"},
    **{"<": "$<$", ">": "$>$", "|": "$|$"},
    **{"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "·": r"$\cdot$", "×": r"$\times$"},
    **{"≠": r"$\neq$", "−": "$-$", "≤": r"$\leq$", "≥": r"$\geq$", "ε": r"$\varepsilon$"},
    **{"σ": r"$\sigma$", "δ": r"$\delta$", "β": r"$\beta$"},
}


def as_latex(filled: Filled) -> str:
    """A ``table`` with caption, and the footnotes as a paragraph below the tabular."""
    count = len(filled.table.label_names)
    columns = "l" * count + "r" * (len(headings(filled)) - count)
    body = []
    for row in filled.rows:
        cells = [lines(c, column) for column, c in zip(filled.columns, row.cells, strict=True)]
        cells += [epsilon_lines(row, accountant) for accountant in accountants(filled)]
        body.append(" & ".join([*map(escaped, labels(row)), *map(_stacked, cells)]) + r" \\")
    notes = [rf"\textit{{{escaped(h)}:}} {escaped(text)}." for h, text in footnotes(filled)]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(title(filled))}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(escaped, headings(filled))) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
            r"\raggedright\footnotesize",
            *notes,
            r"\end{table}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def _stacked(cell: list[str]) -> str:
    text = r" \\ ".join(map(escaped, cell))
    return rf"\shortstack[r]{{{text}}}" if len(cell) > 1 else text
