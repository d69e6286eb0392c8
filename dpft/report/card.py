"""The model card: what was trained, what is guaranteed, and what is not."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.config.flags import Flag, has, sentences
from dpft.privacy.guarantee import Guarantee
from dpft.privacy.rounding import number
from dpft.report.evaluation import remarks
from dpft.report.guarantee import as_markdown, audit_rows, mechanism_rows
from dpft.report.held_out import warnings
from dpft.report.hub import WHOLE, ModelFacts, head, loader, on_hub
from dpft.report.markdown import inline, table
from dpft.runs.atomic import write_atomic
from dpft.runs.lineage import FILE, descent
from dpft.tasks.metrics.shown import cautions, shown

if TYPE_CHECKING:
    from jinja2 import Template


def write_card(model: Path, record: Mapping[str, Any]) -> None:
    """Put the model card of a run's record into the folder of its weights."""
    write_atomic(model / "README.md", model_card(record))


def write_lineage(model: Path, record: Mapping[str, Any]) -> None:
    """Put beside the weights what a run that trains them further is to say of them."""
    write_atomic(model / FILE, descent(record))


@functools.cache
def _template() -> Template:
    from jinja2 import ChainableUndefined

    from dpft.report.html import environment

    # Markdown, not HTML: what comes from elsewhere goes through `inline`.
    cards = environment(autoescape=False, undefined=ChainableUndefined)
    cards.filters["inline"] = inline
    return cards.get_template("card.md")


def model_card(record: Mapping[str, Any], shape: ModelFacts = WHOLE) -> str:
    """Render a run record as a model card.

    Args:
        record: a run record, see `dpft.runs.RunRecord`.
        shape: what of the model lies beside the card.

    Returns:
        Markdown with the YAML head that model hubs read.
    """
    guarantee = Guarantee.of_record(record)
    model, scores = record.get("model", {}), record.get("scores", {})
    return _template().render(
        {
            "config": {},
            "plugins": [],
            **record,
            "labels": sentences(record.get("flags")),
            "quantised": has(record.get("flags", []), Flag.QUANTISED_WEIGHTS),
            "model": model,
            "head": head(record, shape),
            "shape": shape,
            "hub": on_hub(model),
            "loader": _fenced(loader(record, shape)),
            "guarantee": guarantee,
            "privacy": as_markdown(guarantee, _rows(record)),
            "counts": ", ".join(
                f"{k} {count:,}" for k, count in record["dataset"]["counts"].items()
            ),
            "warnings": warnings(record),
            "evaluation": [inline(line) for line in remarks(record)],
            "scores": _scores(scores),
            "remarks": [line for split, score in scores.items() for line in _remarks(split, score)],
        }
    )


def _fenced(code: str | None) -> str | None:
    # Not in the template, whose braces a formatter of the blocks in Markdown takes for Python's.
    return code and f"```python\n{code}\n```"


def _rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    if record["mechanism"] is None:
        return []
    seed = record.get("seeds", {}).get("noise")
    config = record.get("config", {})
    return [*audit_rows(record), *mechanism_rows(record["mechanism"], config, seed)]


def _remarks(split: str, score: Mapping[str, Any]) -> list[str]:
    """What is to be known of a split's scores, as sentences."""
    lines = [f"**Mind:** {split}: {inline(caution)}." for caution in cautions(score)]
    if score.get("unfinished"):
        lines.append(f"Of {split}'s texts {score['unfinished']:,} were stopped before they ended.")
    for metric, constant in (score.get("baselines") or {}).items():
        lines.append(f"Always the most frequent class: {metric} {number(constant)} ({split}).")
    for true, answered in (score.get("confusion") or {}).items():
        counts = ", ".join(f"{inline(name)} {count:,}" for name, count in answered.items())
        lines.append(f"True class {inline(true)} ({split}) was answered: {counts}.")
    return lines


def _scores(scores: Mapping[str, Any]) -> str:
    rows = [
        (
            split,
            name,
            "not computed" if value is None else number(shown(name, value, score["signature"])),
            f"{score['examples']:,}",
            score["signature"],
        )
        for split, score in scores.items()
        for name, value in score["metrics"].items()
    ]
    return table(("Split", "Metric", "Score", "Examples", "Signature"), rows) if rows else ""
