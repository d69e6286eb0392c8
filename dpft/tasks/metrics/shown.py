"""How scores are shown: BLEU and ROUGE-L from 0 to 100, as papers print them.

The scorer of E2E gives them from 0 to 1, and records keep what a scorer gave.
"""

from __future__ import annotations

from typing import Any

HUNDRED = ("BLEU", "ROUGE_L")
"""Scores that are shown from 0 to 100."""
_E2E = "nist:"  # of the tasks' signatures only E2E's has it


def shown(metric: str, value: float, signature: Any) -> float:
    """The score on the scale that it has everywhere.

    Args:
        metric: its name.
        value: as a record has it.
        signature: of the scorer, as the record has it.
    """
    return 100 * value if _is_fraction(metric, signature) else value


def figure(metric: str, value: float | None, signature: Any, none: str = "-") -> str:
    """`shown`, as text; ``none`` where there is no number."""
    if value is None:
        return none
    digits = 2 if _is_fraction(metric, signature) else 4
    return f"{shown(metric, value, signature):.{digits}f}"


def _is_fraction(metric: str, signature: Any) -> bool:
    # Behind the task's own stand those of further metrics, see `dpft.tasks.scores.all_scores`.
    return metric in HUNDRED and _E2E in str(signature).partition("; ")[0]
