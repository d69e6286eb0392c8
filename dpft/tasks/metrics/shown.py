"""How scores are shown: BLEU and ROUGE-L from 0 to 100, as papers print them.

The scorer of E2E gives them from 0 to 1, and records keep what a scorer gave.
"""

from __future__ import annotations

from typing import Any

_FRACTIONS = ("BLEU", "ROUGE_L")
_E2E = "nist:"  # of the scorers' signatures only E2E's has it


def shown(metric: str, value: float, signature: Any) -> float:
    """The score on the scale that it has everywhere.

    Args:
        metric: its name.
        value: as a record has it.
        signature: of the scorer, as the record has it.
    """
    return 100 * value if metric in _FRACTIONS and _E2E in str(signature) else value


def figure(metric: str, value: float | None, signature: Any) -> str:
    """`shown`, as text; ``-`` where there is no number."""
    return "-" if value is None else f"{shown(metric, value, signature):.4f}"
