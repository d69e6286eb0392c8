"""How the evaluations of a run, and what was chosen by them, are told of on cards and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def source(section: Mapping[str, Any]) -> str:
    """Which records were asked of, in words.

    Args:
        section: ``evaluation`` of a record, see `dpft.runs.record.EvaluationRecord`.
    """
    of = "a file" if section["of"] == "file" else f"the {section['of']} split"
    return f"{section['records']:,} records of {of}"


def chosen(record: Mapping[str, Any]) -> str | None:
    """Which weights a run kept, as a clause; None if none were chosen."""
    section = record.get("evaluation") or {}
    if section.get("chosen") is None:
        return None
    best = "lowest" if section["metric"] == "loss" else "highest"
    return (
        f"the weights are those of step {section['chosen']:,} of {record['training']['steps']:,}, "
        f"with the {best} {section['metric']} on {source(section)}"
    )


def price(section: Mapping[str, Any], steps: int) -> str | None:
    """What the choice of earlier weights costs the training records, as a clause; None of others.

    Args:
        section: as of `source`; empty if there were no evaluations.
        steps: of the run.
    """
    if section.get("chosen") in (None, steps):
        return None
    return (
        f"the weights are those of step {section['chosen']:,}, chosen in view of all steps: "
        f"epsilon is that of all {steps:,}"
    )


def remarks(record: Mapping[str, Any]) -> list[str]:
    """Sentences for whoever reads the scores; none if there were no evaluations."""
    section = record.get("evaluation")
    if not section:
        return []
    said, times = chosen(record), f"{section['evaluations']:,} evaluations while it trained"
    if said is None:
        return [f"Nothing was chosen by {times}, on {source(section)}."]
    public = section["public"]
    status = "are public, or were declared to be" if public else "were not declared public"
    lines = [
        f"{said[:1].upper()}{said[1:]}, of {times}.",
        f"No guarantee covers these records, of which the choice tells something; they {status}.",
    ]
    scored = {record["config"]["decode"]["split"], *(record.get("scores") or {})}
    if section["of"] in {name.partition("-")[0] for name in scored}:
        lines.append(
            f"Scores of the {section['of']} split flatter the model a little, since its records "
            "decided which weights are kept."
        )
    if section.get("scored"):
        lines.append(
            "Records of that file are scored too: their scores flatter the model a little, since "
            "they decided which weights are kept."
        )
    return lines
