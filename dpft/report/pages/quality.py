"""The page of figures of synthetic records, and how these figures are shown anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dpft.privacy.guarantee import Guarantee
from dpft.privacy.meaning import verdict
from dpft.report.html import render

COVERED = MappingProxyType(
    {
        "yes": "follows from the synthetic records alone, or from public ones",
        "yes, real: no": "the first figure follows from the synthetic records alone; the second "
        "from held-out records, as they are: no guarantee covers those",
        "no: held-out": "the training records are covered; held-out records are not: the figure "
        "follows from them as they are",
        "no: training": "computed from the training records without noise: do not publish",
    }
)


def written_as(figures: Sequence[Any]) -> list[dict[str, Any]]:
    """Figures (`dpft.training.quality.QualityNumber`) for JSON, each with its word of `COVERED`."""
    return [
        {**dataclasses.asdict(one), **{"covered": _covered(one), "of": one.covered}}
        for one in figures
    ]


def publishable(figure: Mapping[str, Any]) -> bool:
    """Whether no training record stands behind it but through the guarantee."""
    return bool(figure["covered"] != "no: training")


def cells(figure: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Name, both numbers and coverage."""
    numbers = _number(figure["synthetic"]), _number(figure["real"])
    return figure["name"], *numbers, figure["covered"]


def page(content: Mapping[str, Any], examples: Sequence[str], private: bool = False) -> str:
    """The whole file.

    Args:
        content: as it is stored as JSON.
        examples: some of the records.
        private: whether figures are among it that must not be published.
    """
    guarantee = Guarantee.of_record(content)
    figures = content["figures"]
    return render(
        "quality.html",
        title=f"{content['run']['name']}: {content['file']}",
        content=content,
        guarantee=guarantee,
        headline=verdict(guarantee) or guarantee.sentence,
        rows=[cells(one) for one in figures],
        readings=[(one["name"], one["real_is"]) for one in figures if one["real_is"]],
        meanings=[(kind, COVERED[kind]) for kind in dict.fromkeys(f["covered"] for f in figures)],
        examples=examples,
        private=private,
    )


def _covered(figure: Any) -> str:
    kinds = {figure.covered, figure.real_covered}
    if "training" in kinds:
        return "no: training"
    if figure.covered == "held-out":
        return "no: held-out"
    return "yes, real: no" if "held-out" in kinds else "yes"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.4f}"
