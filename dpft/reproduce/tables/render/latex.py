"""A table as LaTeX, for a document that uses booktabs."""

from __future__ import annotations

from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.text_table import TextCell, as_text_table

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
    text = as_text_table(filled)
    columns = "l" * len(text.names) + "r" * len(text.headings)
    body = [
        " & ".join([*map(escaped, labels), *map(_stacked, cells)]) + r" \\"
        for labels, cells in text.rows
    ]
    notes = [rf"\textit{{{escaped(h)}:}} {escaped(note)}." for h, note in text.notes]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(text.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(escaped, (*text.names, *text.headings))) + r" \\",
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


def _stacked(cell: TextCell) -> str:
    text = r" \\ ".join(map(escaped, cell.lines))
    return rf"\shortstack[r]{{{text}}}" if len(cell.lines) > 1 else text
